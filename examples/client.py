"""Talk to `octavo serve smollm2` with the official client. Usage: python client.py [BASE_URL]"""

import sys

from openai import OpenAI

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
client = OpenAI(api_key="EMPTY", base_url=base_url)
messages = [{"role": "user", "content": "Write the Fibonacci sequence in Python"}]

response = client.chat.completions.create(model="smollm2", messages=messages, n=4, temperature=0.8, max_tokens=64)
for choice in response.choices:
    print(f"--- {choice.index}: {choice.message.content}")

print("--- streamed: ", end="")
for chunk in client.chat.completions.create(model="smollm2", messages=messages, temperature=0, max_tokens=64, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
