"""Incremental text: the same whatever the tokens, never half a character, never a part of a stop string."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.engine.stream import TextStream
from tensorsharp.errors import RequestError


class Bytes:
    """A tokenizer whose token i is a given piece of bytes; empty ones stand for control tokens."""

    bos = None
    eos = None
    end_tokens: frozenset[int] = frozenset()

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        raise NotImplementedError

    def at_least(self, text: str, most: int) -> int:
        raise NotImplementedError

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        return self.pieces[token]

    def piece(self, token: int) -> str:
        return repr(self.pieces[token])


def stream(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[list[str], str | None]:
    """What each token gives, and at the end the rest; and the stop string."""
    text = TextStream(Bytes(pieces), stop)
    shown = [text.push(token) for token in range(len(pieces))]
    return [*shown, text.finish()], text.stopped


def cut(data: bytes, *at: int) -> list[bytes]:
    edges = [0, *sorted(at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def expected(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """By definition: the first end of a stop string, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_shows_a_token_at_once_where_nothing_can_follow() -> None:
    assert stream([b"Hel", b"lo", b" \xc3\xa4"]) == (["Hel", "lo", " ä", ""], None)


def test_waits_for_the_rest_of_a_character() -> None:
    assert stream([b"\xf0\x9f", b"\x99", b"\x82!"]) == (["", "", "🙂!", ""], None)


def test_a_character_that_never_ends_is_replaced() -> None:
    assert stream([b"a\xe4\xbd"]) == (["a", "\ufffd"], None)


def test_a_broken_character_is_replaced_as_soon_as_it_is_known() -> None:
    assert stream([b"\xe4\xbd", b"b"]) == (["", "\ufffdb", ""], None)


def test_control_tokens_give_nothing_and_do_not_break_a_character() -> None:
    assert stream([b"\xc3", b"", b"\xa4"]) == (["", "", "ä", ""], None)


def test_keeps_the_space_a_reply_begins_with() -> None:
    assert stream([b" Paris"]) == ([" Paris", ""], None)


def test_holds_back_only_what_may_become_a_stop_string() -> None:
    assert stream([b"one E", b"N", b"D"], ["END"]) == (["one ", "", "", ""], "END")
    assert stream([b"one E", b"N", b"d"], ["END"]) == (["one ", "", "ENd", ""], None)
    assert stream([b"one EN"], ["END"]) == (["one ", "EN"], None)


def test_text_before_the_stop_string_in_the_same_token_is_kept_and_after_it_dropped() -> None:
    assert stream([b"yes\nUser: no", b"more"], ["\nUser:"]) == (["yes", "", ""], "\nUser:")


def test_the_stop_string_that_ends_first_counts() -> None:
    assert stream([b"xabcd"], ["abcd", "bc"]) == (["xa", ""], "bc")


def test_of_those_that_end_together_the_longest_counts() -> None:
    assert stream([b"xabc"], ["bc", "abc", "c"]) == (["x", ""], "abc")


def test_a_stop_string_that_overlaps_itself() -> None:
    assert stream([b"a", b"a", b"a", b"b"], ["aab"]) == (["", "", "a", "", ""], "aab")


def test_a_broken_character_can_be_a_stop_string() -> None:
    assert stream([b"a\xff"], ["\ufffd"]) == (["a", ""], "\ufffd")
    assert stream([b"a\xc3"], ["\ufffd"]) == (["a", ""], "\ufffd")


def test_gives_nothing_after_the_end() -> None:
    text = TextStream(Bytes([b"a.", b"b"]), ["."])
    assert [text.push(0), text.push(1), text.push(0), text.finish()] == ["a", "", "", ""]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop has an empty string"):
        TextStream(Bytes([]), ["a", ""])


@pytest.mark.parametrize("stop", ["END", "。終わり", "👍🏽", "ä", "aab"])
def test_a_stop_string_cut_at_every_two_places(stop: str) -> None:
    before = "vorher aä "
    data = f"{before}{stop} nachher".encode()
    for a in range(len(data) + 1):
        for b in range(a, len(data) + 1):
            shown, stopped = stream(cut(data, a, b), [stop])
            text, want = expected(data.decode(), [stop])
            assert ("".join(shown), stopped) == (text, want)


@given(st.lists(st.binary(max_size=5), max_size=12))
def test_pieces_are_the_whole_for_any_bytes(pieces: list[bytes]) -> None:
    shown, stopped = stream(pieces)
    assert "".join(shown) == Bytes(pieces).decode(range(len(pieces)))
    assert stopped is None


@given(st.text("ab é🙂\n", max_size=24), st.lists(st.text("ab é🙂\n", min_size=1, max_size=4), max_size=3), st.data())
def test_the_text_alone_decides_where_it_stops(text: str, stop: list[str], data: st.DataObject) -> None:
    raw = text.encode()
    places = data.draw(st.lists(st.integers(0, len(raw)), max_size=8))
    shown, stopped = stream(cut(raw, *places), stop)
    assert ("".join(shown), stopped) == expected(text, stop)


@given(st.text("ab", max_size=24), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_what_was_shown_is_never_part_of_a_stop_string(text: str, stop: list[str]) -> None:
    pieces = [char.encode() for char in text]
    shown, _ = stream(pieces, stop)
    whole, _ = expected(text, stop)
    for token in range(len(pieces)):
        assert whole.startswith("".join(shown[: token + 1]))
