"""A request's mailbox: everything comes, in order, and very much of it leaves turns for others."""

import asyncio

import pytest

from octavo.outputs import TokenDelta
from octavo.server.engine_client import Mailbox


def delta(branch: int) -> TokenDelta:
    return TokenDelta(request_id="a", branch=branch, token_ids=[branch])


def test_others_get_turns_while_very_much_is_read() -> None:
    async def scenario() -> None:
        mailbox, turns = Mailbox(), 0

        async def someone() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(someone())
        await asyncio.sleep(0)
        for branch in range(1000):
            mailbox.put(delta(branch))
        got: list[int] = []
        before = turns
        while len(got) < 1000:
            part = await mailbox.get()
            assert 0 < len(part) <= 100
            got += [d.branch for d in part]
        other.cancel()
        assert got == list(range(1000))
        assert turns - before >= 10

    asyncio.run(scenario())


def test_what_has_come_is_read_before_the_failure() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        for branch in range(200):
            mailbox.put(delta(branch))
        mailbox.fail(RuntimeError("lost"))
        got: list[int] = []
        with pytest.raises(RuntimeError, match="lost"):
            while True:
                got += [d.branch for d in await mailbox.get()]
        assert got == list(range(200))

    asyncio.run(scenario())
