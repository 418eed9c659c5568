"""Grammars and schemas that are deep by reference: up to the limit they are followed, beyond it they would end the process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tensorsharp.errors import RequestError
from tensorsharp.testing.tinyvocab import byte_vocabulary
from tensorsharp.text.constraints import Constraints
from tensorsharp.text.nesting import MAX_LEVELS
from tensorsharp.text.tokenizer import load_tokenizer
from tensorsharp.types import Constraint

from .tiny import MetadataFile


@pytest.fixture(scope="module")
def constraints() -> Constraints:
    return Constraints(load_tokenizer(MetadataFile(byte_vocabulary(300))))


def gbnf(rules: int) -> Constraint:
    chain = "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(rules - 2))
    return Constraint("grammar", f'root ::= r0\n{chain}\nr{rules - 2} ::= "x"')


def lark(rules: int, groups: int = 0) -> Constraint:
    chain = "\n".join(f'r{n}: {"(" * groups}"a" r{n + 1}{")*" * groups}' for n in range(rules - 2))
    return Constraint("lark", f'start: r0\n{chain}\nr{rules - 2}: "x"')


def schema(references: int, inside: int, keyword: str = "$defs") -> Constraint:
    """References one behind another, each so many lists of lists deep."""

    def nested(inner: Any) -> Any:
        for _ in range(inside):
            inner = {"items": inner}
        return inner

    places = {f"d{n}": nested({"$ref": f"#/{keyword}/d{n + 1}"}) for n in range(references)}
    return Constraint.json_schema({keyword: {**places, f"d{references}": {"type": "null"}}, "$ref": f"#/{keyword}/d0"})


def in_json(references: int) -> Constraint:
    """A schema within a grammar, with a keyword whose letters are escapes."""
    source = schema(references, 0).source.replace("$ref", "\\u0024ref")
    return Constraint("lark", f"start: %json {source}")


DEEP = [gbnf(MAX_LEVELS), lark(MAX_LEVELS), lark(90, 10), schema(330, 2), schema(30, 32), schema(MAX_LEVELS - 1, 0), in_json(400)]


@pytest.mark.parametrize("constraint", DEEP)
def test_as_deep_as_may_be(constraints: Constraints, constraint: Constraint) -> None:
    with ThreadPoolExecutor(1) as pool:  # as the server does it: its stack is smaller than the main thread's may be
        assert pool.submit(constraints.compile, constraint).result().start().mask() is not None


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (gbnf(MAX_LEVELS + 1), "line 1001, column 1: there are more than 1,000 rules"),
        (gbnf(8000), "there are more than 1,000 rules"),
        (lark(MAX_LEVELS + 1), "The grammar has 1,001 rules and groups; expected at most 1,000"),
        (lark(500, 5), "rules and groups"),
        (schema(3000, 1), "The schema has references to 6,001 levels of JSON; expected at most 1,000"),
        (schema(300, 20), "references to"),
        (schema(2000, 1, "default"), "references to"),
        (in_json(2000), "rules and groups"),
    ],
)
def test_deeper_is_refused(constraints: Constraints, constraint: Constraint, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        constraints.compile(constraint)
    assert words in str(caught.value)


def test_what_is_wide_is_not_deep(constraints: Constraints) -> None:
    grammar = 'start: "(" (NAME | /\\(\\[/ "{{" )* // (not [a] {group})\nNAME: ' + " | ".join(f'"({n}"' for n in range(2000))
    assert constraints.compile(Constraint("lark", grammar)).start().mask() is not None
