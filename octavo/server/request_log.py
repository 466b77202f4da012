"""Log lines: JSON for machines, text for people, one line an event and one event a request.

Whatever a client wrote is escaped by JSON encoding in both formats, and prompts are never among the fields. A server's lines
are written by a thread (``log_writer``), which is to be waited for before the process ends.
"""

import datetime
import logging
from typing import Any, Literal, TextIO

import msgspec

from octavo.server.log_writer import LogWriter

Level = Literal["info", "warning", "error"]
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""What a terminal or a reader of lines would act on, and JSON encoding leaves as it is."""


class Log:
    """Writes events to one stream."""

    def __init__(self, stream: TextIO | LogWriter, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    @staticmethod
    def to(stream: TextIO, log_format: Literal["auto", "json", "text"]) -> "Log":
        """A server's log, which nobody has to wait to write to. ``auto`` is text where a person is watching."""
        as_json = log_format == "json" or (log_format == "auto" and not stream.isatty())
        line = _json if as_json else _text

        def tell_lost(count: int) -> str:
            return line("warning", "log", f"{count} lines are lost here: nobody read the log", {}) + "\n"

        return Log(LogWriter(stream, tell_lost), as_json=as_json)

    def wait(self, seconds: float) -> None:
        """Until all lines are out, but no longer than that."""
        if isinstance(self._stream, LogWriter):
            self._stream.wait(seconds)

    def plain(self, line: str) -> None:
        """A line as it is, in its place among the others."""
        try:
            self._stream.write(line + "\n")
        except (OSError, ValueError):
            return  # nobody reads the log any more; serving goes on

    def info(self, event: str, message: str = "", **fields: Any) -> None:
        self._write("info", event, message, fields)

    def warning(self, event: str, message: str = "", **fields: Any) -> None:
        self._write("warning", event, message, fields)

    def error(self, event: str, message: str = "", **fields: Any) -> None:
        self._write("error", event, message, fields)

    def _write(self, level: Level, event: str, message: str, fields: dict[str, Any]) -> None:
        self.plain((_json if self._as_json else _text)(level, event, message, fields).translate(_ESCAPES))


def _json(level: Level, event: str, message: str, fields: dict[str, Any]) -> str:
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
