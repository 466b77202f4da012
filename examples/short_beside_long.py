"""How long short requests wait beside a prompt of 6,000 tokens. Usage: python short_beside_long.py [BASE_URL [TOKENS]]"""

import sys
import threading
import time
from statistics import median

from openai import OpenAI

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 6000
client = OpenAI(api_key="EMPTY", base_url=base_url)
model = client.models.list().data[0].id
numbers = iter(range(1000))


def time_to_first_token(prompt: list[int]) -> float:
    """In milliseconds. No prompt begins like another, so that none is found in the prefix cache."""
    begin = time.perf_counter()
    with client.completions.create(model=model, prompt=[100 + next(numbers), *prompt], max_tokens=2, stream=True) as chunks:
        next(iter(chunks))
        return 1000 * (time.perf_counter() - begin)


def short_requests(count: int) -> list[float]:
    """One after the other, a tenth of a second apart."""
    times = []
    for _ in range(count):
        times.append(time_to_first_token(list(range(200, 230))))
        time.sleep(0.1)
    return times


time_to_first_token([200])
alone = short_requests(8)
long_times: list[float] = []
long = threading.Thread(target=lambda: long_times.append(time_to_first_token([300 + i % 500 for i in range(tokens)])))
long.start()
time.sleep(0.05)
beside = []
while long.is_alive():
    beside += short_requests(1)
long.join()
print(f"time to first token, ms: short alone {median(alone):.0f} (most {max(alone):.0f})")
print(f"{len(beside)} short beside a prompt of {tokens} tokens: {median(beside):.0f} (most {max(beside):.0f})")
print(f"the long one itself: {long_times[0]:.0f}")
