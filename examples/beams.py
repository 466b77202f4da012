"""The likeliest continuations by beam search, and the best of several draws. Beams and draws share the blocks of the prompt."""

from octavo import LLM, BeamSearchParams, SamplingParams

llm = LLM(model="smollm2", max_model_len=2048)
prompt = "The three primary colours are"
(found,) = llm.beam_search(prompt, BeamSearchParams(beam_width=4, n=2, max_tokens=24, length_penalty=0.8))
for beam in found.sequences:
    print(f"beam {beam.score:.3f}: {beam.text!r}")
print(f"blocks allocated {found.metrics.blocks_allocated}, shared {found.metrics.blocks_shared}")

(output,) = llm.generate(prompt, SamplingParams(best_of=8, n=2, temperature=0.8, max_tokens=24, seed=1))
for branch in output.outputs:
    print(f"best of 8, {branch.cumulative_logprob:.2f}: {branch.text!r}")
