"""The any-schedule property can fail: each bug of this list, planted in a copy of the code, is caught by it."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POOL, MANAGER = "memory/block_pool.py", "memory/kv_cache_manager.py"
SPECULATION = "engine/speculation.py"
SCHEDULER, DECODING, FAKE = "engine/scheduler.py", "engine/decoding.py", "tests/engine/fake.py"
RESIDENCE, PLANNING, RESULTS = "engine/residence.py", "engine/planning.py", "engine/results.py"
CONTIGUOUS, BUDDY, BATCHING = "memory/contiguous.py", "memory/buddy.py", "engine/batching.py"
BEAM, SEQUENCE = "engine/beam.py", "engine/sequence.py"
STOPPING, PARAMS = "engine/stopping.py", "sampling_params.py"


# A test that fails need not look for the smallest way to fail, and must not fail because the machine is slow.
CONFTEST = """
from hypothesis import Phase, settings

settings.register_profile("any failure", phases=[Phase.generate], deadline=None)
settings.load_profile("any failure")
"""


@dataclass(frozen=True)
class Bug:
    """Replace ``good`` by ``bad`` in ``file``. ``caught_by``: the hunt, or this file of tests/memory."""

    name: str
    file: str
    good: str
    bad: str
    caught_by: str = "hunt"
    kv_allocation: str = "paged"


BUGS = [
    Bug("copy-on-write without the copy", MANAGER, "self._copy.append((old.id, new.id))", "pass"),
    Bug(
        "in-place write to a shared block",
        MANAGER,
        "if target.ref_count > 1:\n                self._copy",
        "if False:\n                self._copy",
    ),
    Bug(
        "swap-out after copy-on-write",
        FAKE,
        "        for source, target in plan.copies.swap_out:\n            self.host[target] = list(self.device[source])\n",
        "        for source, target in plan.copies.copy:\n            self.device[target] = list(self.device[source])\n"
        "        for source, target in plan.copies.swap_out:\n            self.host[target] = list(self.device[source])\n",
    ),
    Bug("swap-out without the copy", MANAGER, "self._swap_out.append((block.id, moved[block.id].id))", "pass"),
    Bug("swap-in without the copy", MANAGER, "self._swap_in.append((host_block.id, block.id))", "pass"),
    Bug(
        "a prefix match that leaves nothing to compute",
        MANAGER,
        "(len(seq.token_ids) - 1) // self.block_size",
        "len(seq.token_ids) // self.block_size",
    ),
    Bug(
        "a hash without its parent",
        MANAGER,
        "parent = seq.hashes[-1] if seq.hashes else seq.cache_root",
        "parent = seq.cache_root",
    ),
    Bug(
        "a hash without its scope",
        MANAGER,
        "cache_root(self, scope: str) -> bytes:",
        "cache_root(self, scope: str) -> bytes:\n        scope = ''",
    ),
    Bug(
        "a stale hash entry",
        POOL,
        "            del self._by_hash[block.hash]\n            block.hash = None\n            self._num_cached_free -= 1",
        "            self._num_cached_free -= 1",
    ),
    Bug(
        "a rewritten block that can still be found", MANAGER, "self.device.retract(target)", "pass", "test_kv_cache_manager.py"
    ),
    Bug(
        "a fork that forgets the reference",
        MANAGER,
        "[self.device.ref(block) for block in parent.blocks[",
        "[block for block in parent.blocks[",
    ),
    Bug(
        "a fork that shares one block too few",
        MANAGER,
        "parent.blocks[: self.num_blocks_for(child.num_computed)]",
        "parent.blocks[: child.num_computed // self.block_size]",
    ),
    Bug("rejected drafts that stay computed", DECODING, "    seq.num_computed = before + len(tokens) - 1\n", ""),
    Bug("preempting work in flight", RESIDENCE, "if victim.num_in_flight:", "if False:"),
    Bug(
        "late results of a finished sequence",
        RESULTS,
        "            if not seq.finished:\n                decoding.place_drawn",
        "            if True:\n                decoding.place_drawn",
    ),
    Bug("recomputed branches that do not share again", PLANNING, "self._kv.fork(source[0], seq, source[1])", "pass"),
    Bug(
        "swapping that loses sharing",
        MANAGER,
        "blocks.append(self.host.ref(moved[block.id]))",
        "blocks.append(self.host.allocate())",
    ),
    Bug(
        "a device that is empty and still asks for slack",
        RESIDENCE,
        "        if not running:\n            return 0\n",
        "",
    ),
    Bug(
        "hashing before the token is known",
        RESULTS,
        "self._kv.publish(entry.seq, entry.end)",
        "self._kv.publish(entry.seq, entry.end + self._kv.block_size)",
    ),
    Bug("a round that waits for nobody", DECODING, "len(group.candidates) == len(group.live)", "True"),
    Bug(
        "candidates that outlive their recomputation",
        RESIDENCE,
        "group.candidates.clear()  # they come again, with those of all beams",
        "pass",
    ),
    Bug(
        "dead beams that keep their blocks",
        DECODING,
        "            kv.free(seq)\n            seq.finished = True",
        "            pass",
    ),
    Bug(
        "beams that fork before the dead are freed",
        DECODING,
        "    _free_the_dead(group.sequences, survivors, kv)\n    if not search.done:\n"
        "        group.sequences = _continue(group.sequences, survivors, kv, seq_ids)\n",
        "    parents = group.sequences\n    if not search.done:\n"
        "        group.sequences = _continue(parents, survivors, kv, seq_ids)\n    _free_the_dead(parents, survivors, kv)\n",
        kv_allocation="orca-max",
    ),
    Bug("two beams in one sequence", DECODING, "heir = survivor.parent not in inherited", "heir = True"),
    Bug("beams that keep room for one", SEQUENCE, "if self.forked and self.search is None", "if self.forked"),
    Bug("beams in the order of their parents", DECODING, "    return beams\n", "    return beams[::-1]\n"),
    Bug("ends that are looked for among all candidates", BEAM, "elif place < self.params.width:", "else:"),
    Bug(
        "beams that plan ahead",
        PLANNING,
        "not group.needs_host and",
        "not (group.needs_history or group.params.structured_outputs) and",
    ),
    Bug(
        "grammars that plan ahead",
        PLANNING,
        "not group.needs_host and",
        "not (group.params.needs_history or group.params.beam) and",
    ),
    Bug("branches that share a grammar", DECODING, "grammar=parent.grammar.fork() if", "grammar=parent.grammar if"),
    Bug(
        "a mask that is not waited for",
        PLANNING,
        "if seq.grammar is not None and seq.grammar.mask is None:\n                continue",
        "if False:\n                continue",
    ),
    Bug("a complete text that goes on", STOPPING, "return not _may_end(", "return False and not _may_end("),
    Bug(
        "drafts for a grammar",
        SPECULATION,
        "is_on and not group.needs_host:",
        "is_on and not group.params.needs_history:",
    ),
    Bug("a demand that forgets copy-on-write", MANAGER, "total += sum(", "total += 0 * sum("),
    Bug(
        "a fork that copies before its source is computed",
        CONTIGUOUS,
        "self._uncopied[child] = (source, self.num_blocks_for(child.num_computed))",
        "self._uncopied[child] = (source, self.num_blocks_for(child.num_computed))\n        self._copy_now(child)",
        kv_allocation="orca-oracle",
    ),
    Bug(
        "a source given back before it is read",
        CONTIGUOUS,
        "if source is seq]:\n            self._copy_now(child)",
        "if source is seq]:\n            self._uncopied.pop(child)",
        kv_allocation="orca-oracle",
    ),
    Bug(
        "regions for one sequence of a group",
        CONTIGUOUS,
        "for _ in range(first.group_size)][::-1]",
        "for _ in range(1)]",
        kv_allocation="orca-max",
    ),
    Bug(
        "room for one sequence of a group",
        CONTIGUOUS,
        "* seq.group_size\n",
        "\n",
        kv_allocation="orca-pow2",
    ),
    Bug("spare regions that leak", CONTIGUOUS, "for start in group.spares:", "for start in ():", kv_allocation="orca-max"),
    Bug(
        "regions of dead beams that are given away",
        CONTIGUOUS,
        "if group.num_holders == 0 or not group.keeps:",
        "if True:",
        kv_allocation="orca-oracle",
    ),
    Bug(
        "buddies that are not merged",
        BUDDY,
        "while self._take(order,",
        "while False and self._take(order,",
        "test_contiguous.py",
    ),
    Bug(
        "a batch that never opens again",
        BATCHING,
        "if idle:\n            self._open = True",
        "if idle:",
        kv_allocation="fastertransformer",
    ),
    Bug(
        "ends that are lost with the rest of their batch",
        BATCHING,
        "self._due += self._held  # the rest of the batch was aborted",
        "pass",
        kv_allocation="fastertransformer",
    ),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_bug_is_caught(bug: Bug, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "octavo", tmp_path / "octavo", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for part in ("engine", "memory"):
        shutil.copytree(ROOT / "tests" / part, tmp_path / "tests" / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    path = tmp_path / bug.file if bug.file.startswith("tests/") else tmp_path / "octavo" / bug.file
    text = path.read_text()
    assert text.count(bug.good) == 1, f"{bug.name}: the code to break has changed"
    path.write_text(text.replace(bug.good, bug.bad))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    module = (
        ["tests.engine.hunt", "6000", bug.kv_allocation]
        if bug.caught_by == "hunt"
        else ["pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/memory/{bug.caught_by}"]
    )
    run = subprocess.run(
        [sys.executable, "-m", *module], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    verdict = "caught with seed" if bug.caught_by == "hunt" else "AssertionError"
    assert run.returncode == 1 and verdict in run.stdout, run.stdout + run.stderr
