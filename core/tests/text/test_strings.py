"""Finding a text among many: exactly what a dictionary would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.text import strings
from tensorsharp.text.strings import Lookup, Strings

TEXTS = st.lists(st.one_of(st.binary(max_size=30), st.text("ab ", max_size=40).map(str.encode)), max_size=60)


@given(TEXTS, TEXTS)
def test_finds_the_first_of_equal_ones_and_nothing_else(texts: list[bytes], others: list[bytes]) -> None:
    lookup = Lookup(Strings.of(texts))
    for text in (*texts, *others, *texts):
        assert lookup.get(text) == (texts.index(text) if text in texts else None)


@given(TEXTS)
def test_knows_twins(texts: list[bytes]) -> None:
    twins = Lookup(Strings.of(texts)).twins()
    if len(set(texts)) == len(texts):
        assert twins is None
    else:
        assert twins is not None
        first, second = twins
        assert first < second
        assert texts[first] == texts[second]


@given(TEXTS)
def test_one_at_a_time_hashes_like_all_at_once(texts: list[bytes]) -> None:
    assert strings._hash_all(Strings.of(texts)).tolist() == [strings._hash(text) for text in texts]


def test_strings_give_their_texts_back() -> None:
    texts = [b"", b"a", "ä".encode(), b"\xff" * 20]
    made = Strings.of(texts)
    assert made.tolist() == texts
    assert [made[i] for i in range(len(made))] == texts


def test_texts_made_to_share_a_slot_are_found_as_well() -> None:
    texts = [b"%08d" % 0 + b"%03d" % i + b"x" * 12 + b"%08d" % 0 for i in range(200)]
    lookup = Lookup(Strings.of(texts))
    assert lookup._all is not None
    assert [lookup.get(text) for text in texts] == list(range(200))
    assert lookup.get(b"no") is None
    assert lookup.twins() is None
