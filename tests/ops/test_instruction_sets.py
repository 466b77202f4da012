"""Choosing instruction sets, and that nothing of one is executed before it was found usable."""

import re
import shutil
import subprocess
import sys
from bisect import bisect_right

import pytest

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from tests.ops.devices import ISAS

KNOWN = {"generic", "avx2", "avx512", "avx512_bf16", "amx"}
INTEGER = {"avx2", "avx2_vnni", "avx512", "avx512_vnni", "amx"}
OWN_FLAGS = {f"isa_{name}.cpp" for name in KNOWN - {"generic"}} | {f"integer_{name}.cpp" for name in INTEGER}
AVX = r"v(?!err|erw|mcall)[a-z]+[0-9a-z]*"
MASKS = r"k(mov|or|xor|and|add|not|shift|test|unpck)[a-z]*"
TILES = r"tile[a-z]+|tdp[a-z0-9]+|[ls]tt?ilecfg"
BEYOND_BASELINE = re.compile(f"{AVX}|{MASKS}|{TILES}")


def test_every_instruction_set_is_named_with_a_reason_where_it_cannot_be_used() -> None:
    features = _native.cpu_features()
    assert set(features) <= KNOWN
    assert next(iter(features)) == "generic"
    for name, (usable, reason) in features.items():
        if usable:
            assert reason == ""
            assert CpuBackend(isa=name, num_threads=1).isa == name
        else:
            with pytest.raises(ValueError, match=f"instruction set {name} cannot be used: {re.escape(reason)}"):
                CpuBackend(isa=name, num_threads=1)
            assert reason


def test_a_process_that_is_told_of_no_childs_end_finds_the_same() -> None:
    """As one is that was started with the signal ignored: trying instructions in a child works there, too."""
    look = "from octavo import _native; print(_native.cpu_features())"
    command = [sys.executable, "-P", "-c", f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); {look}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(_native.cpu_features())


def test_auto_is_the_most_capable() -> None:
    assert CpuBackend(num_threads=1).isa == ISAS[-2]  # the last that is not emulated
    assert CpuBackend(isa="amx_emulated", num_threads=1).isa == "amx_emulated"


def test_an_unknown_instruction_set_is_refused_with_those_known() -> None:
    with pytest.raises(ValueError, match="unknown instruction set sse9; known are auto, generic"):
        CpuBackend(isa="sse9", num_threads=1)


def _objdump(option: str) -> list[str]:
    command = ["objdump", option, "--no-show-raw-insn", "--section=.text", _native.__file__]
    if option == "--syms":
        command = ["objdump", option, _native.__file__]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _functions_by_file() -> dict[str, list[tuple[int, int, str]]]:
    """Source file -> (address, size, name) of its own functions. Those that files could share are under ""."""
    files: dict[str, list[tuple[int, int, str]]] = {}
    current = ""
    for line in _objdump("--syms"):
        if found := re.match(r"[0-9a-f]+ l +df \*ABS\*\s+[0-9a-f]+\s*(\S*)$", line):
            current = found[1]
        elif found := re.match(r"([0-9a-f]+) (.).{5}F \.text\s+([0-9a-f]+)\s+(.*)$", line):
            owner = current if found[2] == "l" else ""
            files.setdefault(owner, []).append((int(found[1], 16), int(found[3], 16), found[4]))
    return files


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump of binutils is not installed")
def test_no_instruction_beyond_the_baseline_outside_the_files_of_its_set() -> None:
    """So that importing the module and asking what is usable is safe on any processor: no function that the linker may have
    shared between files, no constructor of a global and nothing of the generic kernels was compiled with further flags."""
    files = _functions_by_file()
    own = sorted(function for name in OWN_FLAGS & set(files) for function in files[name])
    starts = [address for address, _, _ in own]
    assert not [name for _, _, name in own if "_GLOBAL__sub_I" in name], "runs when the module is imported"
    inside, outside = 0, []
    for line in _objdump("--disassemble"):
        if not (found := re.match(r"\s*([0-9a-f]+):\s+(\S+)", line)) or not BEYOND_BASELINE.fullmatch(found[2]):
            continue
        address = int(found[1], 16)
        index = bisect_right(starts, address) - 1
        if index >= 0 and address < own[index][0] + own[index][1]:
            inside += 1
        else:
            outside.append(line.strip())
    assert not outside, outside[:5]
    if len(_native.cpu_features()) > 1:  # an x86 build: the test has seen what it looks for
        assert inside > 1000
