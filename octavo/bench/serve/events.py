"""What servers of an OpenAI-compatible API stream, as far as clients here read it. Knows no connection."""

from typing import Any

import msgspec


class Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: Delta | None = None

    @property
    def new_text(self) -> str:
        if self.delta is None:
            return self.text or ""
        return self.delta.content or self.delta.reasoning or self.delta.reasoning_content or ""


class UsageCounts(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Event(msgspec.Struct, gc=False):
    """What is read of one event; servers say more."""

    choices: list[Choice] | None = None
    usage: UsageCounts | None = None
    error: Any = None


decode_event = msgspec.json.Decoder(Event).decode


def error_text(body: bytes) -> str:
    """The message of an error answer, whatever its shape."""
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.DecodeError, LookupError, TypeError):
        return body[:200].decode(errors="replace")
