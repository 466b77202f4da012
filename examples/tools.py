"""Let `octavo serve smollm2` call functions of yours, with the official client. Usage: python tools.py [BASE_URL]

This demo model was not taught to call tools, so it is made to (`tool_choice`). Leave that out with a model that was.
"""

import json
import sys

from openai import OpenAI

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
client = OpenAI(api_key="EMPTY", base_url=base_url)
CITIES = ["Paris", "Rome", "Oslo"]
FORECASTS = {"Paris": "rain", "Rome": "sun", "Oslo": "snow"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "What the weather is in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": CITIES},
                    "days": {"type": "integer", "minimum": 1, "maximum": 7},
                },
                "required": ["city"],
            },
        },
    }
]


def get_weather(city: str, days: int = 1) -> str:
    return f"{FORECASTS[city]} for {days} day(s)"


messages = [{"role": "user", "content": "How will the weather be in Rome tomorrow?"}]
fields = {"model": "smollm2", "tools": TOOLS, "temperature": 0, "max_tokens": 128}

message = (
    client.chat.completions.create(messages=messages, tool_choice="required", parallel_tool_calls=False, **fields)
    .choices[0]
    .message
)
messages.append(message)
for call in message.tool_calls:
    arguments = json.loads(call.function.arguments)
    result = get_weather(**arguments)
    print(f"{call.function.name}({arguments}) -> {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

answer = client.chat.completions.create(messages=messages, tool_choice="none", **fields)
print(f"answer: {answer.choices[0].message.content}")

print("streamed: ", end="")
choice = {"type": "function", "function": {"name": "get_weather"}}
for chunk in client.chat.completions.create(messages=messages[:1], tool_choice=choice, stream=True, **fields):
    for call in chunk.choices[0].delta.tool_calls or []:
        print(call.function.name or "", call.function.arguments, sep="", end="", flush=True)
print()
