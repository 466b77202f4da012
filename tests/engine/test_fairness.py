"""Nobody waits for what is not theirs: short prompts beside long ones, and tenants beside tenants."""

from itertools import pairwise
from typing import Any

import pytest

from octavo.engine.sequence import GroupStatus
from tests.engine.test_scheduler import Harness, order_of_ends

BUDGET = 64


def harness(**changes: Any) -> Harness:
    settings = {"num_blocks": 1024, "max_model_len": 1024, "max_num_batched_tokens": BUDGET, "max_num_seqs": 32}
    return Harness(**{**settings, **changes})


# ------------------------------------------------------------------------------------------------------------ within a step


def test_short_prompts_are_computed_in_the_step_after_they_come() -> None:
    scene = harness()
    scene.add("long", 500)
    assert scene.plan() == {0: 64}
    for name in ("one", "two"):
        scene.add(name, 12)
    assert scene.plan() == {0: 40, 1: 12, 2: 12}
    assert scene.plan() == {0: 62, 1: 1, 2: 1}


def test_a_long_prompt_keeps_half_of_every_step_however_many_short_ones_come() -> None:
    scene = harness(max_num_seqs=1000, num_blocks=4096)
    scene.add("long", 500, max_tokens=1)
    scene.plan()
    computed, steps = 64, 1
    while computed < 500:
        for i in range(5):
            scene.add(f"short-{steps}-{i}", 12, max_tokens=1)
        computed += scene.plan()[0]
        steps += 1
    assert steps <= 1 + -(-(500 - 64) // (BUDGET // 2))
    scene.finish()


def test_short_prompts_that_wait_behind_a_long_one_do_not_wait_for_it() -> None:
    scene = harness()
    scene.add("first", 500)
    scene.add("second", 500)
    scene.add("short", 10)
    first = scene.plan()
    assert first[0] == 54 and first[2] == 10
    assert first.get(1, 0) <= 1


def test_equal_prompts_are_computed_one_after_the_other() -> None:
    """To share the step among them would make all of them as late as the last."""
    scene = harness()
    scene.add("first", 120)
    scene.add("second", 120)
    assert scene.plan() == {0: 64}
    assert scene.plan()[0] == 56


def test_nothing_is_kept_for_who_cannot_be_admitted() -> None:
    crowded = harness(max_num_seqs=1)
    crowded.add("long", 500)
    crowded.add("short", 4)
    assert crowded.plan() == {0: 64}
    cramped = harness(num_blocks=128, max_model_len=512)
    cramped.add("long", 500)
    cramped.plan()
    cramped.add("short", 12)
    assert cramped.plan() == {0: 64}


def test_who_cannot_be_split_gets_a_step_of_its_own() -> None:
    scene = harness(enable_chunked_prefill=False, max_model_len=BUDGET)
    scene.add("long", 60, max_tokens=1)
    for i in range(4):
        scene.add(f"short-{i}", 12, max_tokens=1)
    assert scene.plan() == {0: 60}


# --------------------------------------------------------------------------------------------------------- between tenants


def test_a_tenant_with_one_request_does_not_wait_for_another_with_many() -> None:
    scene = harness(scheduling_policy="fair", max_num_seqs=1)
    for i in range(10):
        scene.add(f"many-{i}", tenant="many")
    scene.plan()
    scene.add("one", tenant="one")
    assert order_of_ends(scene.finish()).index("one") == 1


def test_one_tenant_alone_is_served_in_order() -> None:
    scene = harness(scheduling_policy="fair", max_num_seqs=1)
    names = [f"r{i:02}" for i in range(20)]
    ends: list[str] = []
    for i, name in enumerate(names):  # what earlier ones did not use must not let a later one pass
        scene.add(name, 4 + 40 * (i % 3), max_tokens=200 if i < 10 else 2, stop_token_ids=list(range(23)))
        if i % 4 == 3:
            ends += order_of_ends(scene.engine.step())
    ends += order_of_ends(scene.finish())
    assert ends == names


@pytest.mark.parametrize("cheap_tokens", [4, 16])
def test_tenants_share_by_tokens_not_by_requests(cheap_tokens: int) -> None:
    """While both wait, each is given as many tokens as the other, whatever the size of its requests."""
    scene = harness(scheduling_policy="fair", max_num_seqs=1)
    costs = {"dear": 4 + 64, "cheap": 4 + cheap_tokens}
    for i in range(60):
        scene.add(f"dear-{i}", tenant="dear", max_tokens=64)
    for i in range(60):
        scene.add(f"cheap-{i}", tenant="cheap", max_tokens=cheap_tokens)
    spent = {"dear": 0, "cheap": 0}
    for name in order_of_ends(scene.finish()):
        tenant = name.partition("-")[0]
        spent[tenant] += costs[tenant]
        if spent["cheap"] == 60 * costs["cheap"]:
            break
        assert abs(spent["dear"] - spent["cheap"]) <= 2 * max(costs.values())


@pytest.mark.parametrize("stops", [False, True])
def test_each_branch_counts_as_a_request_of_its_own(stops: bool) -> None:
    """Those that stop early come one by one: what they did not use is known when they have ended."""
    scene = harness(scheduling_policy="fair", max_num_seqs=4)
    costs, branches = {"wide": 1 + 4 * 8, "narrow": 1 + 8}, {"wide": 4, "narrow": 1}
    params = {"max_tokens": 200, "min_tokens": 8, "stop_token_ids": list(range(23))} if stops else {"max_tokens": 8}
    for tenant in ["wide", "narrow"] * (1 if stops else 80):
        scene.add(f"{tenant}-{len(scene.scheduler._groups)}", 1, tenant=tenant, n=branches[tenant], **params)
    spent = {"wide": 0, "narrow": 0}
    ends: list[str] = []
    while len(ends) < 80:
        for name in order_of_ends(scene.engine.step()):
            tenant = name.partition("-")[0]
            spent[tenant] += costs[tenant]
            ends.append(name)
            if stops:
                scene.add(f"{tenant}-{len(ends)} more", 1, tenant=tenant, n=branches[tenant], **params)
            assert abs(spent["wide"] - spent["narrow"]) <= 2 * max(costs.values())


def test_who_comes_back_does_not_turn_back_the_time() -> None:
    """Of three the last two yield, and one of them comes back: who arrives then stands behind the other."""
    scene = Harness(scheduling_policy="fair", num_blocks=18, preemption_mode="recompute")
    for name in "abc":
        scene.add(name, 8, tenant="one", max_tokens=30)
    groups = dict(scene.scheduler._groups)
    while groups["b"].status is not GroupStatus.RUNNING or not groups["b"].num_preemptions:
        scene.engine.step()
    assert groups["c"].timings.first_scheduled and groups["c"].num_preemptions
    scene.add("d", 8, tenant="two", max_tokens=30)
    assert scene.scheduler._groups["d"].turn >= groups["c"].turn > groups["b"].turn
    assert order_of_ends(scene.finish()) == ["b", "c", "d"]


def test_what_was_not_used_is_given_back() -> None:
    """Both say that they may generate 200 tokens; the one that generates 1 comes more often."""
    scene = harness(scheduling_policy="fair", max_num_seqs=1)
    ends: list[str] = []
    for i in range(12):
        scene.add(f"talks-{i}", tenant="talks", max_tokens=200)
        scene.add(f"stops-{i}", tenant="stops", max_tokens=200, stop_token_ids=list(range(23)), ignore_eos=False)
        while sum(name.startswith("stops") for name in ends) <= i:
            ends += order_of_ends(scene.engine.step())
    talks = [name for name in ends if name.startswith("talks")]
    assert len(talks) <= 3


def test_what_ended_before_it_began_is_in_nobodys_way() -> None:
    scene = harness(scheduling_policy="fair", max_num_seqs=1)
    for i in range(6):
        scene.add(f"other-{i}", tenant="other", max_tokens=8)
    for i in range(30):
        scene.add(f"left-{i}", tenant="one", prompt_len=100, max_tokens=50)
    scene.engine.step()
    for i in (*range(10, 30), *range(10)):
        scene.engine.abort(f"left-{i}")
    scene.add("stays", tenant="one", max_tokens=8)
    assert order_of_ends(scene.finish()).index("stays") <= 1


def test_those_behind_one_that_ended_before_it_began_keep_their_order() -> None:
    scene = harness(scheduling_policy="fair", max_num_seqs=1)
    for i in range(6):
        scene.add(f"r{i}", tenant="one", max_tokens=8)
    scene.engine.step()
    scene.engine.abort("r3")
    scene.add("r6", tenant="one", max_tokens=8)
    assert order_of_ends(scene.finish()) == ["r0", "r1", "r2", "r4", "r5", "r6"]


def test_idle_time_is_not_saved_up() -> None:
    scene = harness(scheduling_policy="fair", max_num_seqs=1)
    scene.add("idle-0", tenant="idle")
    for i in range(10):
        scene.add(f"busy-{i}", tenant="busy", max_tokens=50)
    scene.finish()
    for i in range(6):
        scene.add(f"busy-again-{i}", tenant="busy", max_tokens=50)
        scene.add(f"idle-again-{i}", tenant="idle", max_tokens=50)
    ends = order_of_ends(scene.finish())
    turns = [name.partition("-")[0] for name in ends]
    assert all(len(set(pair)) == 2 for pair in list(pairwise(turns))[1:-1]), ends
