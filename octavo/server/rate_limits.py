"""How much one key may ask: requests at once, requests a minute, tokens a minute.

Minutes are token buckets: they hold a minute's worth and fill steadily, so that nobody has to wait for a full minute to pass.
How many tokens a request will generate is not known before, so a bucket may go below zero; nothing passes until it is above
zero again. Knows no HTTP but the error it raises.
"""

import math
import time
from collections.abc import Callable

from octavo.server import errors
from octavo.server.keys import Key


class Bucket:
    """``per_minute`` units. None: no limit."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float]) -> None:
        self._capacity = math.inf if per_minute is None else float(per_minute)
        self._clock = clock
        self._level = self._capacity
        self._seen = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        if not math.isinf(self._capacity):
            self._level = min(self._capacity, self._level + (now - self._seen) * self._capacity / 60)
        self._seen = now
        return self._level

    def take(self, amount: float) -> None:
        self._level = self.level - amount

    def wait(self, amount: float) -> float:
        """Seconds until the bucket would hold ``amount``, even if that is more than it can hold."""
        lacking = amount - self.level
        return 0.0 if lacking <= 0 else lacking * 60 / self._capacity


class KeyLimits:
    """One key's limits and what is used of them. Lives as long as the server, whatever becomes of the keys file."""

    def __init__(self, key: Key, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._concurrent = 0
        self._reserved = 0
        self._key = key
        self._requests = Bucket(key.requests_per_minute, clock)
        self._tokens = Bucket(key.tokens_per_minute, clock)

    def change(self, key: Key) -> None:
        """New limits; a minute's limit that stays as it was goes on where it is."""
        before, self._key = self._key, key
        if before.requests_per_minute != key.requests_per_minute:
            self._requests = Bucket(key.requests_per_minute, self._clock)
        if before.tokens_per_minute != key.tokens_per_minute:
            self._tokens = Bucket(key.tokens_per_minute, self._clock)

    def enter(self) -> "Ticket":
        """A request begins. Raises ``ApiError`` 429, which names the limit and says when to come again."""
        key = self._key
        if key.max_concurrency is not None and self._concurrent >= key.max_concurrency:
            raise errors.limited("max_concurrency", key.max_concurrency, 1.0)
        if key.requests_per_minute is not None and self._requests.level < 1:
            raise errors.limited("requests_per_minute", key.requests_per_minute, self._requests.wait(1))
        if key.tokens_per_minute is not None and self._tokens.level - self._reserved < 1:
            raise errors.limited("tokens_per_minute", key.tokens_per_minute, self._tokens.wait(1 + self._reserved))
        self._requests.take(1)
        self._concurrent += 1
        return Ticket(self)

    def reserve(self, tokens: int) -> None:
        """Tokens that are sure to be used, by a request that has not ended."""
        self._reserved += tokens

    def answered(self) -> None:
        """A request makes room for the client's next."""
        self._concurrent -= 1

    def leave(self, *, reserved: int, used: int) -> None:
        """What a request has cost is known."""
        self._reserved -= reserved
        self._tokens.take(used)


class Ticket:
    """One request that was let in."""

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = limits
        self._reserved = 0
        self._unanswered = True
        self._open = True

    def reserve(self, tokens: int) -> None:
        """The length of the prompt is known: from now on it counts for those that come."""
        self._reserved += tokens
        self._limits.reserve(tokens)

    def answered(self) -> None:
        """The client has all of its answer, and may ask again. May be called again."""
        if self._unanswered:
            self._unanswered = False
            self._limits.answered()

    def leave(self, used: int) -> None:
        """The request has ended, and this is what it cost in tokens. May be called again."""
        self.answered()
        if self._open:
            self._open = False
            self._limits.leave(reserved=self._reserved, used=used)
