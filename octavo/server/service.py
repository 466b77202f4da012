"""What every route needs, in one value: the engine client, the tokenizer, the limits, the books.

Turns a client's prompts and fields into engine requests; the shapes of answers are the routes' business.
"""

import asyncio
import functools
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request as HttpRequest

from octavo import __version__
from octavo.config import EngineConfig
from octavo.request import Request, Thinking
from octavo.sampling_params import StructuredOutputsParams
from octavo.server import aside, errors, faults, params, structured
from octavo.server.accounting import RequestRecord, ServerMetrics
from octavo.server.auth import Keyring
from octavo.server.engine_client import EngineClient
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, Prompt
from octavo.server.grammar_checker import GrammarChecker
from octavo.server.names import ModelNames
from octavo.server.options import ServerOptions
from octavo.server.params import ModelLimits
from octavo.server.prompt_text import TextEncoder
from octavo.server.protocol import MAX_ID, ChatRequest, CompletionRequest, Message, SamplingFields, StreamOptions
from octavo.server.replies import Envelope
from octavo.server.request_log import Log
from octavo.server.status import Status
from octavo.server.tools import detect
from octavo.server.traces import Traces
from octavo.server.usage_log import UsageLog
from octavo.tokenizer import Tokenizer

if TYPE_CHECKING:
    from octavo import build

_ID = re.compile(r"[\x21-\x7e]+")


class ServedModel(msgspec.Struct, frozen=True):
    """What the API process knows of the model."""

    tokenizer: Tokenizer
    encoder: TextEncoder
    limits: ModelLimits
    fingerprint: str
    grammars: GrammarChecker
    cache_facts: dict[str, str]
    """How the KV cache is set up, for /metrics."""
    call_format: str | None
    """How the model writes calls of tools, where its chat template leaves no doubt."""

    @staticmethod
    def build(front: "build.Frontend", config: EngineConfig) -> "ServedModel":
        tokenizer, model = front.tokenizer, front.model_config
        limits = ModelLimits(
            vocab_size=model.vocab_size,
            max_model_len=front.max_model_len,
            max_logprobs=config.max_logprobs,
            default_sampling=model.default_sampling,
            priority_scheduling=config.scheduling_policy == "priority",
        )
        arithmetic = (config.dtype, config.quantization, config.activation_bits, config.kv_cache_dtype)
        digest = hashlib.sha256(msgspec.json.encode((model, *arithmetic, config.load_format)))
        fingerprint = f"octavo-{__version__}-{digest.hexdigest()[:8]}"
        template = tokenizer.chat_template
        calls = None if template is None else detect(template.source(with_tools=True))
        cache_facts = {
            "block_size": str(config.block_size),
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": str(config.enable_prefix_caching and config.kv_allocation == "paged"),
        }
        return ServedModel(
            tokenizer, TextEncoder(tokenizer), limits, fingerprint, GrammarChecker(front.vocabulary), cache_facts, calls
        )


