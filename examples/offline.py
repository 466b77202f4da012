"""Complete two prompts with a model in this process."""

from octavo import LLM, SamplingParams

llm = LLM(model="smollm2", dtype="auto", max_model_len=8192)
sampling_params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=256, repetition_penalty=1.1)
outputs = llm.generate(["What is the life cycle of a Kubernetes pod?", "What sets Podman apart from Docker?"], sampling_params)
for output in outputs:
    print(output.prompt[:50], output.outputs[0].text[:100])
    print(f"{len(output.outputs[0].token_ids) / output.metrics.finished_time:.1f} tokens/s")
