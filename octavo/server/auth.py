"""Who is asking. Only digests of keys are kept, and every comparison takes the same time whichever key matches or none.

A server without keys is open to everyone who can reach it; a key given by ``--api-key`` opens everything without a limit; the
keys of a file have a role, limits and a part of the prefix cache of their own. The file can be read again while serving.
"""

import hmac
from collections.abc import Iterable

from octavo.config import ConfigError
from octavo.server.keys import Key, Role, digest_of, read_keys
from octavo.server.options import ServerOptions
from octavo.server.rate_limits import KeyLimits

_NO_DIGEST = "0" * 64
METRICS_ROUTES = frozenset({"/metrics", "/load", "/version"})
"""What the role ``metrics`` may see."""
ADMIN_ROUTES = frozenset({"/metrics", "/load"})
"""What the role ``user`` may not."""


class Client:
    """A key that was recognised. ``name`` is None where requests are not told apart."""

    def __init__(self, key: Key, limits: KeyLimits, *, named: bool = True) -> None:
        self.name = key.name if named else None
        self.role: Role = key.role
        self._priority = key.priority
        self.limits = limits
        self._scope = (key.name if key.cache_scope is None else key.cache_scope) if named else ""

    def may_use(self, path: str) -> bool:
        if self.role == "admin":
            return True
        return path in METRICS_ROUTES if self.role == "metrics" else path not in ADMIN_ROUTES

    def priority(self, asked: int | None) -> int:
        """Its place in the queue. Only an administrator may ask for a higher one than the key has."""
        if asked is None:
            return self._priority
        return asked if self.role == "admin" else max(asked, self._priority)

    def cache_scope(self, salt: str) -> str:
        """Whose cached prefixes a request shares. A salt has no slash, so that no client can write another's scope."""
        return f"{self._scope}/{salt}" if self._scope else salt


class Keyring:
    """The keys that open this server; ``is_open``: it needs none."""

    def __init__(self, keys: tuple[str, ...] = (), *, path: str | None = None) -> None:
        self._path = path
        self._limits: dict[str, KeyLimits] = {}
        everyone = Key(name="everyone", sha256=_NO_DIGEST, role="admin")
        self._everyone = Client(everyone, KeyLimits(everyone), named=False)
        self._plain = [(digest_of(key.encode()), self._everyone) for key in keys]
        self._clients = self._plain
        self.is_open = not keys and path is None
        self.reload()

    @staticmethod
    def of(options: ServerOptions) -> "Keyring":
        """Raises ``ConfigError``."""
        return Keyring(options.api_key, path=options.api_keys_file)

    @property
    def finds_pinned(self) -> bool:
        """Whether anybody shares the prefix cache of those without a scope, in which pinned prefixes are."""
        return self.is_open or any(client.cache_scope("") == "" for _, client in self._clients)

    def reload(self) -> int:
        """Reads the file, if there is one; what keys have used of their limits stays. Returns the number of its keys.

        Raises:
            ConfigError: the file cannot be used; the keys stay as they were.
        """
        if self._path is None:
            return 0
        keys = read_keys(self._path)
        if not keys and not self._plain:
            raise ConfigError(f"--api-keys-file {self._path} has no keys: make one with octavo keys new NAME --file FILE")
        self._clients = [*self._plain, *self._from_file(keys)]
        return len(keys)

    def _from_file(self, keys: Iterable[Key]) -> list[tuple[bytes, Client]]:
        clients = []
        for key in keys:
            limits = self._limits.setdefault(key.name, KeyLimits(key))
            limits.change(key)
            clients.append((bytes.fromhex(key.sha256), Client(key, limits)))
        return clients

    def identify(self, authorization: bytes | None) -> Client | None:
        """The owner of the key in an ``Authorization`` header's value, ``Bearer KEY``; None for nobody that is known."""
        if self.is_open:
            return self._everyone
        scheme, _, key = (authorization or b"").partition(b" ")
        digest = digest_of(key.strip())
        matches = [client for known, client in self._clients if hmac.compare_digest(digest, known)]
        return matches[0] if matches and scheme.lower() == b"bearer" else None
