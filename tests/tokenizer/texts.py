"""Texts of every kind a tokenizer meets: prose, code, scripts, emoji, odd whitespace, and random mixtures of them."""

# ruff: noqa: RUF001 - characters that look like others are what tokenizers must tell apart

import random

PIECES = [
    "Hello", "world", "The quick brown fox", "don't", "I'LL", "we've", "O'Neill's", "it’s", "naïve café", "Ünïcödé",
    "你好，世界。", "日本語のテキスト", "한국어 문장", "العربية", "עברית", "हिन्दी में", "ไทย", "русский язык", "Ελληνικά", "🙂",
    "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "é", "e\u0301", "ﬁ", "①²³", "٣٤٥", "１２３", "½", "𝕳𝖊𝖑𝖑𝖔", "\U0001f9d1\u200d\U0001f680",
    "0", "7", "42", "1234567", "3.14159", "1,000,000", "2026-11-21", "0xDEADBEEF", "1e-9", "v1.2.3", " ", "  ", "   ",
    "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\u200b",
    "def f(x):\n    return x + 1\n", "if (a != b) { return; }", "<html><body/></html>",
    "SELECT * FROM t WHERE a='b';", "http://example.org/a?b=c&d=%20", "a@b.org", "C:\\Users\\x",
    "#include <stdio.h>\n", "{\"key\": [1, 2, null]}", "$x_1^2$", "...", "!!!", "?!", "--", "—", "“quoted”", "(a)",
    "[b]", "{c}", "a/b", "~~", "```python\n", "* item\n* item\n", "|a|b|\n|-|-|\n", "<|im_start|>", "<|im_end|>",
    "<|endoftext|>", "<|im_start|>user\n", "<|im_sta", "|>", "<s>", "</s>", "<unk>", "▁", "▁▁a", "Ġ", "<0x0A>",
    "\x00", "\x01\x02", "\x7f", "\ufeff", "\ufffd", "\U0010ffff", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "AbCdEfGhIjK",
    "ALLCAPS", "camelCase",
]  # fmt: skip


def varied_texts(count: int, seed: int) -> list[str]:
    """``count`` texts; the first ones are the pieces alone, with and without a space before them."""
    chosen = random.Random(seed)
    texts = ["", *PIECES, *(" " + piece for piece in PIECES), *(piece + " " for piece in PIECES)]
    while len(texts) < count:
        parts = chosen.choices(PIECES, k=chosen.randint(1, 8))
        joiner = chosen.choice(["", " ", "  ", "\n", "1"])
        text = joiner.join(parts)
        if chosen.random() < 0.2:
            text += "".join(
                chr(chosen.choice([chosen.randrange(0x20, 0x3000), chosen.randrange(0xE000, 0x20000)])) for _ in range(6)
            )
        texts.append(text)
    return texts[:count]
