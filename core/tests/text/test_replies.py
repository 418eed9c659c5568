"""Replies are remembered by the text that they replied to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.text.replies import Replies, Said


def test_a_reply_is_found_behind_its_prompt_and_nowhere_else() -> None:
    replies = Replies()
    replies.remember(None, "Q: 4? A:", "4", [9, 8])
    assert replies.find(None, "Q: 4? A:4 Q: 4?") == [Said(8, 9, [9, 8])]
    assert replies.find(None, "Q: 4? A:44") == [Said(8, 9, [9, 8])], "whether it ends there is not for the text to say"
    assert replies.find(None, "Q: 4! A:4") == []
    assert replies.find(None, "Q: 4? A:5") == []
    assert replies.find(None, "Q: 4? A:") == []


def test_only_the_same_scope_finds_it() -> None:
    replies = Replies()
    replies.remember("mine", "a", "b", [1])
    assert [len(replies.find(scope, "ab")) for scope in ("mine", "yours", None)] == [1, 0, 0]


def test_every_turn_of_a_conversation() -> None:
    replies, line = Replies(), "u1 a"
    for turn in range(3):
        replies.remember(None, line, f"r{turn}", [turn])
        line += f"r{turn} u a"
    assert [(line[s.start : s.end], s.ids) for s in replies.find(None, line)] == [("r0", [0]), ("r1", [1]), ("r2", [2])]


def test_of_several_at_one_place_the_longest_and_of_one_text_the_latest() -> None:
    replies = Replies()
    for text, ids in (("a", [1]), ("ab", [2, 3]), ("abc", [4]), ("ab", [5])):
        replies.remember(None, "p", text, ids)
    assert replies.find(None, "pabX") == [Said(1, 3, [5])]
    assert len(replies) == 3


def test_one_inside_another_is_left_out() -> None:
    replies = Replies()
    replies.remember(None, "p", "abc", [1])
    replies.remember(None, "pa", "b", [2])
    assert replies.find(None, "pabc") == [Said(1, 4, [1])]


def test_the_longest_unused_is_forgotten_first() -> None:
    replies = Replies(most=200)
    for name in "ab":
        replies.remember(None, name, "x", [1])
    replies.find(None, "ax")
    replies.remember(None, "c", "x", [0] * 60)
    assert [len(replies.find(None, f"{name}x")) for name in "abc"] == [1, 0, 1]
    replies.remember(None, "d", "x", [0] * 500)
    assert len(replies) == 0, "one that is too large takes nothing but itself and what was there"


@given(
    st.lists(st.tuples(st.text("ab", max_size=4), st.text("ab", min_size=1, max_size=3)), max_size=8), st.text("ab", max_size=12)
)
def test_what_is_found_is_what_stands_there(known: list[tuple[str, str]], text: str) -> None:
    replies = Replies()
    for number, (prompt, reply) in enumerate(known):
        replies.remember(None, prompt, reply, [number])
    end = 0
    for said in replies.find(None, text):
        assert said.start >= end
        end = said.end
        assert known[said.ids[0]] == (text[: said.start], text[said.start : said.end])
