"""``LLM``: offline generation over an engine in the caller's own process. What you debug in a notebook is what serves.

Owns the tokenizer and the engine; turns prompts into requests and deltas into ``RequestOutput``. Not thread-safe.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from octavo.build import load, open_frontend, pin_prefixes
from octavo.config import ConfigError, EngineConfig, configured
from octavo.output_processor import ChoiceUpdate, OutputProcessor
from octavo.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput, Logprob, RequestOutput, TokenDelta
from octavo.prefix_files import chat_prefix, read_prefixes, text_prefix
from octavo.request import Request, Thinking
from octavo.sampling_params import BeamSearchParams, ParameterError, SamplingParams
from octavo.step import TokenLogprobs
from octavo.structured.compiler import GrammarError
from octavo.structured.reasoning import LONGEST_TAIL, STYLES, text_leaves_open, thinking_in
from octavo.tokenizer import Tokenizer
from octavo.weights.hub import resolved

Prompt = str | Sequence[int] | dict[str, Any]
Message = dict[str, Any]


class _Pending:
    """One request on its way, and its result as it grows; where the best of several are returned, when all have ended."""

    def __init__(self, request: Request, prompt: str | None, tokenizer: Tokenizer) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._processor = OutputProcessor(request, tokenizer)
        self.result = RequestOutput(
            request_id=request.id,
            prompt=prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[CompletionOutput(index=index, text="", token_ids=[]) for index in range(request.params.n)],
            finished=False,
        )
        self.lost = False
        self._unread = ""

    @property
    def finished(self) -> bool:
        return self.result.finished

    def read(self) -> str:
        """Text that has come since the last call."""
        text, self._unread = self._unread, ""
        return text

    def take(self, delta: TokenDelta) -> bool:
        """Add what a delta brings. Returns whether its branch has ended at a stop string, which the engine cannot know."""
        processed, result = self._processor.process(delta), self.result
        for update in processed.updates:
            self._add(update)
        result.num_cached_tokens = delta.num_cached_tokens
        result.metrics = delta.metrics or result.metrics
        result.finished = self._processor.finished
        return processed.abort

    def _add(self, update: ChoiceUpdate) -> None:
        output, tokenizer, named = self.result.outputs[update.index], self._tokenizer, self.request.params.logprob_token_ids
        output.token_ids += update.token_ids
        if update.logprobs is not None:
            entries = [_as_dict(entry, tokenizer, named=named is not None) for entry in update.logprobs]
            output.logprobs = [] if output.logprobs is None else output.logprobs
            output.logprobs += entries  # in place: a copy for each token would cost the square of their number
        output.cumulative_logprob = update.cumulative_logprob
        output.finish_reason, output.stop_reason = update.finish_reason, update.stop_reason
        if update.prompt_logprobs is not None:
            self.result.prompt_logprobs = [None, *(_as_dict(entry, tokenizer, named=False) for entry in update.prompt_logprobs)]
        output.text += update.text
        self._unread += update.text


def _as_dict(entry: TokenLogprobs, tokenizer: Tokenizer, *, named: bool) -> dict[int, Logprob]:
    """The likeliest tokens in order, the one that stands there among them or last. With ``named`` that one first, then those
    that the request names, of which no rank is known."""
    own = Logprob(entry.logprob, entry.rank, tokenizer.token_text(entry.token_id))
    found = {entry.token_id: own} if named else {}
    for rank, (token, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), 1):
        found.setdefault(token, Logprob(logprob, None if named else rank, tokenizer.token_text(token)))
    found.setdefault(entry.token_id, own)
    return found


class LLM:
    """A model, ready to generate. Every field of ``octavo.config.EngineConfig`` is a keyword.

    ``reasoning_parser`` says how the model marks its reasoning (``qwen3`` or ``deepseek_r1``): structured outputs then begin
    behind it, and ``SamplingParams.thinking_token_budget`` can bound it. It stays part of the text.

    Raises:
        ConfigError: the configuration cannot work, in one line that says what to change.
    """

    def __init__(self, model: str | os.PathLike[str], *, reasoning_parser: str | None = None, **config: Any) -> None:
        if reasoning_parser is not None and reasoning_parser not in STYLES:
            raise ConfigError(f"reasoning_parser must be one of {', '.join(sorted(STYLES))}, got {reasoning_parser!r}")
        self._style = None if reasoning_parser is None else STYLES[reasoning_parser]
        known = {field.name for field in msgspec.structs.fields(EngineConfig)}
        for name in config:
            if name not in known:
                raise ConfigError(f"LLM has no argument {name!r}; it has: {', '.join(sorted(known))}")
        if isinstance(config.get("pin_prefix"), str):
            config["pin_prefix"] = (config["pin_prefix"],)
        if config.get("max_model_len") in (-1, "auto"):
            config["max_model_len"] = None
        given = {"model": model, **config}
        plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
        self.config = resolved(configured(EngineConfig, plain))
        frontend = open_frontend(self.config)
        prefixes = read_prefixes(self.config.pin_prefix, frontend.tokenizer)
        loaded = load(self.config)
        self.facts = loaded.facts
        self.max_model_len = loaded.max_model_len
        self._engine = loaded.engine
        self._grammars = loaded.grammars
        pin_prefixes(self._engine, self.config, prefixes)
        self._tokenizer: Tokenizer = frontend.tokenizer
        self._model_config = loaded.model_config
        self._request_ids = count()
        self._pending: dict[str, _Pending] = {}

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own recommendations (generation_config.json) over Octavo's defaults."""
        return SamplingParams(**self._model_config.default_sampling)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt; the outputs come in the order of the prompts.

        A prompt is text, a list of token ids, or a dict with ``prompt`` or ``prompt_token_ids``. One ``SamplingParams`` serves
        all prompts, or each has its own. The seed of a prompt without one follows from the engine's seed and its place in
        the list, so a program gives the same outputs each time it runs.

        Raises:
            ParameterError: a prompt or a parameter cannot be honoured; nothing is generated then.
        """
        listed = _listed(prompts)
        params = self._params_for(listed, sampling_params)
        if priority is not None and len(priority) != len(listed):
            raise ParameterError(f"{len(listed)} prompts, but {len(priority)} priorities", param="priority")
        items: list[_Pending] = []
        try:
            for index, (prompt, one) in enumerate(zip(listed, params, strict=True)):
                items.append(self._enqueue(prompt, one, seed_index=index, priority=priority[index] if priority else 0))
            self._finish(items, use_tqdm=use_tqdm)
        finally:
            for item in items:
                self._drop(item)
        return [item.result for item in items]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template. ``tools`` are shown to the model; calls are
        part of the text, as it writes them."""
        several = [messages] if messages and isinstance(messages[0], dict) else list(messages)
        prompts = []
        for conversation in several:
            text = self._tokenizer.apply_chat_template(
                conversation,  # type: ignore[arg-type]  # narrowed above: a list of messages
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                template_kwargs=chat_template_kwargs,
            )
            prompts.append({"prompt": text, "prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream_chat(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Answer one conversation piece by piece; with ``best_of`` the whole answer comes at its end. Closing the iterator ends
        the request.

        Raises:
            ParameterError: the messages or a parameter cannot be honoured; more than one answer is asked for.
        """
        params = sampling_params or self.get_default_sampling_params()
        if params.n > 1:
            raise ParameterError(f"stream_chat gives one answer: n must be 1, got {params.n}", param="n", value=params.n)
        text = self._tokenizer.apply_chat_template(messages)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        item = self._enqueue({"prompt": text, "prompt_token_ids": ids}, params, seed_index=0, priority=0)
        try:
            while True:
                if piece := item.read():
                    yield piece
                elif item.finished:
                    return
                elif item.lost:
                    raise RuntimeError("a step in which this answer was computed has failed, or was interrupted: ask again")
                else:
                    self._step()
        finally:
            self._drop(item)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        use_tqdm: bool = False,
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of every prompt, by beam search; the outputs come in the order of the prompts.

        Raises:
            ParameterError: a prompt or a parameter cannot be honoured; nothing is generated then.
        """
        several = [params.sampling_params()] if isinstance(params, BeamSearchParams) else [p.sampling_params() for p in params]
        results = self.generate(prompts, several[0] if isinstance(params, BeamSearchParams) else several, use_tqdm=use_tqdm)
        return [self._as_beams(result, several[min(index, len(several) - 1)]) for index, result in enumerate(results)]

    def _as_beams(self, result: RequestOutput, params: SamplingParams) -> BeamSearchOutput:
        sequences = []
        for output in result.outputs:
            if params.beam is None or output.cumulative_logprob is None:  # fewer beams exist than were asked for
                continue
            tokens = result.prompt_token_ids + output.token_ids
            sequences.append(
                BeamSearchSequence(
                    tokens=tokens,
                    text=self._tokenizer.decode(tokens, skip_special_tokens=params.skip_special_tokens),
                    cum_logprob=output.cumulative_logprob,
                    score=params.beam.score(output.cumulative_logprob, len(output.token_ids)),
                    logprobs=output.logprobs,
                    finish_reason=output.finish_reason,
                    stop_reason=output.stop_reason,
                )
            )
        return BeamSearchOutput(
            request_id=result.request_id,
            prompt=result.prompt,
            prompt_token_ids=result.prompt_token_ids,
            sequences=sequences,
            metrics=result.metrics,
        )

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix but the pinned ones."""
        self._engine.scheduler.kv.forget_cached()

    def pin_prefix(self, prefix: str | Sequence[int] | Sequence[Message]) -> int:
        """Compute a prefix (text, token ids, or the messages that chats begin with) and keep its KV blocks on the device until
        it is unpinned: no memory pressure evicts them. Returns how many tokens they hold, a multiple of ``block_size``.

        Raises:
            ParameterError: there is nothing to pin, or no room would be left for a sequence of ``max_model_len``.
        """
        return self._engine.pin_prefix(self._prefix_ids(prefix))

    def unpin_prefix(self, prefix: str | Sequence[int] | Sequence[Message]) -> bool:
        """Let the blocks of a pinned prefix be evicted like any others. Returns whether it was pinned."""
        return self._engine.unpin_prefix(self._prefix_ids(prefix))

    def _prefix_ids(self, prefix: str | Sequence[int] | Sequence[Message]) -> list[int]:
        if isinstance(prefix, str):
            return text_prefix(self._tokenizer, prefix)
        if prefix and isinstance(prefix[0], dict):
            return chat_prefix(self._tokenizer, prefix)  # type: ignore[arg-type]  # narrowed by its first item
        ids = [int(token) for token in prefix]  # type: ignore[arg-type]  # narrowed by its first item
        self._check_against_model(ids, SamplingParams())
        return ids

    def shutdown(self) -> None:
        """Compute what has been planned; the engine cannot be used any more."""
        self._engine.shutdown()

    def _enqueue(self, prompt: Prompt, params: SamplingParams, *, seed_index: int, priority: int) -> _Pending:
        text, ids = self._prompt_ids(prompt)
        self._check_against_model(ids, params)
        self._check_grammar(params)
        thinking = self._thinking(ids, params)
        if thinking is None and params.thinking_token_budget is not None:  # the prompt has ended the reasoning
            params = msgspec.structs.replace(params, thinking_token_budget=None)
        request = Request(
            id=f"request-{next(self._request_ids)}",
            prompt_token_ids=ids,
            params=params,
            thinking=thinking,
            seed=params.seed if params.seed is not None else (self.config.seed << 32) + seed_index,
            arrival_time=time.monotonic(),
            priority=priority,
            bad_words_token_ids=self._tokenizer.bad_words_ids(params.bad_words or ()),
        )
        self._engine.add(request)
        item = self._pending[request.id] = _Pending(request, text, self._tokenizer)
        return item

    def _thinking(self, ids: list[int], params: SamplingParams) -> Thinking | None:
        """How an output that is confined reasons first, if it may."""
        if not params.is_confined:
            return None
        if self._style is None:
            if params.thinking_token_budget is not None:
                message = "thinking_token_budget needs LLM(..., reasoning_parser=...), which says how the model reasons"
                raise ParameterError(message, param="thinking_token_budget")
            return None
        text = self._tokenizer.decode(ids[-LONGEST_TAIL:], skip_special_tokens=False)
        return thinking_in(self._style, inside=text_leaves_open(text))

    def _prompt_ids(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self._tokenizer.encode(prompt)
        if isinstance(prompt, dict):
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), list(prompt["prompt_token_ids"])
            if isinstance(prompt.get("prompt"), str):
                return prompt["prompt"], self._tokenizer.encode(prompt["prompt"])
            raise ParameterError("a prompt dict needs 'prompt' or 'prompt_token_ids'", param="prompt")
        return None, [int(token) for token in prompt]

    def _check_against_model(self, ids: list[int], params: SamplingParams) -> None:
        vocab_size = self._model_config.vocab_size
        for token in ids:
            if not 0 <= token < vocab_size:
                raise ParameterError(f"Token id {token} is out of vocabulary", param="prompt", value=token)
        params.check_against(vocab_size=vocab_size, max_logprobs=self.config.max_logprobs)

    def _check_grammar(self, params: SamplingParams) -> None:
        if params.structured_outputs is None:
            return
        try:
            self._grammars.compile(params.structured_outputs, ends=True).result()
        except GrammarError as error:
            field = f"structured_outputs.{params.structured_outputs.field}"
            raise ParameterError(f"{field}: {error}", param=field) from None

    def _params_for(
        self, prompts: list[Prompt], given: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if given is None:
            return [self.get_default_sampling_params()] * len(prompts)
        if isinstance(given, SamplingParams):
            return [given] * len(prompts)
        if len(given) != len(prompts):
            raise ParameterError(f"{len(prompts)} prompts, but {len(given)} sampling parameters", param="sampling_params")
        return list(given)

    def _finish(self, items: list[_Pending], *, use_tqdm: bool) -> None:
        """Step until all of them are finished."""
        bar = _ProgressBar(len(items)) if use_tqdm else None
        left = {item.request.id for item in items}
        while left:
            for delta, item, ends in self._step():
                if delta.request_id in left:
                    if ends:
                        left.remove(delta.request_id)
                    if bar is not None:
                        bar.update(delta, item, ends=ends)
        if bar is not None:
            bar.close()

    def _step(self) -> list[tuple[TokenDelta, _Pending, bool]]:
        """What a step has brought, for whom, and whether it ends the request: streams may be under way beside whatever else is
        asked. All of it has been taken when this returns; if anything interrupts before, nobody who may have been in the step
        can go on."""
        brought: list[tuple[TokenDelta, _Pending, bool]] = []
        try:
            for delta in self._engine.step():
                item = self._pending.get(delta.request_id)
                if item is None or item.finished:
                    continue
                if item.take(delta):
                    item.result.metrics = self._engine.abort(delta.request_id, delta.branch) or item.result.metrics
                brought.append((delta, item, item.finished))
        except BaseException:
            for waiting in self._pending.values():
                waiting.lost = True
                self._engine.abort(waiting.request.id)
            raise
        return brought

    def _drop(self, item: _Pending) -> None:
        """Forget a request, finished or not."""
        if not item.finished:
            self._engine.abort(item.request.id)
        del self._pending[item.request.id]


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or several, as a list."""
    if isinstance(prompts, str | dict):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [items]  # type: ignore[list-item]  # a single prompt of token ids
    return items  # type: ignore[return-value]


class _ProgressBar:
    """Finished requests, and the speed of input and output so far."""

    def __init__(self, num_prompts: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=num_prompts, desc="Processed prompts", unit="req", dynamic_ncols=True)
        self._start = time.monotonic()
        self._input = self._output = 0

    def update(self, delta: TokenDelta, item: _Pending, *, ends: bool) -> None:
        self._output += len(delta.token_ids)
        if ends:
            self._input += len(item.request.prompt_token_ids)
            seconds = max(time.monotonic() - self._start, 1e-9)
            speed = f"input {self._input / seconds:.1f} tokens/s, output {self._output / seconds:.1f} tokens/s"
            self._bar.set_postfix_str(speed, refresh=False)
            self._bar.update()

    def close(self) -> None:
        self._bar.close()
