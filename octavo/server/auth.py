"""API keys. Only digests are kept, and every comparison takes the same time whichever key matches or none."""

import hashlib
import hmac


class Keyring:
    """The keys that open this server. Without keys it is open to everyone who can reach it."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    def admits(self, authorization: bytes | None) -> bool:
        """Whether an ``Authorization`` header's value carries one of the keys, as ``Bearer KEY``."""
        if not self._digests:
            return True
        scheme, _, key = (authorization or b"").partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == b"bearer" and any(matches)
