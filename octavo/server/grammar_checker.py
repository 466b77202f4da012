"""Asks the grammar process about every new grammar, and remembers what it said.

A grammar is given a short time first, which is enough for almost all that are meant, and only then a long one, in a lane of its
own: however many take long, another that does not is answered at once. When too many wait for the long time, they are turned
away with the time after which those before them will have had it.
"""

import asyncio
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import msgspec

from octavo.sampling_params import StructuredOutputsParams
from octavo.server import errors
from octavo.server.errors import ApiError
from octavo.server.grammar_lanes import GrammarProcess, Lane, LaneFull, ProcessClosed
from octavo.server.grammar_process import Verdict
from octavo.server.structured import Wanted
from octavo.structured.vocabulary import Vocabulary

COMPILE_SECONDS = 2.0
"""Of computing, not of waiting."""
FIRST_SECONDS = 0.025
"""The first time. Ordinary forms take 1 to 5 ms for 49,152 tokens, an enumeration of 60 KB takes 13."""
_FIRST_WALL_SECONDS = 10.0
_WALL_SECONDS = 30.0
_FIRST_NICENESS, _LONG_NICENESS = 10, 19
"""Below the API process, whose answers nobody should miss for a compilation, and the long ones below everything: what a hostile
grammar may take is then what is left over."""
_MOST_FIRST, _MOST_FIRST_EACH = 1024, 256
_MOST_LONG, _MOST_LONG_EACH = 64, 16
_REMEMBERED = 4096
_TOO_MUCH = Verdict(f"takes more than {COMPILE_SECONDS:g} s or too much memory to compile; make it simpler")

T = TypeVar("T")


class GrammarChecker:
    """``vocabulary`` is called, on a thread, whenever the process is started. Lives on one event loop at a time."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._process = GrammarProcess(vocabulary, lanes=2)
        self._first = Lane(
            functools.partial(self._process.ask, 0),
            seconds=FIRST_SECONDS,
            wall_seconds=_FIRST_WALL_SECONDS,
            niceness=_FIRST_NICENESS,
            most=_MOST_FIRST,
            most_each=_MOST_FIRST_EACH,
        )
        self._long = Lane(
            functools.partial(self._process.ask, 1),
            seconds=COMPILE_SECONDS,
            wall_seconds=_WALL_SECONDS,
            niceness=_LONG_NICENESS,
            most=_MOST_LONG,
            most_each=_MOST_LONG_EACH,
        )
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._take_long: OrderedDict[bytes, bool] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[Verdict]] = {}

    async def check(self, wanted: Wanted, client: str = "") -> None:
        """Raises ``ApiError``: 400 for a grammar that cannot be compiled, 503 when too many wait to be. ``client`` is whose
        turn it takes."""
        key = hashlib.sha256(msgspec.msgpack.encode(wanted.params)).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._shared(key, wanted.params, client)
        if verdict.message is not None:
            field = f"{wanted.field}.{verdict.path}" if verdict.path else wanted.field
            raise ApiError(400, f"{field}: {verdict.message}.", param=field)

    def close(self) -> None:
        """Ends the process. Whoever waits for it is told that the server shuts down."""
        self._process.close()
        self._first.close()
        self._long.close()

    async def _shared(self, key: bytes, wanted: StructuredOutputsParams, client: str) -> Verdict:
        """Of the same grammar, asked about by many, one question."""
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._found_out(key, wanted, client))
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        return await asyncio.shield(task)

    async def _found_out(self, key: bytes, wanted: StructuredOutputsParams, client: str) -> Verdict:
        try:
            if key not in self._take_long:
                verdict = await asyncio.wrap_future(self._first.submit(wanted, client))
                if verdict.cut is None or verdict.cut == "died":
                    return self._conclude(key, verdict)
                _remember(self._take_long, key, True)
            verdict = await asyncio.wrap_future(self._long.submit(wanted, client))
        except LaneFull as full:
            raise errors.busy(full.retry_after) from None
        except ProcessClosed:
            raise errors.draining() from None
        if verdict.cut == "late":  # of waiting, for the machine is busy: that says nothing about the grammar
            raise errors.busy(self._long.retry_after())
        return self._conclude(key, verdict)

    def _conclude(self, key: bytes, verdict: Verdict) -> Verdict:
        verdict = verdict if verdict.cut is None else _TOO_MUCH
        _remember(self._verdicts, key, verdict)
        return verdict


def _remember(known: OrderedDict[bytes, T], key: bytes, value: T) -> None:
    known[key] = value
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
