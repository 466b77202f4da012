"""Asks a server one thing again and again, from an interpreter that does nothing else, so that what is slow is the server.

``python prober.py HOST PORT PATH`` until its standard input ends; then one JSON line: how often, and the slowest.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

_INTERVAL = 0.05
_NICENESS = -5


@dataclass
class Probed:
    """``slowest`` and ``typical`` (the median) in seconds from the request to the end of its answer."""

    count: int
    slowest: float
    typical: float
    statuses: list[int]


class Prober:
    """A process that probes while this is entered. ``found`` is there afterwards."""

    def __init__(self, url: str, path: str = "/healthz/live") -> None:
        parts = urlsplit(url)
        self._command = [sys.executable, __file__, str(parts.hostname), str(parts.port), path]
        self.found = Probed(0, 0.0, 0.0, [])

    def __enter__(self) -> "Prober":
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline() == "probing\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.found = Probed(**json.loads(self._process.communicate(timeout=60)[0]))


def _ask(sock: socket.socket, request: bytes) -> int:
    """The status of one answer, all of which has been read."""
    sock.sendall(request)
    got = b""
    while b"\r\n\r\n" not in got:
        got += _more(sock)
    head, _, body = got.partition(b"\r\n\r\n")
    lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < lengths[0]:
        body += _more(sock)
    return int(head.split()[1])


def _more(sock: socket.socket) -> bytes:
    piece = sock.recv(4096)
    assert piece, "the server closed the connection of its prober"
    return piece


def main(host: str, port: int, path: str) -> None:
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    request = f"GET {path} HTTP/1.1\r\nhost: prober\r\n\r\n".encode()
    took: list[float] = []
    statuses: set[int] = set()
    with socket.create_connection((host, port), timeout=60) as sock:
        print("probing", flush=True)
        while not select.select([sys.stdin], [], [], _INTERVAL)[0]:
            begin = time.monotonic()
            statuses.add(_ask(sock, request))
            took.append(time.monotonic() - begin)
    took.sort()
    found = {"count": len(took), "slowest": took[-1] if took else 0.0, "typical": took[len(took) // 2] if took else 0.0}
    print(json.dumps({**found, "statuses": sorted(statuses)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
