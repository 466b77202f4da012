"""Where one sequence stands in its grammar, and the thread that compiles grammars.

Owns the matchers and the cache of compiled grammars, bounded in bytes. Compiling happens on one thread of low priority, one
grammar at a time; the vocabulary is read when the first one is asked for, so that a start costs nothing.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
import numpy as np

from octavo.request import Thinking
from octavo.sampling_params import StructuredOutputsParams
from octavo.structured.thinking import TagTables, ThinkingGrammar
from octavo.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from octavo.structured.compiler import GrammarCompiler

CACHE_BYTES = 256 << 20
_SLOW_MASK = 0.05
_SLOW_MASKS = 3
_STACK_BYTES = 64 << 20
_NICENESS = 10
P = ParamSpec("P")
T = TypeVar("T")


class MatchedGrammar:
    """One sequence's matcher. ``ends`` are the bits of the end-of-sequence tokens that are never to be offered, if any.

    A matcher that fails, or whose masks repeatedly cost more than 50 ms of computing, allows nothing from then on.
    """

    def __init__(self, matcher: Any, mask_bytes: int, ends: np.ndarray | None) -> None:
        self._matcher = matcher
        self._mask_bytes = mask_bytes
        self._ends = ends
        self._num_slow = 0
        self.mask: np.ndarray | None = None
        self.mask_seconds = 0.0

    is_open = False

    @property
    def is_satisfied(self) -> bool:
        return not self._matcher.is_error() and bool(self._matcher.is_accepting())

    def compute_mask(self) -> None:
        mask = np.zeros(self._mask_bytes, np.uint8)
        begun = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self.mask_seconds = time.thread_time() - begun
        self._num_slow += self.mask_seconds > _SLOW_MASK
        if self._matcher.is_error() or self._num_slow >= _SLOW_MASKS:
            mask.fill(0)  # the library offers an end where it has failed
        elif self._ends is not None:
            mask &= ~self._ends
        self.mask = mask

    def advance(self, token: int) -> bool:
        self.mask = None
        self._matcher.consume_token(token)
        return not self._matcher.is_error() and bool(self._matcher.is_stopped())

    def fork(self) -> "MatchedGrammar":
        other = copy(self)
        other._matcher = self._matcher.deep_copy()
        return other

    def without_ends(self, ends: np.ndarray) -> "MatchedGrammar":
        """A fork that never offers these tokens."""
        other = self.fork()
        other._ends = ends
        if other.mask is not None:
            other.mask = other.mask & ~ends
        return other


class GrammarThread:
    """``vocabulary`` is called once, on the thread."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, cache_bytes: int = CACHE_BYTES) -> None:
        self._vocabulary = vocabulary
        self._cache: OrderedDict[bytes, tuple[MatchedGrammar, int]] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._compiler: GrammarCompiler | None = None
        self._read: Vocabulary | None = None
        self._tables: dict[tuple[str, str], TagTables] = {}
        self._ends = np.zeros(0, np.uint8)

    def compile(
        self,
        wanted: StructuredOutputsParams | None,
        *,
        ends: bool,
        thinking: Thinking | None = None,
        budget: int | None = None,
    ) -> "Future[MatchedGrammar] | Future[ThinkingGrammar]":
        """See ``octavo.engine.grammar.GrammarSource``. The future raises ``GrammarError`` for what cannot be matched."""
        if thinking is not None:
            return self._run(self._begin_thinking, wanted, ends, thinking, budget)
        if wanted is None:
            raise ValueError("there is nothing to confine a text to")
        with self._lock:
            known = self._lookup(_key(wanted), ends=ends)
        if known is not None:
            done: Future[MatchedGrammar] = Future()
            done.set_result(known)
            return done
        return self._run(self._compile, wanted, ends)

    def _run(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> "Future[T]":
        if self._thread is None:
            self._thread = _deep_thread(_begin_thread)
        return self._thread.submit(function, *arguments, **keywords)

    def _begin_thinking(
        self, wanted: StructuredOutputsParams | None, ends: bool, thinking: Thinking, budget: int | None
    ) -> ThinkingGrammar:
        answer = self._compile(wanted, ends) if wanted is not None else None
        tables = self._tables_of(thinking.opening, thinking.closing)
        return ThinkingGrammar(tables, answer, tagged=thinking.tagged, implied=thinking.implied, budget=budget)

    def _tables_of(self, opening: str, closing: str) -> TagTables:
        tags = opening, closing
        if tags not in self._tables:
            vocabulary = self._loaded()
            mask_bytes = (len(vocabulary.tokens) + 31) // 32 * 4
            self._tables[tags] = TagTables(
                vocabulary.tokens, vocabulary.eos_token_ids, opening=opening, closing=closing, mask_bytes=mask_bytes
            )
        return self._tables[tags]

    def _loaded(self) -> Vocabulary:
        if self._read is None:
            self._read = self._vocabulary()
        return self._read

    def _lookup(self, key: bytes, *, ends: bool) -> MatchedGrammar | None:
        entry = self._cache.get(key)
        if entry is None:
            return None
        self._cache.move_to_end(key)
        return entry[0].fork() if ends else entry[0].without_ends(self._ends)

    def _compile(self, wanted: StructuredOutputsParams, ends: bool) -> MatchedGrammar:
        key = _key(wanted)
        with self._lock:
            known = self._lookup(key, ends=ends)
        if known is not None:
            return known
        compiler = self._compiler or self._build()
        root = MatchedGrammar(compiler.compile(wanted), compiler.mask_bytes, None)
        root.compute_mask()
        with self._lock:
            self._keep(key, root, _estimated_bytes(wanted))
            return root.fork() if ends else root.without_ends(self._ends)

    def _build(self) -> "GrammarCompiler":
        from octavo.structured.compiler import GrammarCompiler

        vocabulary = self._loaded()
        compiler = self._compiler = GrammarCompiler(vocabulary)
        ends = np.zeros(compiler.mask_bytes * 8, np.uint8)
        ends[vocabulary.eos_token_ids] = 1
        ends[len(vocabulary.tokens) :] = 1
        self._ends = np.packbits(ends, bitorder="little")
        return compiler

    def _keep(self, key: bytes, root: MatchedGrammar, num_bytes: int) -> None:
        self._cache[key] = root, num_bytes
        self._cached_bytes += num_bytes
        while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1][1]


def _key(wanted: StructuredOutputsParams) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(wanted)).digest()


def _estimated_bytes(wanted: StructuredOutputsParams) -> int:
    """Measured: a kilobyte for a byte of the largest schemas; the library does not tell."""
    return (64 << 10) + 1024 * len(msgspec.msgpack.encode(wanted))


def _deep_thread(begin: Callable[[], None]) -> ThreadPoolExecutor:
    """One thread whose stack is deeper than that of whoever checked the grammars, because the library recurses."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar", initializer=begin)
        pool.submit(int).result()  # the thread starts with its first task
        return pool
    finally:
        threading.stack_size(before)


def _begin_thread() -> None:
    """On Linux a priority can be a thread's own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
