"""A burst begins a few at a time, in order, and whoever leaves takes no turn."""

import asyncio

from octavo.server.turns import Turns


async def burst(count: int, at_once: int, leaving: frozenset[int] = frozenset()) -> list[list[int]]:
    """Which of ``count`` that ask in one pass began in each pass."""
    turns = Turns(at_once)
    begun: list[list[int]] = [[]]

    async def ask(number: int) -> None:
        await turns.take()
        begun[-1].append(number)

    tasks = [asyncio.create_task(ask(number)) for number in range(count)]
    await asyncio.sleep(0)
    for number in leaving:
        tasks[number].cancel()
    while not all(task.done() for task in tasks):
        begun.append([])
        await asyncio.sleep(0)
    return [passed for passed in begun if passed]


def test_a_few_begin_in_each_pass_in_order() -> None:
    passes = asyncio.run(burst(20, 8))
    assert [number for passed in passes for number in passed] == list(range(20))
    assert max(map(len, passes)) <= 8


def test_whoever_is_alone_begins_at_once() -> None:
    async def alone() -> int:
        turns, passes = Turns(1), 0

        def count() -> None:
            nonlocal passes
            passes += 1

        for _ in range(3):
            asyncio.get_running_loop().call_soon(count)
            await turns.take()
            await asyncio.sleep(0.001)
        return passes

    assert asyncio.run(alone()) == 3


def test_who_leaves_takes_no_turn() -> None:
    passes = asyncio.run(burst(6, 2, leaving=frozenset({2, 3, 4})))
    assert [number for passed in passes for number in passed] == [0, 1, 5]


def test_others_are_served_between_the_passes() -> None:
    async def beside() -> list[str]:
        turns = Turns(2)
        order: list[str] = []

        async def ask() -> None:
            await turns.take()
            order.append("burst")

        asking = [asyncio.create_task(ask()) for _ in range(10)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(order.append, "probe")
        await asyncio.gather(*asking)
        return order

    order = asyncio.run(beside())
    assert len(order) == 11 and order.index("probe") <= 6
