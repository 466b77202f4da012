"""``LLM`` on the demo model: what a program that uses it relies on."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RepetitionDetectionParams, RequestOutput, SamplingParams, StructuredOutputsParams
from octavo.config import ConfigError
from octavo.llm import _Pending, _ProgressBar
from octavo.outputs import TokenDelta
from octavo.sampling_params import ParameterError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    llm = LLM(model="smollm2", max_model_len=512, num_gpu_blocks_override=256, max_num_seqs=16)
    yield llm
    llm.shutdown()


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [branch.text for output in outputs for branch in output.outputs]


def test_strings_ids_dicts_and_a_mix_give_the_same(llm: LLM) -> None:
    prompt = "The capital of France is"
    ids = llm.get_tokenizer().encode(prompt)
    forms: list[Any] = [prompt, ids, {"prompt": prompt}, {"prompt_token_ids": ids}]
    outputs = llm.generate(forms, GREEDY, use_tqdm=False)
    assert len(set(texts(outputs))) == 1 and "Paris" in outputs[0].outputs[0].text
    assert outputs[0].prompt == prompt and outputs[1].prompt is None
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].text == outputs[0].outputs[0].text
    assert llm.generate(ids, GREEDY, use_tqdm=False)[0].outputs[0].text == outputs[0].outputs[0].text


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 5, 9)]
    outputs = llm.generate(["one", "two", "three"], params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 5, 9]
    assert {o.outputs[0].finish_reason for o in outputs} == {"length"}
    with pytest.raises(ParameterError):
        llm.generate(["one", "two"], params, use_tqdm=False)


def test_seeds_decide_and_the_batch_does_not(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=16, ignore_eos=True)
    alone = texts(llm.generate("Tell me a story", params, use_tqdm=False))
    among = llm.generate(["Hello", "Tell me a story", "A", "B"], params, use_tqdm=False)
    assert among[1].outputs[0].text == alone[0]
    other = texts(llm.generate("Tell me a story", SamplingParams(temperature=1.0, seed=8, max_tokens=16), use_tqdm=False))
    assert other != alone
    unseeded = SamplingParams(temperature=1.0, max_tokens=16)
    assert texts(llm.generate(["Tell me a story"], unseeded, use_tqdm=False)) == texts(
        llm.generate(["Tell me a story"], unseeded, use_tqdm=False)
    )


def test_greedy_requests_are_the_same_among_others(llm: LLM) -> None:
    """Steps in which all requests are greedy are sampled by a shorter way."""
    prompts = ["The sky is", "One, two, three"]
    alone = texts(llm.generate(prompts, GREEDY, use_tqdm=False))
    random = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    among = texts(llm.generate([*prompts, "A"], [GREEDY, GREEDY, random], use_tqdm=False))
    logged = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12, logprobs=0), use_tqdm=False)
    assert among[:2] == alone == texts(logged)


def test_branches_share_the_prompt(llm: LLM) -> None:
    prompt = list(range(300, 340))  # two full blocks and a half
    params = SamplingParams(n=4, temperature=1.0, max_tokens=8, ignore_eos=True, seed=3)
    llm.reset_prefix_cache()
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert [branch.index for branch in output.outputs] == [0, 1, 2, 3] and len(set(texts([output]))) > 1
    assert output.metrics is not None
    assert output.metrics.blocks_shared == 9, "three branches share three blocks"
    assert output.metrics.copy_on_writes == 3, "the last one writes in place"
    assert output.metrics.blocks_allocated == 6


def test_greedy_branches_cost_one(llm: LLM) -> None:
    (output,) = llm.generate([[400, 401]], SamplingParams(n=3, temperature=0.0, max_tokens=6), use_tqdm=False)
    assert len(output.outputs) == 3 and len(set(texts([output]))) == 1
    assert output.metrics is not None and output.metrics.blocks_allocated == 1


@pytest.mark.parametrize("keep", [False, True])
def test_stop_strings_cut_text_and_tokens(llm: LLM, keep: bool) -> None:
    whole = llm.generate("Count: one, two, three,", SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)[0].outputs[
        0
    ]
    stop = whole.text[8:14]
    params = SamplingParams(temperature=0.0, max_tokens=24, stop=stop, include_stop_str_in_output=keep, logprobs=0)
    (output,) = llm.generate("Count: one, two, three,", params, use_tqdm=False)
    branch = output.outputs[0]
    end = whole.text.index(stop)
    assert branch.text == whole.text[: end + len(stop) if keep else end]
    assert (branch.finish_reason, branch.stop_reason) == ("stop", stop)
    assert branch.token_ids == whole.token_ids[: len(branch.token_ids)] and len(branch.token_ids) < len(whole.token_ids)
    assert branch.logprobs is not None and len(branch.logprobs) == len(branch.token_ids)
    assert output.metrics is not None and output.metrics.finished_time is not None
    assert llm._engine.stats().blocks_used == 0


def test_log_probabilities(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    (output,) = llm.generate("The sky is", params, use_tqdm=False)
    branch = output.outputs[0]
    assert branch.logprobs is not None and output.prompt_logprobs is not None
    assert all(len(entry) == 3 and token in entry for entry, token in zip(branch.logprobs, branch.token_ids, strict=True))
    assert branch.cumulative_logprob == pytest.approx(
        sum(e[t].logprob for e, t in zip(branch.logprobs, branch.token_ids, strict=True))
    )
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert all(
        token in (entry or {}) for entry, token in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
    )


def test_a_prefix_is_computed_once(llm: LLM) -> None:
    llm.reset_prefix_cache()
    prompt = list(range(1000, 1100))
    first = llm.generate([prompt], GREEDY, use_tqdm=False)[0]
    second = llm.generate([prompt], GREEDY, use_tqdm=False)[0]
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 96)
    assert texts([first]) == texts([second])


def test_a_pinned_prefix_stays(llm: LLM) -> None:
    system = {"role": "system", "content": "You answer every question with exactly one word. " * 8}
    tokens = llm.pin_prefix([system])
    assert tokens >= 64 and tokens % 16 == 0
    llm.reset_prefix_cache()
    output = llm.chat([system, {"role": "user", "content": "Hello"}], GREEDY, use_tqdm=False)[0]
    assert output.num_cached_tokens == tokens
    assert output.metrics is not None and output.metrics.blocks_shared == tokens // 16
    assert llm._engine.stats().blocks_used == tokens // 16
    assert llm.unpin_prefix([system]) and not llm.unpin_prefix([system])
    assert llm._engine.stats().blocks_used == 0
    text = "The capital of France is the city of Paris, and that of Germany is the city of Berlin."
    assert llm.pin_prefix(text) == 16 and llm.unpin_prefix(text)
    assert llm.pin_prefix(list(range(500, 520))) == 16
    assert llm.unpin_prefix(list(range(500, 520)))
    with pytest.raises(ParameterError, match="out of vocabulary"):
        llm.pin_prefix([10**6] * 16)
    with pytest.raises(ParameterError, match="nothing to pin"):
        llm.pin_prefix("short")


def test_chat_uses_the_template(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(question, GREEDY, use_tqdm=False)
    assert "<|im_start|>user" in (output.prompt or "") and "Paris" in output.outputs[0].text
    assert "".join(llm.stream_chat(question, GREEDY)) == output.outputs[0].text
    assert len(llm.chat([question, question], GREEDY, use_tqdm=False)) == 2


def test_a_stream_is_of_one_answer(llm: LLM) -> None:
    question = [{"role": "user", "content": "Name a city."}]
    with pytest.raises(ParameterError, match="n must be 1, got 2") as caught:
        next(llm.stream_chat(question, SamplingParams(n=2, max_tokens=6, seed=1)))
    assert caught.value.param == "n" and llm._pending == {}
    chosen = SamplingParams(best_of=3, max_tokens=6, seed=1)
    (output,) = llm.chat(question, chosen, use_tqdm=False)
    assert list(llm.stream_chat(question, chosen)) == [output.outputs[0].text]


def test_streams_may_be_interleaved_with_anything(llm: LLM) -> None:
    def stream(question: str) -> Iterator[str]:
        return llm.stream_chat([{"role": "user", "content": question}], GREEDY)

    alone = ["".join(stream(question)) for question in ("What is a block?", "Name a city.")]
    first, second = stream("What is a block?"), stream("Name a city.")
    pieces = [[next(first)], [next(second)]]
    for _ in range(3):
        pieces[0].extend(islice(first, 1))
        pieces[1].extend(islice(second, 2))
    generated = llm.generate("Hello", GREEDY, use_tqdm=False)
    pieces[0].extend(first)
    pieces[1].extend(second)
    assert ["".join(mine) for mine in pieces] == alone
    assert texts(generated) == texts(llm.generate("Hello", GREEDY, use_tqdm=False))
    with closing(llm.stream_chat([{"role": "user", "content": "Name a city."}], GREEDY)) as left:  # type: ignore[type-var]
        next(left)
    assert llm._pending == {}


def test_a_step_that_was_interrupted_ends_the_streams_that_were_in_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = llm.stream_chat([{"role": "user", "content": "Name a city."}], GREEDY)
    next(stream)
    with monkeypatch.context() as patched:
        patched.setattr("octavo.executor.local._Step.result", lambda step: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate("Hello", GREEDY, use_tqdm=False)
    with pytest.raises(RuntimeError, match="ask again"):
        "".join(stream)
    assert llm._pending == {} and texts(llm.generate("Hello", GREEDY, use_tqdm=False)) != [""]


@pytest.mark.parametrize(("where", "ends"), [("_Pending.take", True), ("_ProgressBar.update", False)])
def test_an_interruption_between_two_deltas_of_a_step_loses_none_unsaid(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, where: str, ends: bool
) -> None:
    question = [{"role": "user", "content": "Name a city."}]
    whole = "".join(llm.stream_chat(question, GREEDY))
    stream = llm.stream_chat(question, GREEDY)
    text = next(stream)
    (streamed,) = llm._pending
    step, take = llm._engine.step, _Pending.take

    def interrupted(taker: Any, delta: TokenDelta, *_: Any, **__: Any) -> bool:
        if delta.request_id != streamed:
            raise KeyboardInterrupt
        return take(taker, delta)

    with monkeypatch.context() as patched:
        patched.setattr(llm._engine, "step", lambda: sorted(step(), key=lambda delta: delta.request_id == streamed))
        patched.setattr(f"octavo.llm.{where}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("Hello", GREEDY)
    if ends:
        with pytest.raises(RuntimeError, match="ask again"):
            "".join(stream)
    else:
        assert text + "".join(stream) == whole
    assert llm._pending == {} and texts(llm.generate("Hello", GREEDY, use_tqdm=False)) != [""]


def test_what_is_allowed_and_what_has_a_form_is_both(llm: LLM) -> None:
    letters = {letter: llm.get_tokenizer().encode(letter)[0] for letter in "abcd"}
    params = SamplingParams(
        temperature=1.0,
        n=3,
        max_tokens=20,
        seed=1,
        allowed_token_ids=[letters["a"], letters["b"], letters["c"]],
        structured_outputs=StructuredOutputsParams(regex="[bcd]{8,12}"),
    )
    found = texts(llm.generate("Letters:", params, use_tqdm=False))
    assert len(found) == 3 and all(8 <= len(text) <= 12 and set(text) <= set("bc") for text in found) and len(set(found)) > 1


def test_the_progress_bar_tells_tokens_per_second(
    llm: LLM, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[int, int]] = []
    close = _ProgressBar.close

    def noting(bar: _ProgressBar) -> None:
        counted.append((bar._input, bar._output))
        close(bar)

    monkeypatch.setattr(_ProgressBar, "close", noting)
    llm.generate(["a", "b"], SamplingParams(n=3, temperature=1.0, max_tokens=1, ignore_eos=True))
    assert "tokens/s" in capfd.readouterr().err
    assert counted == [(2, 6)]


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], SamplingParams(), "prompt"),
        ([1, 10**6], SamplingParams(), "prompt"),
        ([5] * 512, SamplingParams(), "input_tokens"),
        ("x", SamplingParams(n=17, temperature=1.0), "n"),
        ("x", SamplingParams(logprobs=21), "logprobs"),
        ("x", SamplingParams(logit_bias={10**6: 1.0}), "logit_bias"),
        ("x", SamplingParams(allowed_token_ids=[10**6]), "allowed_token_ids"),
    ],
)
def test_bad_requests_name_the_field_and_leave_nothing_behind(
    llm: LLM, prompt: Any, params: SamplingParams, param: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        llm.generate(["fine", {"prompt_token_ids": prompt} if prompt == [] else prompt], params, use_tqdm=False)
    assert caught.value.param == param
    assert not llm._engine.has_work and llm._engine.stats().blocks_used == 0


def test_what_can_never_fit_is_refused_with_the_numbers(smollm2_path: Path) -> None:
    llm = LLM(model="smollm2", max_model_len=64, num_gpu_blocks_override=4, max_num_seqs=4)
    with pytest.raises(ParameterError, match="needs up to 13 KV blocks of 16 tokens"):
        llm.generate([[5] * 20], SamplingParams(n=4, temperature=1.0, max_tokens=44), use_tqdm=False)
    llm.shutdown()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": 100_000}, "--max-model-len"),
        (
            {"num_gpu_blocks_override": 3, "max_model_len": 512},
            "These would work: `octavo serve smollm2 --max-model-len 48 --num-gpu-blocks-override 3`",
        ),
        ({"dtype": "half"}, "--dtype bfloat16"),
        ({"max_num_batched_tokens": 8}, "--max-num-batched-tokens"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 128}, "--max-model-len"),
        ({"nonsense": 1}, "nonsense"),
        ({"num_threads": 100_000}, "threads"),
        ({"quantization": "int5"}, "quantization: invalid enum value 'int5'"),
        ({"max_model_len": 0}, "max_model_len: expected int >= 1"),
        ({"swap_space": -1}, "swap_space: expected float >= 0"),
        ({"seed": None}, "seed: expected int, got null"),
        ({"kv_cache_memory_bytes": "1G"}, "kv_cache_memory_bytes: expected int | null, got str"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(smollm2_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(model="smollm2", **changes)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_models_own_length_and_paths(smollm2_path: Path) -> None:
    for length in ("auto", -1):
        llm = LLM(smollm2_path, max_model_len=length, num_gpu_blocks_override=512)
        assert llm.max_model_len == 8192
        llm.shutdown()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_form_gives_the_same_tokens_in_any_company(llm: LLM, temperature: float) -> None:
    """Alone, beside other forms, and in steps that also draw, or write logits for somebody's log-probabilities."""
    forms = [
        StructuredOutputsParams(json={"type": "array", "items": {"type": "integer"}}),
        StructuredOutputsParams(regex="[a-q ]{30}"),
    ]
    confined = [SamplingParams(temperature=temperature, seed=3, max_tokens=20, structured_outputs=form) for form in forms]
    others = [GREEDY, SamplingParams(temperature=1.0, seed=1, max_tokens=9), SamplingParams(max_tokens=5, logprobs=2)]
    prompts = ["Numbers:", "Once upon a time", "The sea", "A dog", "Paris is"]

    def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
        return [list(output.outputs[0].token_ids) for output in outputs]

    alone = [tokens(llm.generate([text], [one], use_tqdm=False))[0] for text, one in zip(prompts, confined, strict=False)]
    assert tokens(llm.generate(prompts[:2], confined, use_tqdm=False)) == alone
    for i in range(3):
        company = others[: i + 1]
        beside = llm.generate(prompts[: 3 + i], [*confined, *company], use_tqdm=False)
        assert tokens(beside)[:2] == alone
    text = llm.get_tokenizer().decode(alone[1])
    assert len(text) == 30 and set(text) <= set("abcdefghijklmnopq ")


