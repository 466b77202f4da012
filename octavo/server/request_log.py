"""Log lines: JSON for machines, text for people, one line an event and one event a request.

Whatever a client wrote is escaped by JSON encoding in both formats, and prompts are never among the fields. Writing is
synchronous, so a line is out before the process can end.
"""

import datetime
import logging
from typing import Any, Literal, TextIO

import msgspec

Level = Literal["info", "warning", "error"]


class Log:
    """Writes events to one stream."""

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    @staticmethod
    def to(stream: TextIO, log_format: Literal["auto", "json", "text"]) -> "Log":
        """``auto`` is text where a person is watching."""
        as_json = log_format == "json" or (log_format == "auto" and not stream.isatty())
        return Log(stream, as_json=as_json)

    def info(self, event: str, message: str = "", **fields: Any) -> None:
        self._write("info", event, message, fields)

    def warning(self, event: str, message: str = "", **fields: Any) -> None:
        self._write("warning", event, message, fields)

    def error(self, event: str, message: str = "", **fields: Any) -> None:
        self._write("error", event, message, fields)

    def _write(self, level: Level, event: str, message: str, fields: dict[str, Any]) -> None:
        line = self._json(level, event, message, fields) if self._as_json else _text(level, event, message, fields)
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # nobody reads the log any more; serving goes on

    def _json(self, level: Level, event: str, message: str, fields: dict[str, Any]) -> str:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        record: dict[str, Any] = {"ts": now, "level": level, "event": event}
        if message:
            record["message"] = message
        return msgspec.json.encode({**record, **fields}).decode()


def _text(level: Level, event: str, message: str, fields: dict[str, Any]) -> str:
    begin = "" if level == "info" else f"{level}: "
    shown = " ".join(f"{name}={_value(value)}" for name, value in fields.items() if value is not None)
    if event == "request":
        clock = datetime.datetime.now().strftime("%H:%M:%S")
        return f"{clock} {begin}{shown}"
    return f"{begin}{message}{'  ' + shown if shown else ''}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else msgspec.json.encode(value).decode().strip('"')


class LogBridge(logging.Handler):
    """Brings what libraries log through ``logging`` into the same lines."""

    def __init__(self, log: Log) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        write = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        write("library", record.getMessage(), **fields)
