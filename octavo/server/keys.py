"""The keys file: who may use the server, and how much. JSON, written by hand or by ``octavo keys new``.

A key is 256 random bits, so that its plain SHA-256 cannot be searched for: a slow, salted hash would add nothing but a way to
keep the server busy with wrong keys. The file never holds a key. Knows no request; ``auth`` applies what is read here.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from octavo.config import ConfigError

Role = Literal["user", "admin", "metrics"]
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
Limit = Annotated[int, Meta(ge=1, le=2**53)]
PREFIX = "sk-octavo-"
_MAX_FILE = 16 * 1024 * 1024


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key. A limit that is None does not hold. ``cache_scope`` None: the prefix cache of this name alone; keys with equal
    scopes share cached prefixes, and an empty one shares those of everybody without a scope, pinned ones too. ``priority``:
    lower is served first, under ``--scheduling-policy priority``."""

    name: Name
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    role: Role = "user"
    max_concurrency: Limit | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    cache_scope: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{0,64}\Z")] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] = 0


class KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[Key] = []


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key).digest()


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def read_keys(path: str) -> tuple[Key, ...]:
    """The keys of a file. Raises ``ConfigError`` naming the file and the field."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"--api-keys-file {path}: {os.strerror(error.errno or 0).lower()}") from None
    if len(content) > _MAX_FILE:
        raise ConfigError(f"--api-keys-file {path}: larger than {_MAX_FILE} bytes")
    try:
        keys = msgspec.json.decode(content, type=KeysFile).keys
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-keys-file {path}: {error}") from None
    for what in ("name", "sha256"):
        values = [getattr(key, what) for key in keys]
        seen: set[str] = set()
        for value in values:
            if value in seen:
                raise ConfigError(f"--api-keys-file {path}: two keys have the {what} {value}")
            seen.add(value)
    return tuple(keys)


def add_key(path: str, key: Key, *, show: Callable[[], None] = lambda: None) -> None:
    """Appends ``key`` to a file, which is made if need be, readable by its owner alone. ``show`` is called when nothing but the
    change itself is left to do: what it raises leaves the file as it was. Raises ``ConfigError``."""
    file = Path(os.path.realpath(path))  # a link stays one
    with _locked(file.parent):
        known = read_keys(path) if file.exists() else ()
        if any(other.name == key.name for other in known):
            raise ConfigError(f"{path} has a key named {key.name} already: choose another name, or take that entry out")
        body = msgspec.json.format(msgspec.json.encode(KeysFile([*known, key])), indent=2) + b"\n"
        _replace(file, body, show)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """While inside, nobody else changes a keys file in ``directory``, as far as that can be opened and knows locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, held)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _replace(path: Path, body: bytes, show: Callable[[], None]) -> None:
    """All of it or nothing: a server may read the file at any moment."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write_beside(beside, body, like=path)
        show()
        os.replace(beside, path)
    except OSError as error:
        raise ConfigError(f"{path}: {os.strerror(error.errno or 0).lower()}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _write_beside(beside: Path, body: bytes, *, like: Path) -> None:
    """A new file with the mode of ``like``, if that exists, and as far as allowed its owner: the server may be another user."""
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        if like.exists():
            known = like.stat()
            os.fchmod(file.fileno(), known.st_mode & 0o777)
            for owner in ((-1, known.st_gid), (known.st_uid, -1)):
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), *owner)
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