def test_a_budget_of_reasoning_and_a_form_behind_it(llm: LLM) -> None:
    form = StructuredOutputsParams(choice=["yes", "no"])
    params = SamplingParams(temperature=1.0, n=2, seed=1, max_tokens=60, thinking_token_budget=6, structured_outputs=form)
    with pytest.raises(ParameterError, match="reasoning_parser"):
        llm.generate("Is 7 prime?", params, use_tqdm=False)
    with pytest.raises(ConfigError, match="reasoning_parser must be one of"):
        LLM(model="smollm2", reasoning_parser="other")
    thinker = LLM(
        model="smollm2", max_model_len=512, num_gpu_blocks_override=64, max_num_seqs=4, reasoning_parser="deepseek_r1"
    )
    try:
        open_prompt, closed_prompt = thinker.generate(["Is 7 prime?<think>", "<think></think>"], params, use_tqdm=False)
        for output in open_prompt.outputs:
            thought, closing, answer = output.text.partition("</think>")
            assert closing and answer.strip() in ("yes", "no") and output.finish_reason == "stop"
            assert 1 <= len(llm.get_tokenizer().encode(thought, add_special_tokens=False)) <= 8
        assert {output.text for output in closed_prompt.outputs} <= {"yes", "no"}
    finally:
        thinker.shutdown()


