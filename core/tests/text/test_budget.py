"""A limit on reasoning: the end is forced exactly when it is reached, whatever else holds for the reply."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tensorsharp.protocols.constraint import Matcher
from tensorsharp.testing.tinyvocab import byte_vocabulary
from tensorsharp.text.budget import ReasoningBudget
from tensorsharp.text.constraints import Constraints
from tensorsharp.text.tokenizer import load_tokenizer
from tensorsharp.types import Constraint

from .tiny import MetadataFile

TOKENIZER = load_tokenizer(MetadataFile(byte_vocabulary(300)))
CLOSING = b"\n</think>"


def budget(tokens: int, opening: str = "<think>", constraint: Constraint | None = None) -> ReasoningBudget:
    """Over a vocabulary whose tokens are bytes."""
    inner = None if constraint is None else Constraints(TOKENIZER).compile(constraint)
    return ReasoningBudget(tokens, opening, "</think>", CLOSING, TOKENIZER.bytes_of, TOKENIZER.vocab_size, inner)


def forced(matcher: Matcher) -> list[int] | None:
    """The tokens that alone may come, or None where more than one may."""
    mask = matcher.mask()
    return None if mask is None or mask.sum() > 1 else [int(token) for token in mask.nonzero()[0]]


def feed(matcher: Matcher, text: bytes) -> Matcher:
    for byte in text:
        mask = matcher.mask()
        assert mask is None or mask[byte]
        matcher.accept(byte)
    return matcher


def forced_text(matcher: Matcher, longest: int = 20) -> bytes:
    """What comes while one token alone may."""
    made: list[int] = []
    while len(made) < longest and (tokens := forced(matcher)):
        made += tokens
        assert not matcher.accepting
        assert not matcher.complete
        matcher.accept(tokens[0])
    return bytes(made)


@pytest.mark.parametrize(
    ("tokens", "opening", "text", "closes"),
    [
        (3, "<think>", b"<think>abc", True),
        (3, "<think>", b"<think>ab", False),
        (3, "<think>", b" \n<think>abc", True),
        (0, "<think>", b"<think>", True),
        (3, "<think>", b"abcdefgh", False),
        (3, "<think>", b"a<think>abcdef", False),
        (3, "<think>", b"<thin", False),
        (3, "", b"abc", True),
        (0, "", b"", True),
        (12, "", b"abc</think>defghijklmnop", False),
        (20, "<think>", b"<think>abc</think>d<think>efghijklmnopqrstuvwxyz", False),
    ],
)
def test_the_end_is_forced_when_the_tokens_are_used_up(tokens: int, opening: str, text: bytes, closes: bool) -> None:
    matcher = feed(budget(tokens, opening).start(), text)
    assert matcher.accepting is not closes
    assert forced_text(matcher) == (CLOSING if closes else b"")
    assert (matcher.mask(), matcher.accepting, matcher.complete) == (None, True, False)


def test_a_reply_may_close_by_itself_with_its_last_token() -> None:
    matcher = feed(budget(len("ab</think>"), "").start(), b"ab</think>")
    assert (matcher.mask(), matcher.accepting) == (None, True)


def test_what_else_holds_begins_behind_the_forced_end() -> None:
    matcher = feed(budget(2, "<think>", Constraint.choice(["yes", "no"])).start(), b"")
    assert not matcher.accepting
    constraint = Constraint("choice", '["yes", "no"]', after="</think>", opening="<think>")
    matcher = feed(budget(2, "<think>", constraint).start(), b"<think>no")
    assert forced_text(matcher) == CLOSING
    matcher = feed(matcher, b"\n\nyes")
    assert (matcher.accepting, matcher.complete) == (True, True)


@pytest.mark.parametrize("constraint", [None, Constraint("choice", '["yes", "no"]', after="</think>", opening="<think>")])
def test_rolling_back_leads_to_where_it_was(constraint: Constraint | None) -> None:
    grammar = budget(3, "<think>", constraint)
    text = b"<think>abc" + CLOSING + b"yes"

    def state(matcher: Matcher) -> tuple[Sequence[bool] | None, bool, bool]:
        mask = matcher.mask()
        return None if mask is None else mask.tolist(), matcher.accepting, matcher.complete

    states = [state(feed(grammar.start(), text[:n])) for n in range(len(text) + 1)]
    for end in range(len(text) + 1):
        for back in range(end + 1):
            matcher = feed(grammar.start(), text[:end])
            matcher.rollback(back)
            assert state(matcher) == states[end - back]
            assert state(feed(matcher, text[end - back : end])) == states[end]
