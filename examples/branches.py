"""Four answers to one question: they share the blocks of the prompt."""

from octavo import LLM, SamplingParams

llm = LLM(model="smollm2", max_model_len=2048)
question = [{"role": "user", "content": "Name a fruit that is not an apple, and say why you like it."}]
(output,) = llm.chat(question, SamplingParams(n=4, temperature=0.9, max_tokens=40, seed=1))
for branch in output.outputs:
    print(f"{branch.index}: {branch.text.strip()}")
print(f"blocks allocated {output.metrics.blocks_allocated}, shared {output.metrics.blocks_shared}")
print(f"copy-on-writes {output.metrics.copy_on_writes}")