def test_logprobs_of_tokens_by_name(llm: LLM) -> None:
    prompt = "The capital of France is"
    (known,) = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=4, logprobs=20), use_tqdm=False)
    likely = known.outputs[0].logprobs or []
    named = [list(likely[0])[19], 5, next(iter(likely[0])), 5]
    for logprobs in (None, 0, 3):
        params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=logprobs, logprob_token_ids=named)
        (output,) = llm.generate(prompt, params, use_tqdm=False)
        assert output.outputs[0].token_ids == known.outputs[0].token_ids
        for token, found, top in zip(output.outputs[0].token_ids, output.outputs[0].logprobs or [], likely, strict=True):
            assert list(found) == list(dict.fromkeys([token, *named])) and found[token] == top[token]
            for name in set(found) & set(top):
                assert found[name].logprob == pytest.approx(top[name].logprob, abs=1e-5)
            assert found[5].rank is None and found[5].logprob < found[token].logprob
    with pytest.raises(ParameterError, match="out-of-vocab"):
        llm.generate(prompt, SamplingParams(logprob_token_ids=[10**6]), use_tqdm=False)
    for bad in ([-1], list(range(129))):
        with pytest.raises(ParameterError, match="logprob_token_ids"):
            SamplingParams(logprob_token_ids=bad)


