"""The lazy array of strings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tensorsharp.weights.string_array import StringArray

WORDS = ["", "a", "▁the", "", "<0x0A>", "日本語", "\n"]


def _array(words: Sequence[bytes]) -> StringArray:
    """Strings with eight bytes before each, as a file has them."""
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    starts = np.cumsum(lengths + 8) - lengths
    raw = b"".join(len(word).to_bytes(8, "little") + word for word in words)
    return StringArray(np.frombuffer(raw, np.uint8), starts, starts + lengths)


@pytest.fixture
def words() -> StringArray:
    return _array([word.encode() for word in WORDS])


def test_reads_like_a_list(words: StringArray) -> None:
    assert len(words) == len(WORDS)
    assert words.tolist() == WORDS
    assert list(words) == WORDS
    assert [words[index] for index in range(-7, 7)] == WORDS * 2
    assert "日本語" in words
    assert "日" not in words
    assert words.index("<0x0A>") == 4


@pytest.mark.parametrize("index", [7, -8])
def test_an_index_outside_is_an_index_error(words: StringArray, index: int) -> None:
    with pytest.raises(IndexError):
        words[index]


@pytest.mark.parametrize("cut", [slice(2, 5), slice(None, None, -1), slice(None, None, 3), slice(5, 2), slice(-2, None)])
def test_a_slice_is_lazy_and_reads_like_a_lists_slice(words: StringArray, cut: slice) -> None:
    part = words[cut]
    assert isinstance(part, StringArray)
    assert part.raw is words.raw
    assert part.tolist() == WORDS[cut]


def test_the_raw_bytes_are_at_hand(words: StringArray) -> None:
    spans = zip(words.starts.tolist(), words.ends.tolist(), strict=True)
    assert [bytes(words.raw[start:end]) for start, end in spans] == [word.encode() for word in WORDS]


def test_bytes_that_are_not_utf8_are_kept_raw_and_replaced_in_text() -> None:
    array = _array([b"\xff\xfe", b"ok"])
    assert array.tolist() == ["��", "ok"]
    assert array[0] == "��"
    assert bytes(array.raw[array.starts[0] : array.ends[0]]) == b"\xff\xfe"


def test_an_empty_array_is_empty() -> None:
    assert _array([]).tolist() == []
    assert list(_array([])[:3]) == []


def test_repr_shows_the_first_three(words: StringArray) -> None:
    assert repr(words) == "StringArray(7: ['', 'a', '▁the', …])"
