"""Constraints that begin where reasoning ends: markers of one token or several, and tokens that hold both sides of them."""

from __future__ import annotations

from typing import Any

import pytest

from tensorsharp.protocols.constraint import Matcher
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.testing.tinyvocab import byte_vocabulary
from tensorsharp.text.constraints import Constraints
from tensorsharp.text.tokenizer import load_tokenizer
from tensorsharp.types import Constraint

from .tiny import MetadataFile

WORDS = [
    "<think>",
    "</think>",
    "</th",
    "ink>",
    'nk>{"',
    "nk>[",
    "x</think>",
    ".</think>{",
    "k>\n\n{",
    "<th",
    "{}",
    "end",
    "ink></think>",
]
CONTROL = ["<|think|>", "<|done|>"]
FIRST = 280


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """256 bytes, some merged tokens, then WORDS as user-defined tokens and CONTROL as control tokens."""
    made: dict[str, Any] = byte_vocabulary(310)
    tokens, types = list(made["tokenizer.ggml.tokens"]), list(made["tokenizer.ggml.token_type"])
    for number, text in enumerate([*WORDS, *CONTROL]):
        tokens[FIRST + number], types[FIRST + number] = text, 4 if text in WORDS else 3
    return load_tokenizer(MetadataFile({**made, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}))


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    return Constraints(tokenizer)


def ids(*pieces: str) -> list[int]:
    """WORDS and CONTROL by name, all else byte by byte."""
    known = {text: FIRST + number for number, text in enumerate([*WORDS, *CONTROL])}
    return [token for piece in pieces for token in ([known[piece]] if piece in known else piece.encode())]


def allowed(matcher: Matcher, token: int) -> bool:
    mask = matcher.mask()
    return mask is None or bool(mask[token])


def run(matcher: Matcher, tokens: list[int]) -> Matcher:
    for token in tokens:
        assert allowed(matcher, token)
        assert not matcher.complete
        matcher.accept(token)
    return matcher


THINK = Constraint("json_object", after="</think>")


@pytest.mark.parametrize(
    "before",
    [
        ["</think>"],
        ["well ", "</think>"],
        ["<", "/", "think", ">"],
        ["</th", "ink>"],
        ["<</th", "</th", "i", "nk>"],
        ["</thinking ", "x</think>"],
        ["</think", "</think>"],
        ["</th", "</th", "ink>"],
        ["</think>", "\n"],
        ["</think>", "\n\n"],
    ],
    ids=" ".join,
)
def test_the_constraint_begins_behind_the_closing_text(constraints: Constraints, before: list[str]) -> None:
    matcher = run(constraints.compile(THINK).start(), ids(*before))
    assert not allowed(matcher, ord("x"))
    assert not matcher.accepting
    run(matcher, ids("{}"))
    assert (matcher.accepting, matcher.complete) == (True, True)


def test_before_it_everything_is_allowed_but_to_end(constraints: Constraints) -> None:
    matcher = run(constraints.compile(THINK).start(), ids("anything {", "<think>", "<|done|>", "</thinx"))
    assert (matcher.accepting, matcher.complete) == (False, False)
    assert matcher.mask() is None


@pytest.mark.parametrize(
    ("before", "token", "fits"),
    [
        (["</thi"], 'nk>{"', True),
        (["</thi"], "nk>[", False),
        (["</th"], "nk>[", True),
        ([], ".</think>{", True),
        (["</thin"], "k>\n\n{", True),
        (["</th"], "ink></think>", False),
        ([], "ink></think>", True),
    ],
)
def test_a_token_may_hold_the_end_and_the_beginning(constraints: Constraints, before: list[str], token: str, fits: bool) -> None:
    matcher = run(constraints.compile(THINK).start(), ids(*before))
    assert allowed(matcher, ids(token)[0]) == fits
    if fits:
        matcher.accept(ids(token)[0])
        rest = {'nk>{"': 'a":1}', "nk>[": "</think>{}", "ink></think>": "{}"}.get(token, "}")
        assert run(matcher, list(rest.encode())).complete


def test_a_control_token_closes_too(constraints: Constraints) -> None:
    matcher = run(constraints.compile(Constraint.choice(["end"])).start(), [])
    assert not allowed(matcher, ids("<|done|>")[0])
    gated = constraints.compile(Constraint("choice", '["end"]', after="<|done|>final<|think|>"))
    matcher = run(gated.start(), ids("hm", "<|done|>", "fi", "<|done|>", "final", "<|think|>"))
    assert not allowed(matcher, ids("<|done|>")[0])
    assert run(matcher, ids("end")).complete


def test_a_reply_may_begin_without_reasoning(constraints: Constraints) -> None:
    constraint = Constraint("json_object", after="</think>", opening="<think>")
    grammar = constraints.compile(constraint)
    assert run(grammar.start(), ids("{}")).complete
    assert not allowed(grammar.start(), ord("x"))
    for opening in (["<think>"], ["<th", "i", "nk>"]):
        matcher = run(grammar.start(), ids(*opening))
        assert allowed(matcher, ord("x"))
        assert run(matcher, ids("x</think>", "{}")).complete
    half = run(grammar.start(), ids("<th"))
    assert not allowed(half, ord("x"))
    assert not allowed(half, ord("{"))
    assert not allowed(half, ids("nk>[")[0])


def test_without_reasoning_the_content_begins_at_once(constraints: Constraints) -> None:
    choice = constraints.compile(Constraint("choice", '["end"]', after="</think>", opening="<think>"))
    assert not allowed(choice.start(), ord("\n"))
    assert run(choice.start(), ids("end")).complete
    assert run(choice.start(), ids("<think>", "</think>", "\n", "end")).complete
    broken = constraints.compile(Constraint("grammar", 'root ::= "\\n" "end"', after="</think>", opening="<think>"))
    assert run(broken.start(), ids("\n", "end")).complete


def test_a_reply_that_could_still_be_both(constraints: Constraints) -> None:
    constraint = Constraint("choice", '["<thin", "<think>"]', after="</think>", opening="<think>")
    grammar = constraints.compile(constraint)
    matcher = run(grammar.start(), ids("<th", "i", "n"))
    assert matcher.accepting
    matcher.accept(ord("k"))
    assert not matcher.accepting
    matcher.accept(ord(">"))  # the opening text wins
    assert allowed(matcher, ord("x"))
    assert run(matcher, ids("</think>", "<thin")).accepting


@pytest.mark.parametrize(
    "pieces",
    [["a</thi", 'nk>{"', 'a":1}'], ["x</think>", "\n", "{}"], ["</th", "ink>", '{"b":[]}']],
    ids=" ".join,
)
@pytest.mark.parametrize("opening", ["", "<think>"])
def test_rolling_back_is_never_having_gone(constraints: Constraints, pieces: list[str], opening: str) -> None:
    grammar = constraints.compile(Constraint("json_object", after="</think>", opening=opening))
    tokens = ids(*(["<", "think", ">"] if opening else []), *pieces)
    seen = []
    matcher = grammar.start()
    for token in tokens:
        mask = matcher.mask()
        seen.append((None if mask is None else mask.tobytes(), matcher.accepting))
        matcher.accept(token)
    assert matcher.complete
    for back in range(1, len(tokens) + 1):
        matcher.rollback(back)
        at = len(tokens) - back
        mask = matcher.mask()
        assert (None if mask is None else mask.tobytes(), matcher.accepting) == seen[at]
        run(matcher, tokens[at:])
        assert matcher.complete