class Service:
    """One server. ``served`` is None until the tokenizer has been read. ``answering``: requests that generate and have not
    been answered to the end."""

    def __init__(
        self,
        *,
        options: ServerOptions,
        names: ModelNames,
        client: EngineClient,
        status: Status,
        log: Log,
        served: ServedModel | None = None,
        keys: Keyring | None = None,
        usage_log: UsageLog | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.options = options
        self.keys = keys or Keyring.of(options)
        self.usage_log = usage_log
        self.traces = traces
        self.names = names.listed
        self._accepted_names = names.accepted
        self.client = client
        self.status = status
        self.log = log
        self.served = served
        self.metrics = ServerMetrics()
        self.created = int(time.time())
        self.answering = 0

    def loaded(self) -> ServedModel:
        """The served model. Raises ``ApiError`` 503 while the server cannot take a request."""
        if self.status.draining:
            raise errors.draining()
        if self.served is None or not self.status.engine_up:
            raise errors.not_ready(self.status.phase)
        return self.served

    def model_name(self, asked: str | None) -> str:
        """The served name. Raises ``ApiError`` 404 for a model that is not here."""
        if not asked or asked in self._accepted_names:
            return self.names[0]
        if asked not in self.names:
            message = f"The model `{asked[:MAX_ID]}` does not exist. Valid aliases: {', '.join(self.names)}."
            raise ApiError(404, message, param="model")
        return asked

    def request_id(self, http: HttpRequest, prefix: str, asked: str | None) -> str:
        """The id of a response: ``prefix``, and the id in the body or the request's own (the ``X-Request-Id`` header's, or a
        new one)."""
        if asked and not _ID.fullmatch(asked):
            raise errors.invalid("request_id must be printable ASCII without spaces.", "request_id")
        return f"{prefix}{asked or http.scope['state']['request_id']}"

    def accept(
        self, http: HttpRequest, request: ChatRequest | CompletionRequest, *, prefix: str, warnings: list[str]
    ) -> Envelope:
        """What every part of the answer says. Raises ``ApiError`` for a request that cannot be honoured, before anything is
        built for it."""
        served = self.loaded()
        model = self.model_name(request.model)
        if (priority := http.headers.get("x-vllm-priority")) is not None:
            request.priority = params.priority_of(priority)
        params.check_supported(request, reasons=self.options.reasoning_parser is not None)
        if self.options.enable_force_include_usage and request.stream:
            asked = request.stream_options or StreamOptions()
            request.stream_options = msgspec.structs.replace(asked, include_usage=True, continuous_usage_stats=True)
        params.check_combinations(request, served.limits, strict=self.options.strict)
        return Envelope(
            id=self.request_id(http, prefix, request.request_id),
            created=int(time.time()),
            model=model,
            fingerprint=served.fingerprint,
            warnings=[*warnings, *params.without_effect(request, served.limits)] or msgspec.UNSET,
            cached_details=self.options.enable_prompt_tokens_details,
        )

    async def check_form(self, request: SamplingFields, http: HttpRequest) -> None:
        """Raises ``ApiError`` for a form of the answer that cannot be had: a bad schema, regex or grammar."""
        if (form := structured.wanted(request)) is not None:
            faults.point("grammar")
            await self.check_grammar(form, http)

    async def check_grammar(self, form: structured.Wanted, http: HttpRequest) -> None:
        """Raises ``ApiError`` for a form that cannot be had. It is looked at in the turn of the client who sent ``http``."""
        await self.loaded().grammars.check(form, http.scope["state"]["client"].name or "")

    async def encode_prompts(self, texts: Sequence[str], request: SamplingFields, *, special: bool) -> list[list[int]]:
        """Token ids of each text, cut where the request says so. Raises ``ApiError`` for one that cannot fit."""
        faults.point("tokenize")
        served = self.loaded()
        limit = served.limits.max_model_len if request.truncate_prompt_tokens is None else None
        found = await served.encoder.encode(texts, add_special_tokens=special, limit=limit)
        return [params.truncated(token_ids, request, served.limits) for token_ids in found]

    async def prompt_offsets(
        self, texts: Sequence[str], request: SamplingFields, *, special: bool
    ) -> list[list[tuple[int, int]]]:
        """The characters of each token that ``encode_prompts`` gave."""
        served = self.loaded()
        found = await served.encoder.offsets(texts, add_special_tokens=special)
        return [params.truncated(offsets, request, served.limits) for offsets in found]

    async def render(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool | None,
        continue_final_message: bool | None,
        template_kwargs: dict[str, Any] | None,
        warn: Callable[[str], None],
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
    ) -> str:
        """The prompt text of a conversation, by the model's template. ``warn`` takes the warnings that it deserves. Raises
        ``ApiError`` or ``ParameterError``."""
        limit = self.options.max_messages
        if len(messages) > limit:
            raise errors.invalid(f"messages must have at most {limit} entries, got {len(messages)}.", "messages")
        if (calls := max((len(message.tool_calls or ()) for message in messages), default=0)) > limit:
            raise errors.invalid(f"messages must have at most {limit} tool_calls each, got {calls}.", "messages")
        faults.point("template")
        continued = bool(continue_final_message)
        if continued and add_generation_prompt:
            message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            raise errors.invalid(message, "continue_final_message")
        # Clients of the field's servers leave add_generation_prompt at its default when they continue a message.
        generate = not continued if add_generation_prompt is None else add_generation_prompt
        tokenizer = self.loaded().tokenizer

        def text() -> str:
            return tokenizer.apply_chat_template(
                [msgspec.to_builtins(message) for message in messages],
                add_generation_prompt=generate,
                continue_final_message=continued,
                template_kwargs=template_kwargs,
                tools=tools,
                documents=documents,
                warn=None if self.options.strict else warn,
            )

        return await asyncio.to_thread(text)

    async def generation(
        self,
        request: CompletionRequest | ChatRequest,
        prompts: list[Prompt],
        *,
        http: HttpRequest,
        request_id: str,
        prompt_logprobs: int | None,
        thinking: Sequence[Thinking | None],
        structured_outputs: StructuredOutputsParams | None = None,
        prompt_only: bool = False,
    ) -> Generation:
        """Everything checked and ready to submit. ``thinking`` has an entry for each prompt. ``structured_outputs`` go before
        what the request itself asks its text to be. ``prompt_only``: see ``Generation``. Raises ``ApiError`` or
        ``ParameterError``."""
        served = self.loaded()
        arrival = http.scope["state"]["arrival"]

        def engine_requests() -> list[Request]:
            asked = functools.partial(self._engine_request, request, http, prompt_logprobs, structured_outputs)
            return [asked(prompt, thought) for prompt, thought in zip(prompts, thinking, strict=True)]

        requests = await aside.run(params.size(request) * len(prompts) > aside.MANY_ENTRIES, engine_requests)
        model = self.model_name(request.model)
        operation = "chat" if isinstance(request, ChatRequest) else "text_completion"
        record = RequestRecord(
            request_id=request_id, model=model, operation=operation, arrival=arrival, stream=bool(request.stream)
        )
        generation = Generation(
            requests,
            client=self.client,
            tokenizer=served.tokenizer,
            metrics=self.metrics,
            record=record,
            log=self.log,
            prompt_only=prompt_only,
        )
        http.scope["state"]["generation"] = generation
        if (ticket := http.scope["state"].get("ticket")) is not None:
            ticket.reserve(record.prompt_tokens)
        return generation

    def _engine_request(
        self,
        request: CompletionRequest | ChatRequest,
        http: HttpRequest,
        prompt_logprobs: int | None,
        structured_outputs: StructuredOutputsParams | None,
        prompt: Prompt,
        thinking: Thinking | None,
    ) -> Request:
        """The engine's ids are its own: two clients may send the same id."""
        served, client = self.loaded(), http.scope["state"]["client"]
        params.check_prompt(prompt.token_ids, served.limits)
        sampling = params.build(
            request, prompt_length=len(prompt.token_ids), limits=served.limits, prompt_logprobs=prompt_logprobs
        )
        if structured_outputs is not None:
            sampling = msgspec.structs.replace(sampling, structured_outputs=structured_outputs)
        if thinking is None:  # there is nothing left to bound
            sampling = msgspec.structs.replace(sampling, thinking_token_budget=None)
        bad_words = sampling.bad_words
        return Request(
            id=os.urandom(16).hex(),
            prompt_token_ids=prompt.token_ids,
            params=sampling,
            seed=faults.seed() or (secrets.randbits(63) if sampling.seed is None else sampling.seed),
            arrival_time=http.scope["state"]["arrival"],
            priority=client.priority(request.priority),
            cache_scope=client.cache_scope(request.cache_salt or ""),
            tenant=client.name or "",
            bad_words_token_ids=served.tokenizer.bad_words_ids(bad_words) if bad_words else (),
            thinking=thinking if sampling.is_confined else None,
        )
