"""What ``octavo bench serve`` and ``octavo bench sweep`` may be asked; names and defaults are those of ``vllm bench serve``.

Plain data, imports nothing of octavo but its errors: the command line reads it before anything heavy is loaded. Lengths are in
tokens, rates in requests per second, times in milliseconds where a name does not say otherwise.
"""

import math
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.config import ConfigError
from octavo.server_url import server_url

Positive = Annotated[int, Meta(ge=1)]
METRICS = ("ttft", "tpot", "itl", "e2el")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
_HEADER_VALUE = r"[\x20-\x7e]*"
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The server, the requests, and what is reported of them."""

    base_url: Annotated[str | None, Meta(description="of the server, without /v1; default: http://HOST:PORT")] = None
    host: Annotated[str, Meta(description="of the server, without --base-url")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, description="of the server, without --base-url")] = 8000
    backend: Annotated[
        Literal["openai", "vllm", "openai-chat"], Meta(description="what the server speaks: completions (both), or chat")
    ] = "openai"
    endpoint: Annotated[
        str | None, Meta(description="completions, chat, or the path of a route of either kind; default: by --backend")
    ] = None
    model: Annotated[str | None, Meta(description="name that the server calls the model; default: its first")] = None
    served_model_name: Annotated[str | None, Meta(description="name to send in requests instead of --model")] = None
    tokenizer: Annotated[
        str | None,
        Meta(description="alias, directory, .gguf file or hub id that counts tokens; default: the server's /tokenize"),
    ] = None
    api_key: Annotated[str | None, Meta(description="key for the server")] = None
    header: Annotated[tuple[str, ...], Meta(description="header to send, as NAME=VALUE; may be given several times")] = ()
    insecure: Annotated[bool, Meta(description="do not check the server's certificate")] = False

    dataset_name: Annotated[
        Literal["sharegpt", "random", "prefix_repetition"], Meta(description="where prompts and lengths come from")
    ] = "random"
    dataset_path: Annotated[str | None, Meta(description="ShareGPT JSON file; default: a packaged one")] = None
    num_prompts: Annotated[Positive, Meta(description="requests to send")] = 1000
    seed: Annotated[int, Meta(ge=0, description="of prompts and arrivals: the same seed, the same work")] = 0
    random_input_len: Annotated[Positive, Meta(description="random: tokens of a prompt")] = 1024
    random_output_len: Annotated[Positive, Meta(description="random: tokens to generate")] = 128
    random_range_ratio: Annotated[
        float, Meta(ge=0, lt=1, description="random: lengths are drawn from this part below to this part above")
    ] = 0.0
    random_prefix_len: Annotated[int, Meta(ge=0, description="random: tokens before each prompt that all have in common")] = 0
    sharegpt_output_len: Annotated[Positive | None, Meta(description="sharegpt: tokens to generate; default: as answered")] = (
        None
    )
    prefix_repetition_prefix_len: Annotated[Positive, Meta(description="prefix_repetition: tokens of a common prefix")] = 256
    prefix_repetition_suffix_len: Annotated[Positive, Meta(description="prefix_repetition: tokens of each own suffix")] = 256
    prefix_repetition_num_prefixes: Annotated[Positive, Meta(description="prefix_repetition: different prefixes")] = 10
    prefix_repetition_output_len: Annotated[Positive, Meta(description="prefix_repetition: tokens to generate")] = 128

    burstiness: Annotated[
        float, Meta(gt=0, description="shape of the gaps between arrivals; 1: Poisson, below: in bursts, above: evener")
    ] = 1.0
    max_concurrency: Annotated[Positive | None, Meta(description="most requests at a time; the others wait at the client")] = (
        None
    )
    num_warmups: Annotated[int, Meta(ge=0, description="requests before the measured ones, with prompts of their own")] = 0
    ready_check_timeout_sec: Annotated[float, Meta(ge=0, description="seconds to wait for the server to answer")] = 0.0
    ignore_eos: Annotated[
        bool | None, Meta(description="generate on past the end of the text; default: on but for sharegpt")
    ] = None
    temperature: Annotated[float | None, Meta(description="to send; default: the server's own")] = None
    top_p: Annotated[float | None, Meta(description="to send; default: the server's own")] = None
    top_k: Annotated[int | None, Meta(description="to send; default: the server's own")] = None
    min_p: Annotated[float | None, Meta(description="to send; default: the server's own")] = None
    frequency_penalty: Annotated[float | None, Meta(description="to send; default: the server's own")] = None
    presence_penalty: Annotated[float | None, Meta(description="to send; default: the server's own")] = None
    repetition_penalty: Annotated[float | None, Meta(description="to send; default: the server's own")] = None
    extra_body: Annotated[str | None, Meta(description="JSON object of more request fields")] = None

    percentile_metrics: Annotated[str, Meta(description="which times to report, of ttft, tpot, itl, e2el")] = "ttft,tpot,itl"
    metric_percentiles: Annotated[str, Meta(description="which percentiles of them")] = "99"
    goodput: Annotated[
        tuple[str, ...], Meta(description="limits in ms that a good request keeps, of ttft, tpot, e2el, as ttft:500 tpot:50")
    ] = ()
    label: Annotated[str | None, Meta(description="name of this run in its result; default: the backend")] = None
    disable_tqdm: Annotated[bool, Meta(description="no progress line; there is one on a terminal only")] = False
    json: Annotated[bool, Meta(description="print one JSON object")] = False
    output_json: Annotated[str | None, Meta(description="write the JSON object to a file")] = None
    plot: Annotated[str | None, Meta(description="draw the latencies into a file, .svg or .png")] = None

    @property
    def url(self) -> str:
        """Of the server, without a path of its own at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{self.port}").rstrip("/").removesuffix("/v1")

    @property
    def path(self) -> str:
        """Of the route that is measured."""
        asked = self.endpoint or ("chat" if self.backend == "openai-chat" else "completions")
        return _PATHS.get(asked, asked)

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("chat/completions")

    @property
    def kind(self) -> str:
        """Of the server, as results name it."""
        return "openai-chat" if self.is_chat else self.backend

    @property
    def percentiles(self) -> list[float]:
        """Of ``metric_percentiles``. Raises ``ConfigError``."""
        return _percentiles(self.metric_percentiles)

    @property
    def metrics(self) -> list[str]:
        """Of ``percentile_metrics``. Raises ``ConfigError``."""
        names = [name.strip() for name in self.percentile_metrics.split(",") if name.strip()]
        for name in names:
            if name not in METRICS:
                raise ConfigError(f"--percentile-metrics: {name!r} is not one of {', '.join(METRICS)}")
        return names

    @property
    def limits(self) -> dict[str, float]:
        """Of ``goodput``: milliseconds by metric. Raises ``ConfigError``."""
        found = {}
        for given in self.goodput:
            name, _, value = given.partition(":")
            if name not in GOODPUT_METRICS or not re.fullmatch(r"\d+(\.\d+)?", value):
                raise ConfigError(f"--goodput: {given!r} is not METRIC:MS with a metric of {', '.join(GOODPUT_METRICS)}")
            found[name] = float(value)
        return found

    @property
    def headers(self) -> dict[str, str]:
        """To send with every request. Raises ``ConfigError``."""
        found = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        if not re.fullmatch(_HEADER_VALUE, self.api_key or ""):
            raise ConfigError("--api-key: a key is of printable ASCII characters")
        for given in self.header:
            name, equals, value = given.partition("=")
            if not equals or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(_HEADER_VALUE, value):
                raise ConfigError(f"--header: {given!r} is not NAME=VALUE")
            found[name.lower()] = value
        return found

    @property
    def fields(self) -> dict[str, Any]:
        """Request fields that are the same in every request. Raises ``ConfigError``."""
        sampling = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
        found = {name: getattr(self, name) for name in sampling if getattr(self, name) is not None}
        if self.ignore_eos or (self.ignore_eos is None and self.dataset_name != "sharegpt"):
            found["ignore_eos"] = True
        if self.extra_body is not None:
            try:
                found |= msgspec.json.decode(self.extra_body, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise ConfigError(f"--extra-body is no JSON object: {error}") from None
        return found

    def check(self) -> None:
        """Raises ``ConfigError`` for what could not be measured, before anything is."""
        server_url(self.url, flag="--base-url", wanted="give it as http://HOST:PORT")
        if not re.fullmatch(r"/[\x21-\x7e]*", self.path):
            raise ConfigError(f"--endpoint {self.endpoint}: give completions, chat, or a path as /v1/completions")
        if self.dataset_name == "prefix_repetition" and self.num_prompts < self.prefix_repetition_num_prefixes:
            raise ConfigError("--num-prompts must be at least --prefix-repetition-num-prefixes, or no prefix is repeated")
        for part in ("percentiles", "metrics", "limits", "headers", "fields"):
            getattr(self, part)


class ServeOptions(LoadOptions, frozen=True, kw_only=True):
    """Of ``octavo bench serve``."""

    request_rate: Annotated[float, Meta(gt=0, description="requests a second that arrive; inf: all at once")] = math.inf
    save_result: Annotated[bool, Meta(description="write the result to --result-dir, under --result-filename")] = False
    save_detailed: Annotated[bool, Meta(description="with lengths, times, texts and errors of each request")] = False
    result_dir: Annotated[str, Meta(description="directory for --save-result")] = "."
    result_filename: Annotated[str | None, Meta(description="for --save-result; default: LABEL-RATEqps-MODEL-TIME.json")] = None
    metadata: Annotated[tuple[str, ...], Meta(description="more entries of the result, as NAME=VALUE")] = ()

    def check(self) -> None:
        super().check()
        if math.isnan(self.request_rate):
            raise ConfigError("--request-rate must be a number or inf")
        for entry in self.metadata:
            if "=" not in entry:
                raise ConfigError(f"--metadata: {entry!r} is not NAME=VALUE")


class SweepOptions(LoadOptions, frozen=True, kw_only=True):
    """Of ``octavo bench sweep``."""

    request_rates: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="requests a second that arrive, each measured in turn; inf: all at once"),
    ] = ("1", "2", "4", "inf")
    repeat: Annotated[Positive, Meta(description="runs of each rate, each with prompts of its own; the median counts")] = 1

    @property
    def rates(self) -> list[float]:
        """Raises ``ConfigError``."""
        found = []
        for given in self.request_rates:
            try:
                rate = float(given)
            except ValueError:
                rate = math.nan
            if not rate > 0:
                raise ConfigError(f"--request-rates: {given!r} is no rate: give numbers above 0, or inf")
            found.append(rate)
        return found

    def check(self) -> None:
        super().check()
        _ = self.rates


def _percentiles(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 <= value <= 100 for value in found):
        raise ConfigError(f"--metric-percentiles: {text!r} is not a list of numbers from 0 to 100, as 50,90,99")
    return found
