"""``bad_words``: the last token of a banned sequence is impossible where the tokens before it already stand."""

from octavo.sampling.row import SampleRow, history_of


def banned(row: SampleRow) -> list[int]:
    """The tokens that would end a banned sequence."""
    return [words[-1] for words in row.bad_words_token_ids if words and _ends_with(row, words[:-1])]


def _ends_with(row: SampleRow, tokens: tuple[int, ...]) -> bool:
    return not tokens or tuple(history_of(row)[-len(tokens) :].tolist()) == tokens
