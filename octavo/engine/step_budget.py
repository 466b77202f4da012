"""How the tokens of one step are shared: a place for each decode, up to half of the rest for short prompts, then the others.

Without it a long prompt would fill whole steps. A prompt that lacks no more than one step's tokens is *short*: up to half of
what decodes leave is kept for short prompts, so neither kind starves. Among equals the policy's order holds. Knows no sequence,
only how many tokens each lacks.
"""


class StepBudget:
    """``left`` tokens of a step are still to be given away. ``splits``: long prompts may be computed in parts; who cannot be
    split must get all or nothing, so that nothing is kept from it."""

    def __init__(self, tokens: int, *, splits: bool) -> None:
        self.left = tokens
        self._tokens = tokens
        self._splits = splits
        self._decodes = self._decodes_to_plan = 0
        self._short = self._short_given = 0

    @property
    def wants_more(self) -> bool:
        """Whether more could be kept for short prompts."""
        return self._short < self._most_for_short

    @property
    def _most_for_short(self) -> int:
        return max(0, self._tokens - self._decodes) // 2 if self._splits else 0

    def expect(self, lacking: int) -> None:
        """A sequence may be given tokens in this step."""
        if lacking == 1:
            self._decodes += 1
            self._decodes_to_plan += 1
        elif 1 < lacking <= self._tokens:
            self._short += lacking

    def decodes_are_planned(self) -> None:
        """Those that have got nothing by now need nothing."""
        self._decodes_to_plan = 0

    def allowed(self, lacking: int, taken: int) -> int:
        """The most that a sequence may be given now, ``taken`` being what others of its group get."""
        left = self.left - taken
        if lacking == 1:
            return left
        free = max(1, left - self._decodes_to_plan)
        if lacking > self._tokens:
            free -= max(0, min(self._short, self._most_for_short) - self._short_given)
        return max(0, min(left, free))

    def take(self, num_tokens: int, lacking: int) -> None:
        """A sequence that lacked so many has been given tokens."""
        self.left -= num_tokens
        if lacking == 1:
            self._decodes_to_plan -= 1
        elif lacking <= self._tokens:
            self._short_given += num_tokens
