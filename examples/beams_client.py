"""Watch the beams of a search over HTTP. Usage: python beams_client.py [BASE_URL], with `octavo serve smollm2` running."""

import sys

from openai import OpenAI

client = OpenAI(api_key="EMPTY", base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1")
stream = client.completions.create(
    model="smollm2",
    prompt="The three primary colours are",
    max_tokens=16,
    n=1,
    best_of=4,
    stream=True,
    extra_body={"use_beam_search": True, "stream_options": {"include_beams": True}},
)
for chunk in stream:
    for beam in getattr(chunk, "beams", None) or []:
        print(f"  {beam['cumulative_logprob']:8.3f} {beam['text']!r}")
    for choice in chunk.choices:
        print(f"best: {choice.text!r}")
