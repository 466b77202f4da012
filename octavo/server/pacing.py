"""How often a stream speaks: ``stream_interval`` tokens of a choice come together.

Owns what is held back of each choice. Nothing is lost and nothing reordered: the updates that leave, joined, are those that
came.
"""

from collections.abc import Iterable

import msgspec

from octavo.output_processor import ChoiceUpdate


class Pacer:
    """One stream's. A choice's first token and its end leave at once."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: dict[int, ChoiceUpdate] = {}
        self._begun: set[int] = set()

    def take(self, updates: list[ChoiceUpdate]) -> list[ChoiceUpdate]:
        """What leaves now."""
        return updates if self._interval == 1 else list(self._due(updates))

    def rest(self) -> list[ChoiceUpdate]:
        """What is held back, for when nothing more will come."""
        rest = [self._held[index] for index in sorted(self._held)]
        self._held.clear()
        return rest

    def _due(self, updates: Iterable[ChoiceUpdate]) -> Iterable[ChoiceUpdate]:
        for update in updates:
            if update.beams is not None:
                yield update
                continue
            index, held = update.index, self._held.pop(update.index, None)
            joined = update if held is None else _joined(held, update)
            first = index not in self._begun and bool(joined.token_ids)
            if first or joined.finish_reason is not None or len(joined.token_ids) >= self._interval:
                self._begun.add(index)
                yield joined
            else:
                self._held[index] = joined


def _joined(earlier: ChoiceUpdate, later: ChoiceUpdate) -> ChoiceUpdate:
    logprobs = None
    if earlier.logprobs is not None or later.logprobs is not None:
        logprobs = [*(earlier.logprobs or ()), *(later.logprobs or ())]
    return msgspec.structs.replace(
        later,
        text=earlier.text + later.text,
        token_ids=earlier.token_ids + later.token_ids,
        logprobs=logprobs,
        num_discarded=earlier.num_discarded + later.num_discarded,
        prompt_logprobs=earlier.prompt_logprobs if later.prompt_logprobs is None else later.prompt_logprobs,
    )
