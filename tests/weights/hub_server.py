"""A server that speaks the part of the hub's protocol that downloading a snapshot needs, over one repository."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from tests.serving import serving

COMMIT = "a" * 40
OLDER = "b" * 40


class Hub:
    """``files`` at revision "main", ``older`` at tag "v1". ``requests`` records what was asked."""

    def __init__(self, files: dict[str, bytes], older: dict[str, bytes]) -> None:
        self.snapshots = {COMMIT: files, OLDER: older}
        self.revisions = {"main": COMMIT, "v1": OLDER, COMMIT: COMMIT, OLDER: OLDER}
        self.requests: list[str] = []
        self.endpoint = ""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(send_body=True)

        def do_HEAD(self) -> None:
            self._answer(send_body=False)

        def _answer(self, *, send_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            status, headers, body = respond(hub, path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if send_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with serving(Handler) as hub.endpoint:
        yield hub


Response = tuple[int, dict[str, str], bytes]


def respond(hub: Hub, path: str) -> Response:
    if path.startswith("/api/models/org/gated"):
        return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}, b"{}"
    if path.startswith("/api/models/org/tiny/revision/"):
        return _revision(hub, path.removeprefix("/api/models/org/tiny/revision/"))
    if path.startswith("/api/models/org/tiny/tree/"):
        commit = hub.revisions.get(path.removeprefix("/api/models/org/tiny/tree/"))
        return (404, {"X-Error-Code": "RevisionNotFound"}, b"{}") if commit is None else _json(_tree(hub.snapshots[commit]))
    if path == "/api/models/org/tiny":
        return _revision(hub, "main")
    if path.startswith("/org/tiny/resolve/"):
        return _file(hub, *path.removeprefix("/org/tiny/resolve/").split("/", 1))
    return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"


def _json(value: object) -> Response:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _revision(hub: Hub, revision: str) -> Response:
    commit = hub.revisions.get(revision)
    if commit is None:
        return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
    return _json({"id": "org/tiny", "sha": commit, "siblings": [{"rfilename": name} for name in hub.snapshots[commit]]})


def _tree(files: dict[str, bytes]) -> list[dict[str, object]]:
    return [{"type": "file", "path": name, "size": len(data), "oid": _etag(data)} for name, data in files.items()]


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _file(hub: Hub, revision: str, name: str) -> Response:
    commit = hub.revisions.get(revision)
    data = hub.snapshots.get(commit or "", {}).get(name)
    if commit is None or data is None:
        return 404, {"X-Error-Code": "EntryNotFound"}, b""
    return 200, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit, "X-Linked-Size": str(len(data))}, data
