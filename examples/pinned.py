"""Keep a system prompt in the KV cache: chats that begin with it compute only what follows it."""

from octavo import LLM, SamplingParams

llm = LLM(model="smollm2", max_model_len=2048)
system = {"role": "system", "content": "You are a patient teacher. You answer in one short sentence, with an example. " * 8}
print(f"pinned {llm.pin_prefix([system])} tokens")
for question in ("What is a prime number?", "What is a square root?"):
    (output,) = llm.chat([system, {"role": "user", "content": question}], SamplingParams(temperature=0, max_tokens=40))
    print(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens were there: {output.outputs[0].text.strip()}")
