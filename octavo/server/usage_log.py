"""What each key has used, one JSON line a request, appended to a file for whoever writes the bills.

A line is one write, so that several servers may share a file and a reader never sees half of one: what a full disk has taken
of a line is cut off again. The file is opened again when asked, after it was moved away. A disk that is full costs lines, not
requests, and is told of once.
"""

import datetime
import os
from typing import Any

import msgspec

from octavo.config import ConfigError
from octavo.server.accounting import RequestRecord
from octavo.server.request_log import Log


class UsageLog:
    """Raises ``ConfigError`` when the file cannot be opened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._complained = False
        self._torn = False
        self._file = self._open()

    @staticmethod
    def of(path: str | None) -> "UsageLog | None":
        return None if path is None else UsageLog(path)

    def reopen(self) -> None:
        """Goes on in a new file under the same name. Raises ``ConfigError``, and goes on in the old one."""
        old, self._file = self._file, self._open()
        self._torn = self._torn and os.path.samestat(os.fstat(old), os.fstat(self._file))
        os.close(old)

    def write(self, record: RequestRecord, *, charged: bool, key: str | None, path: str, status: int, log: Log) -> None:
        """One request that has ended, however it did. One that is not ``charged`` has used nothing."""
        used = (record.prompt_tokens, record.cached_tokens, record.output_tokens)
        prompt, cached, output = used if charged else (0, 0, 0)
        fields: dict[str, Any] = {
            "ts": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "key": key,
            "request_id": record.request_id,
            "model": record.model,
            "path": path,
            "status": status,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "output_tokens": output,
            "finish_reason": record.outcome,
        }
        line = msgspec.json.encode(fields) + b"\n"
        try:
            if self._append(line):
                return
            reason = "the disk is full"
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
        if not self._complained:
            self._complained = True
            log.error("usage_log", message=f"--usage-log: {reason}; lines are being lost")

    def _append(self, line: bytes) -> bool:
        """Whether all of it is in the file; else nothing of it is, or the next begins a line of its own."""
        line = b"\n" + line if self._torn else line
        written = os.write(self._file, line)
        if written == len(line):
            self._torn = False
            return True
        try:
            end = os.lseek(self._file, 0, os.SEEK_CUR)
            if end == os.fstat(self._file).st_size:  # or another server's line follows
                os.ftruncate(self._file, end - written)
        except OSError:  # a file that can only grow
            self._torn = True
        return False

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"--usage-log {self._path}: {os.strerror(error.errno or 0).lower()}") from None
