"""Log-probabilities of long prompts on their way to the client: in pieces, in order, and whole again at the end."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from octavo.outputs import TokenDelta
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.server import aside, errors
from octavo.server.aside import WRITTEN_AT_ONCE
from octavo.server.engine_client import Mailbox, RequestTable
from octavo.server.engine_process import EngineLoop
from octavo.server.packed_logprobs import PIECE, PackedLogprobs, pack
from octavo.server.replies import JsonResponse
from octavo.server.wire import PromptPiece, Step, frame
from octavo.step import TokenLogprobs
from tests.server.tiny import RunningServer


def entries(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(i, -0.25 * i, i + 1, [i, i + 1], [-0.5, -1.5]) for i in range(count)]


@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_packed_is_the_same_sequence(count: int) -> None:
    given = entries(count)
    packed = PackedLogprobs(list(pack(given)), count)
    assert len(packed) == count and list(packed) == list(packed) == given
    assert [packed[i] for i in range(-count, count)] == [given[i] for i in range(-count, count)]
    assert packed[1:-1] == given[1:-1]
    with pytest.raises(IndexError):
        packed[count]


def test_bytes_that_are_no_piece_are_an_error_for_the_reader() -> None:
    with pytest.raises(msgspec.MsgspecError):
        list(PackedLogprobs([b"\xc1"], 1))


class OneStep:
    """An engine that has said ``deltas``, and a channel that keeps what is sent."""

    has_work = True

    def __init__(self, deltas: list[TokenDelta]) -> None:
        self._deltas = deltas
        self.sent: list[Any] = []

    def step(self) -> list[TokenDelta]:
        return self._deltas

    def stats(self) -> None:
        return None

    def send(self, message: Any) -> None:
        self.sent.append(message)


def sent_for(*deltas: TokenDelta) -> list[Any]:
    both: Any = OneStep(list(deltas))
    EngineLoop(both, both, print)._step()
    sent: list[Any] = both.sent
    return sent


def delta(name: str, count: int | None) -> TokenDelta:
    return TokenDelta(request_id=name, branch=0, token_ids=[7], prompt_logprobs=None if count is None else entries(count))


def test_few_stay_where_they_are_and_many_go_ahead() -> None:
    (step,) = sent_for(delta("a", PIECE), delta("b", None))
    assert isinstance(step, Step) and step.deltas == [delta("a", PIECE), delta("b", None)]
    *pieces, step = sent_for(delta("a", 2 * PIECE + 5), delta("b", None))
    assert [piece.count for piece in pieces] == [PIECE, PIECE, 5]
    assert step.deltas == [delta("a", 0), delta("b", None)]
    assert all(len(frame(message)) < 100 * PIECE for message in (*pieces, step))


def table_with(name: str) -> tuple[RequestTable, Mailbox]:
    table, mailbox = RequestTable(), Mailbox()
    params = SamplingParams(prompt_logprobs=1)
    table.add(Request(id=name, prompt_token_ids=[1], params=params, seed=1, arrival_time=0.0), mailbox)
    return table, mailbox


def hand_over(table: RequestTable, messages: list[Any]) -> None:
    for message in messages:
        if isinstance(message, PromptPiece):
            table.keep(message)
        else:
            for delta in message.deltas:
                table.deliver(delta)


def test_the_consumer_gets_them_with_the_delta() -> None:
    table, mailbox = table_with("a")
    hand_over(table, sent_for(delta("a", 300)))
    (got,) = asyncio.run(mailbox.get())
    assert list(got.prompt_logprobs or []) == entries(300)
    table.deliver(delta("a", None))
    (after,) = asyncio.run(mailbox.get())
    assert after.prompt_logprobs is None


def test_pieces_of_an_engine_that_died_are_not_mixed_with_its_successors() -> None:
    table, mailbox = table_with("a")
    hand_over(table, sent_for(delta("a", 300))[:2])
    table.engine_lost(errors.engine_restarted())
    assert len(table.resubmit()) == 1
    hand_over(table, sent_for(delta("a", 200)))
    (got,) = asyncio.run(mailbox.get())
    assert list(got.prompt_logprobs or []) == entries(200)


def test_pieces_of_a_request_that_has_ended_are_dropped() -> None:
    table, mailbox = table_with("a")
    table.abort("a", None)
    hand_over(table, sent_for(delta("a", 300)))
    assert mailbox._deltas == []


def test_a_long_body_goes_out_in_slices_and_others_get_turns() -> None:
    body = b"%d" % 7 * (3 * WRITTEN_AT_ONCE + 1)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def scenario() -> int:
        turns, ended = 0, asyncio.create_task(JsonResponse(body)({}, None, send))  # type: ignore[arg-type]  # none is read
        while not ended.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(scenario()) >= 4
    start, *parts = sent
    assert dict(start["headers"])[b"content-length"] == str(len(body)).encode()
    assert b"".join(part["body"] for part in parts) == body
    assert max(len(part["body"]) for part in parts) <= WRITTEN_AT_ONCE
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]


def test_forgetting_empties() -> None:
    items = list(range(100_000))
    aside.forget(items)
    assert items == []


def test_all_of_a_long_prompt_whole_and_echoed(server: RunningServer) -> None:
    prompt = [10 + i % 700 for i in range(3 * PIECE + 20)]
    fields = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "return_tokens_as_token_ids": True}
    url = f"{server.url}/v1/completions"
    told = httpx.post(url, json={**fields, "prompt_logprobs": 2}, timeout=60).json()["choices"][0]["prompt_logprobs"]
    echoed = httpx.post(url, json={**fields, "echo": True, "logprobs": 2}, timeout=60).json()["choices"][0]["logprobs"]
    assert len(told) == len(prompt) and told[0] is None and echoed["token_logprobs"][0] is None
    for token, entry, logprob, top in list(zip(prompt, told, echoed["token_logprobs"], echoed["top_logprobs"], strict=False))[
        1:
    ]:
        assert entry[str(token)]["logprob"] == logprob == top[f"token_id:{token}"]
        assert {f"token_id:{name}" for name in entry} == set(top)
