"""Reading many strings at once gives what reading them one by one gives, or leaves it to that."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.weights.string_scan import WORTH, string_starts


def packed(strings: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(struct.pack("<Q", len(s)) + s for s in strings), np.uint8)


def edges(strings: list[bytes]) -> list[int]:
    return np.cumsum([0, *(8 + len(s) for s in strings)]).tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 60), st.sampled_from([1, 4, 64]), st.binary(max_size=40))
def test_what_is_found_is_right(seed: int, longest: int, alphabet: int, after: bytes) -> None:
    """Strings of a small alphabet that includes NUL are full of runs that look like lengths."""
    rng = np.random.default_rng(seed)
    strings = [rng.integers(0, alphabet, rng.integers(0, longest + 1), np.uint8).tobytes() for _ in range(WORTH)]
    found = string_starts(np.concatenate([packed(strings), np.frombuffer(after, np.uint8)]), WORTH)
    assert found is None or found.tolist() == edges(strings)


@pytest.mark.parametrize("length", [1, 30, 255])
def test_plain_strings_are_found(length: int) -> None:
    strings = [bytes([65 + i % 26]) * (1 + i % length) for i in range(3000)]
    found = string_starts(packed([*strings, b"more"]), 3000)
    assert found is not None
    assert found.tolist() == edges(strings)


def test_what_it_cannot_read_is_left_to_others() -> None:
    strings = [b"abc"] * 2000
    assert string_starts(packed(strings[:100]), 100) is None, "few"
    assert string_starts(packed([*strings[:-1], b"x" * 256]), 2000) is None, "a long one"
    assert string_starts(packed(strings)[:-1], 2000) is None, "cut short"
    assert string_starts(packed(strings), 2001) is None, "one too few"
    assert string_starts(np.zeros(0, np.uint8), 2000) is None, "nothing"
