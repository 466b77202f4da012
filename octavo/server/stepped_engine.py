"""What the engine process needs of an engine; the real one is ``octavo.engine.engine.Engine``."""

from typing import Protocol

from octavo.metrics import EngineStats
from octavo.outputs import RequestMetrics, TokenDelta
from octavo.request import Request


class SteppedEngine(Protocol):
    """``add`` and ``abort`` at any time, ``step`` while ``has_work``."""

    @property
    def has_work(self) -> bool: ...
    def add(self, request: Request) -> None: ...
    def abort(self, request_id: str, branch: int | None = None) -> RequestMetrics | None: ...
    def step(self) -> list[TokenDelta]: ...
    def stats(self) -> EngineStats: ...
