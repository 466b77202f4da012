"""How many requests may begin at once: of a burst a few in each pass of the event loop, the others in order behind them.

Between the passes the loop looks at its sockets, so that whoever asks for little, as a probe does, waits for a few requests to
be read and checked and not for all of them. Owns who waits; nobody is refused here.
"""

import asyncio
from collections import deque


class Turns:
    """``at_once`` may begin in one pass. Lives on one event loop."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._renewing = False

    async def take(self) -> None:
        """Returns when it is the caller's turn."""
        loop = asyncio.get_running_loop()
        self._renew_soon(loop)
        if self._left:
            self._left -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _renew_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._renewing:
            self._renewing = True
            loop.call_soon(self._renew, loop)

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        self._renewing = False
        self._left = self._at_once
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # whoever was cancelled has left
                turn.set_result(None)
                self._left -= 1
        if self._waiting:
            self._renew_soon(loop)
