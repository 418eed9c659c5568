"""The fewest tokens of a text: never more than it gets, whatever the vocabulary, and close for what is often sent."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.errors import UnsupportedError
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text import fewest
from tensorsharp.text.tokenizer import load_tokenizer

from . import goldens
from .tiny import CONTROL, MARK, NORMAL, UNKNOWN, USER_DEFINED, MetadataFile, letters

CASES = goldens.vocabularies()
PIECES = [*"aAéЖ中1 \n\t\r'._\u0301🙂\ud800\0", MARK, "  ", "Hello", " ellipsis", "<CONTROL>", "<USER>", "<|end|>", "    "]
BYTES = dict.fromkeys(letters(), NORMAL)


@cache
def tokenizer(case: str) -> Tokenizer:
    return load_tokenizer(MetadataFile(CASES[case]))


def bpe(tokens: dict[str, int], *merges: str, **changes: Any) -> Tokenizer:
    """A byte-level tokenizer of a few tokens: text -> kind."""
    return made("gpt2", tokens, {"pre": "gpt-2", "merges": list(merges)} | changes)


def spm(tokens: dict[str, int], **changes: Any) -> Tokenizer:
    """A SentencePiece-style tokenizer of a few tokens, the first merged first: text -> kind."""
    scores = [-float(i) for i in range(len(tokens))]
    return made("llama", tokens, {"scores": scores, "add_bos_token": False, "add_space_prefix": False} | changes)


def made(model: str, tokens: dict[str, int], changes: dict[str, Any]) -> Tokenizer:
    metadata = {"model": model, "tokens": list(tokens), "token_type": list(tokens.values())} | changes
    name = metadata.pop("name", "")
    file = {"general.name": name} | {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return load_tokenizer(MetadataFile(file))


@pytest.mark.parametrize(
    "case", ["default", "smollm", "kimi-k2", "deepseek-v3", "llama", "llama, no space in front", "gemma4", "phi-3"]
)
def test_no_text_has_fewer(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = tokenizer(case)

    @given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.integers(0, 10), st.sampled_from([1, 3, 1 << 16]))
    @settings(max_examples=60, deadline=None)
    def holds(text: str, most: int, window: int) -> None:
        monkeypatch.setattr(fewest, "_WINDOW", window)
        least = some.at_least(text, 1000)
        assert least <= min(len(some.encode(text, special=special, bos=False)) for special in (True, False))
        assert some.at_least(text, most) == min(least, most + 1)

    holds()


def test_repeated_text_is_counted_exactly() -> None:
    some = spm(dict.fromkeys(("a", "aa", "aaaa", "aaaaaaaa", "a" * 16, "b"), NORMAL))
    text = "a" * 16 * 5000 + "aaa"
    assert some.at_least(text, 1 << 20) == 5001
    assert some.at_least(text, 5000) == 5001
    assert some.at_least(text, 41) == 42


def test_no_more_of_a_text_is_read_than_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewest, "_WINDOW", 100)
    spelled: list[int] = []

    def spell(text: str) -> bytes:
        spelled.append(len(text))
        return text.encode()

    some = fewest.FewestTokens([], spell, b"")
    assert some.count("a" * 100_000, 60) == 61
    assert sum(spelled) == 2 * (100 + 8)


def test_bytes_that_get_no_token_count_nothing() -> None:
    some = bpe({"a": NORMAL}, bos_token_id=0, eos_token_id=0)
    assert some.encode("x" * 50 + "a" + "x" * 50) == [0]
    assert some.at_least("x" * 50 + "a" + "x" * 50, 100) == 1
    assert some.at_least("x" * 200_000, 100) == 0


def test_merged_parts_that_are_no_tokens_may_get_none() -> None:
    some = bpe(BYTES, "\u0120 \u0120", bos_token_id=0, eos_token_id=0)
    assert some.encode("a" + " " * 64) == [ord("a")]
    assert some.at_least("a" + " " * 64, 100) == 1


def test_white_space_that_a_token_swallows_counts_nothing() -> None:
    tokens = {"<unk>": UNKNOWN, "<|end|>": CONTROL, MARK: NORMAL, "\n": NORMAL}
    some = spm(tokens, name="Phi-3 mini")
    assert some.encode("<|end|>" + " \n" * 300) == [1]
    assert some.at_least("<|end|>" + " \n" * 300, 100) <= 1


def test_a_token_may_begin_with_the_space_put_in_front() -> None:
    tokens = dict.fromkeys((f"{MARK}aaaaaaaa"[:end] for end in range(2, 10)), NORMAL) | dict.fromkeys((MARK, "a"), NORMAL)
    some = spm(tokens, add_space_prefix=True)
    assert some.encode("aaaaaaaa") == [7]
    assert some.at_least("aaaaaaaa", 100) == 1


def test_special_tokens_are_found_as_texts_write_them() -> None:
    some = bpe(BYTES | {"<of several wörds>": USER_DEFINED}, bos_token_id=0, eos_token_id=0)
    assert some.encode("<of several wörds>" * 9) == [256] * 9
    assert some.at_least("<of several wörds>" * 9, 100) <= 9


def test_without_a_vocabulary_there_is_no_text() -> None:
    with pytest.raises(UnsupportedError, match="has no vocabulary"):
        load_tokenizer(MetadataFile({"tokenizer.ggml.model": "none"})).at_least("a", 1)
