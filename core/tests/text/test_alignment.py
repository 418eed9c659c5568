"""Which tokens end before a character, whatever a tokenizer adds, drops or changes."""

from __future__ import annotations

from itertools import accumulate

import pytest

from tensorsharp.text.alignment import shown, tokens_before
from tensorsharp.text.tokenizer import load_tokenizer

from .goldens import PLAIN
from .tiny import MetadataFile, byte_level, marked

KINDS = {
    "bytes": byte_level(PLAIN, "gpt-2"),
    "puts a space in front": marked(PLAIN, "llama"),
    "drops white space": marked(PLAIN, "llama", "<s>", "</s>", "<USER>", **{"general.name": "Phi-3"}),
}
SAID = [text.strip() for text in PLAIN if len(text.split()) > 3 and "<" not in text]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_before_what_each_message_says(kind: str) -> None:
    tokenizer = load_tokenizer(MetadataFile(KINDS[kind]))
    parts = [f"<USER>\n{text}<CONTROL> " for text in SAID]
    text = "".join(parts)
    ids = tokenizer.encode(text)
    marks = [start + len("<USER>\n") for start in accumulate(map(len, parts[:-1]), initial=0)]

    def visible(data: bytes) -> bytes:
        """Without all that some read as a space, put in front or drop."""
        return b"".join(data.removeprefix(b"<BOS>").replace("\u2581".encode(), b" ").split())

    def tokens(count: int) -> bytes:
        return visible(b"".join(shown(tokenizer, token) for token in ids[:count]))

    for count, mark in zip(tokens_before(tokenizer, text, ids, marks), marks, strict=True):
        before = visible(text[:mark].encode())
        assert before == tokens(count) or tokens(count) < before < tokens(count + 1), "or a token goes across"


def test_every_character_of_a_text_whose_tokens_are_its_bytes() -> None:
    tokenizer = load_tokenizer(MetadataFile(KINDS["bytes"]))
    text = "é<CONTROL>日本語 the the" * 3
    ids = tokenizer.encode(text)
    lengths = [*accumulate(len(shown(tokenizer, token)) for token in ids)]
    expected = [sum(length <= len(text[:mark].encode()) for length in lengths) for mark in range(len(text) + 1)]
    assert tokens_before(tokenizer, text, ids, range(len(text) + 1)) == expected


def test_what_cannot_be_followed_has_no_place() -> None:
    tokenizer = load_tokenizer(MetadataFile(KINDS["bytes"]))
    ids = tokenizer.encode("abc <CONTROL> abc")
    another = "abc " + "-" * 40 + "abc"
    assert tokens_before(tokenizer, another, ids, [0, 4, len(another)]) == [0, tokens_before(tokenizer, "abc ", ids, [4])[0], 0]
    assert tokens_before(tokenizer, "abc", [], [0, 2]) == [0, 0]
