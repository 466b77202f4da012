"""``ServerOptions``: what an operator may choose about the server beside the engine's ``EngineConfig``.

A frozen value, from which the command line derives its flags. Limits can be raised here and nowhere else: no request can.
"""

import contextlib
import ipaddress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from octavo.config import ConfigError

Port = Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0: any free one")]


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``description`` is the help text of the flag of the same name."""

    host: Annotated[str, Meta(description="address to listen on; any but a loopback address needs keys")] = "127.0.0.1"
    port: Port = 8000
    api_key: Annotated[tuple[str, ...], Meta(description="key that clients must send; may be given several times")] = ()
    api_keys_file: Annotated[
        str | None, Meta(description="keys with names, roles and limits, as octavo keys new writes them; read again on SIGHUP")
    ] = None
    insecure_no_auth: Annotated[bool, Meta(description="listen on any address without a key")] = False
    served_model_name: Annotated[
        tuple[str, ...], Meta(description="names that clients may call the model; default: as given, of a path the last part")
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], Meta(description="web pages that may call this server, as https://example.org; *: all; or a JSON list")
    ] = ()
    drain_timeout: Annotated[
        float, Meta(ge=0, description="seconds that running requests get to finish after SIGTERM or Ctrl-C")
    ] = 30.0
    enable_auto_tool_choice: Annotated[
        bool, Meta(description="let the model decide on calls when a request brings tools and says nothing else")
    ] = True
    tool_call_parser: Annotated[
        Literal["auto", "hermes", "llama3_json", "mistral", "pythonic"],
        Meta(description="how the model writes calls; auto: as its chat template says"),
    ] = "auto"
    reasoning_parser: Annotated[
        Literal["deepseek_r1", "qwen3"] | None,
        Meta(description="how the model marks its reasoning, to answer with it apart; default: it is part of the content"),
    ] = None
    structured_outputs_in_reasoning: Annotated[
        bool, Meta(description="let a form hold from the first token on; with one, nothing is reasoning then")
    ] = False
    disable_fastapi_docs: Annotated[bool, Meta(description="do not serve /docs, /redoc and /openapi.json")] = False
    strict: Annotated[bool, Meta(description="refuse unknown request fields instead of answering with a warning")] = False
    log_format: Annotated[
        Literal["auto", "json", "text"], Meta(description="of log lines; auto: text on a terminal, else JSON")
    ] = "auto"
    usage_log: Annotated[str | None, Meta(description="append what each request used to this file, as JSON lines")] = None
    otlp_traces_endpoint: Annotated[
        str | None, Meta(description="send a trace of each request to this OpenTelemetry collector; needs octavo[otel]")
    ] = None
    enable_force_include_usage: Annotated[
        bool, Meta(description="report usage in every chunk of every stream, asked for or not")
    ] = False
    enable_prompt_tokens_details: Annotated[bool, Meta(description="report cached prompt tokens in usage")] = False
    max_num_queued_reqs: Annotated[int, Meta(ge=1, description="requests that may wait for a first token before 503")] = 512
    max_num_queued_tokens: Annotated[
        int, Meta(ge=1, description="prompt tokens that may wait for a first token before 503")
    ] = 2 * 1024 * 1024
    max_body_bytes: Annotated[int, Meta(ge=1024, description="longest request body")] = 4 * 1024 * 1024
    max_header_bytes: Annotated[int, Meta(ge=1024, description="longest request line and headers together")] = 16 * 1024
    max_json_depth: Annotated[int, Meta(ge=8, le=512, description="deepest nesting of a request body")] = 64
    max_messages: Annotated[int, Meta(ge=1, description="most messages in a chat, and calls in one of them")] = 2048
    max_prompts: Annotated[int, Meta(ge=1, description="most prompts in a completion request")] = 64
    write_timeout: Annotated[float, Meta(gt=0, description="seconds that a client may read nothing of what was sent")] = 60.0
    read_timeout: Annotated[
        float, Meta(gt=0, description="seconds that a client may take to send headers, or pause in a body")
    ] = 30.0

    inject_faults: Annotated[bool, Meta(description="for tests: let requests ask to fail; on loopback addresses only")] = False

    def __post_init__(self) -> None:
        """vLLM takes the origins as a JSON list."""
        text = ",".join(self.allowed_origins)  # which a variable of the environment was cut at
        if text.startswith("["):
            with contextlib.suppress(msgspec.MsgspecError):
                msgspec.structs.force_setattr(self, "allowed_origins", msgspec.json.decode(text, type=tuple[str, ...]))

    def check(self) -> None:
        """Raises ``ConfigError`` for choices that are each legal but not together."""
        if any(not key.strip() for key in self.api_key):
            raise ConfigError("--api-key must not be empty")
        odd = [origin for origin in self.allowed_origins if origin != "*" and "://" not in origin]
        if odd:
            raise ConfigError(f"--allowed-origins: {odd[0]!r} is no origin, as https://example.org, nor *")
        if self.inject_faults and not _is_loopback(self.host):
            raise ConfigError("--inject-faults is for tests, and only for a loopback --host")
        has_keys = bool(self.api_key) or self.api_keys_file is not None
        if not has_keys and not self.insecure_no_auth and not _is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} can be reached from other machines: "
                "set --api-key (or OCTAVO_API_KEY) or --api-keys-file, or pass --insecure-no-auth"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