def test_a_presence_penalty_is_for_what_was_generated_and_not_for_the_prompt(llm: LLM) -> None:
    prompt = llm.get_tokenizer().encode("-one one one one one one")

    def tokens(penalty: float) -> Sequence[int]:
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, presence_penalty=penalty)
        return llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids

    plain, penalised = tokens(0.0), tokens(2.0)
    assert plain[0] == plain[1] == penalised[0] == prompt[-1]
    assert penalised[0] not in penalised[1:]


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "n": 2}])
def test_bad_words_are_kept_out_of_what_would_be_nothing_else(llm: LLM, options: dict[str, Any]) -> None:
    prompt = "The capital of France is"
    word = llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids[0]
    for bad_words, said in ((None, {word}), (["Paris"], set())):
        params = SamplingParams(max_tokens=8, ignore_eos=True, logit_bias={word: 50.0}, bad_words=bad_words, **options)
        (output,) = llm.generate(prompt, params, use_tqdm=False)
        assert all(set(branch.token_ids) & {word} == said for branch in output.outputs)
    (output,) = llm.generate(prompt, SamplingParams(max_tokens=8, bad_words=["Paris"], **options), use_tqdm=False)
    assert "Paris" not in "".join(texts([output]))


@pytest.mark.parametrize("n", [1, 2])
def test_what_is_impossible_is_so_for_the_argmax_inside_the_model_too(llm: LLM, n: int) -> None:
    """Log-probabilities need the logits, without which a greedy step ends with its argmax; some of these tokens are guessed."""
    prompts = ["1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4", "The capital of France is"]
    for options in (
        {"min_tokens": 20, "stop_token_ids": [253, 28, 216]},
        {"bad_words": ["5 6", " the"]},
        {"min_tokens": 9, "bad_words": ["8 1"], "allowed_token_ids": list(range(200, 9000))},
    ):
        given: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30, "n": n, **options}
        found = llm.generate(prompts, [SamplingParams(**given)] * 2, use_tqdm=False)
        expected = llm.generate(prompts, [SamplingParams(logprobs=0, **given)] * 2, use_tqdm=False)
        plain = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=30), use_tqdm=False)
        for one, other in zip(found, expected, strict=True):
            assert [branch.token_ids for branch in one.outputs] == [branch.token_ids for branch in other.outputs]
        assert found[0].outputs[0].token_ids != plain[0].outputs[0].token_ids, "or nothing was impossible"


def test_a_stop_token_ends_an_output_and_is_named(llm: LLM) -> None:
    (whole,) = llm.generate("The capital of France is", GREEDY, use_tqdm=False)
    *before, stop = whole.outputs[0].token_ids[:3]
    assert stop not in before
    for max_tokens in (12, 3):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop_token_ids=[stop])
        (output,) = llm.generate("The capital of France is", params, use_tqdm=False)
        found = output.outputs[0]
        assert (found.token_ids, found.finish_reason, found.stop_reason) == ([*before, stop], "stop", stop)


def test_an_output_that_repeats_itself(llm: LLM) -> None:
    watched = RepetitionDetectionParams(max_pattern_size=3, min_count=4)
    params = SamplingParams(temperature=0.0, max_tokens=40, allowed_token_ids=[500], repetition_detection=watched)
    (output,) = llm.generate("Say it again", params, use_tqdm=False)
    found = output.outputs[0]
    assert found.token_ids == [500] * 4
    assert (found.finish_reason, found.stop_reason) == ("repetition", "repetition_detected")
