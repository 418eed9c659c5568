"""Constraints over a tiny vocabulary: what they let through, and what is refused with its place."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tensorsharp.errors import BackendError, RequestError, UnsupportedError
from tensorsharp.protocols.constraint import Grammar, Matcher
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.testing.tinyvocab import byte_vocabulary
from tensorsharp.text.constraints import MAX_SOURCE, Constraints
from tensorsharp.text.masks import TokenTrie
from tensorsharp.text.tokenizer import load_tokenizer
from tensorsharp.types import Constraint

from .tiny import MetadataFile

SAFE = 2**53 - 1
"""The bounds that zod writes for every whole number are SAFE and its negative."""
DRAFT7 = "http://json-schema.org/draft-07/schema#"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MetadataFile(byte_vocabulary(300)))


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    return Constraints(tokenizer)


def fed(grammar: Grammar, tokens: Sequence[int]) -> Matcher:
    """The matcher after tokens, each of which its mask must allow."""
    matcher = grammar.start()
    for token in tokens:
        mask = matcher.mask()
        assert mask is not None
        assert mask[token]
        matcher.accept(token)
    return matcher


def fits(grammar: Grammar, text: str | bytes) -> bool:
    """Whether a whole text is allowed, fed byte by byte (a byte's own token has its number in GPT-2's order)."""
    matcher = grammar.start()
    for byte in text.encode() if isinstance(text, str) else text:
        mask = matcher.mask()
        if mask is None or not mask[byte]:
            return False
        matcher.accept(byte)
    return matcher.accepting


def test_a_token_is_allowed_if_all_its_bytes_are(constraints: Constraints, tokenizer: Tokenizer) -> None:
    matcher = fed(constraints.compile(Constraint.choice([" the end", " and"])), [])
    allowed = {tokenizer.bytes_of(t) for t in np.flatnonzero(matcher.mask()).tolist()}
    assert allowed == {b" ", b" t", b" the", b" a", b" and"}
    (the,) = tokenizer.encode(" the")
    assert not matcher.accepting
    rest = fed(constraints.compile(Constraint.choice([" the end", " and"])), [the, *b" end"])
    assert (rest.accepting, rest.complete) == (True, True)


def test_rolling_back_is_never_having_gone(constraints: Constraints) -> None:
    grammar = constraints.compile(Constraint.json_schema(PERSON))
    text = b'{"name": "Ada", "age": 36}'
    matcher = fed(grammar, text)
    assert matcher.complete
    for back in (1, 9, len(text) - 10):
        matcher.rollback(back)
    assert np.array_equal(matcher.mask(), grammar.start().mask())
    for byte in text:
        matcher.accept(byte)
    assert matcher.complete


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (Constraint("json_object"), ["{}", '{"a": [1, null]}', '{\n  "a":{}}'], ["[]", "1", "{", " {}", "{} "]),
        (
            Constraint.json_schema(PERSON),
            ['{"name":"","age":0}', '{ "name" : "é\\n\\"" ,\n\t"age": 120 }'],
            ['{"age":1,"name":""}', '{"name":"","age":121}', '{"name":"123456789","age":1}', '{"name":"","age":1,"x":1}'],
        ),
        (Constraint("regex", r"\d{2}/[a-c]+"), ["12/a", "99/abc"], ["1/a", "12/", "٣٣/a", "12/abcd"]),
        (Constraint.choice(["yes", "yes, sir", "no\n\x01"]), ["yes", "yes, sir", "no\n\x01"], ["", "yes,", "no"]),
        (Constraint("lark", 'start: "a" rest\nrest: /[0-9]+/ "!"'), ["a1!", "a12!"], ["a!", "a1"]),
    ],
    ids=lambda value: value.kind if isinstance(value, Constraint) else "",
)
def test_what_fits(constraints: Constraints, constraint: Constraint, good: list[str], bad: list[str]) -> None:
    grammar = constraints.compile(constraint)
    assert [fits(grammar, text) for text in good] == [True] * len(good)
    assert [fits(grammar, text) for text in bad] == [False] * len(bad)


def test_formats_keep_to_the_calendar_and_to_the_longest_host_name(constraints: Constraints) -> None:
    def form(format: str, **further: Any) -> Grammar:
        return constraints.compile(Constraint.json_schema({"type": "string", "format": format, **further}))

    assert [fits(form("date"), f'"{day}"') for day in ("2024-02-29", "2023-02-29", "0000-01-01")] == [True, False, False]
    assert fits(form("date-time"), '"2024-02-29T23:59:59.5Z"')
    assert not fits(form("time"), '"12:00:60Z"')
    both = form("date", pattern="^2024", allOf=[{"pattern": "-02-"}])
    assert [fits(both, f'"{day}"') for day in ("2024-02-29", "2023-02-28", "2024-03-01")] == [True, False, False]
    label = "a" * 61
    longest = f"{label}.{label}.{label}.{label}.abcde"
    assert [fits(form("hostname"), f'"{name}"') for name in (longest, f"{longest}f")] == [True, False]
    assert not fits(form("hostname", maxLength=5), '"abcdef"')


def test_a_thousand_optional_properties(constraints: Constraints) -> None:
    names = {f"p{number}": {"type": "null"} for number in range(1000)}
    grammar = constraints.compile(Constraint.json_schema({"type": "object", "properties": names, "additionalProperties": False}))
    assert fits(grammar, '{"p0":null,"p500":null,"p999":null}')
    assert not fits(grammar, '{"p1":null,"p0":null}')


def test_white_space_is_bounded(constraints: Constraints) -> None:
    grammar = constraints.compile(Constraint("json_object"))
    assert fits(grammar, "{\n" + " " * 20 + "}")
    assert not fits(grammar, "{\n" + " " * 21 + "}")
    assert not fits(grammar, "{  }")
    assert not fits(grammar, "{\n\n}")


def test_a_grammar_names_control_tokens(constraints: Constraints, tokenizer: Tokenizer) -> None:
    end = max(tokenizer.end_tokens)
    matcher = fed(constraints.compile(Constraint("lark", f'start: "a" {tokenizer.piece(end)} "b"')), [ord("a")])
    assert np.flatnonzero(matcher.mask()).tolist() == [end]
    assert not matcher.accepting


def test_compiled_constraints_are_kept(tokenizer: Tokenizer) -> None:
    constraints = Constraints(tokenizer)
    first = constraints.compile(Constraint.choice(["a"]))
    assert constraints.compile(Constraint.choice(["a"])) is first
    for number in range(64):
        constraints.compile(Constraint.choice([str(number)]))
    assert constraints.compile(Constraint.choice(["a"])) is not first


@pytest.mark.parametrize(
    "large",
    [
        Constraint("regex", "a" * 1000),
        Constraint.json_schema({"multipleOf": 997}),
        Constraint("lark", 'start: %json {"multipleOf": 997}'),
    ],
)
def test_what_is_large_takes_the_place_of_others(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, large: Constraint
) -> None:
    monkeypatch.setattr("tensorsharp.text.constraints._KEPT_WEIGHT", 1000)
    constraints = Constraints(tokenizer)
    first = constraints.compile(Constraint.choice(["a"]))
    kept = constraints.compile(large)
    assert constraints.compile(large) is kept, "the latest one stays in any case"
    assert constraints.compile(Constraint.choice(["a"])) is not first


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strng"}, '#/type is "strng"; expected one or several of null, boolean'),
        ({"items": {"properties": {"a": {"uniqueItems": True}}}}, "#/items/properties/a/uniqueItems: the keyword 'uniqueItems'"),
        (
            {"properties": {"a/b": {"anyOf": [{"type": "null"}, {"pattern": "(?=a)b"}]}}},
            "#/properties/a~1b/anyOf/1: .*look-around",
        ),
        ({"type": "string", "maxlength": 3}, "#/maxlength: the keyword 'maxlength' is not supported"),
        ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "#: oneOf is supported only where"),
        ({"$ref": "http://example.org/x"}, "#/\\$ref is .*expected a reference within the schema"),
        ({"allOf": [{"$ref": "#/$defs/q"}]}, "#/allOf/0/\\$ref is '#/\\$defs/q', and there is no such place"),
        ({"enum": []}, "#/enum is \\[\\]; expected a list that is not empty"),
        ({"minLength": -1}, "#/minLength is -1; expected a whole number"),
        ({"minItems": True}, "#/minItems is true"),
        ({"minimum": 2**53}, "#/minimum is 9007199254740992; expected a number of at most 9007199254740991"),
        (
            {"exclusiveMaximum": -(2**53)},
            "#/exclusiveMaximum is -9007199254740992; expected a number of at least -9007199254740991",
        ),
        ({"multipleOf": 0}, "#/multipleOf is 0"),
        ({"multipleOf": 1000003}, "multipleOf is 1000003, with all others above 100,000 without factors 2 and 5"),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 996.7}]}, "multipleOf is 996.7, with all others"),
        ({"multipleOf": 10**14}, "#/multipleOf is 100000000000000; expected a number above 0, of at most 14 digits"),
        ({"propertyNames": {"maxLength": 3}}, "#/propertyNames: the keyword 'propertyNames'"),
        ({"propertyNames": {"enum": ["a"]}, "properties": {"b": {}}}, "#/propertyNames: the keyword 'propertyNames'"),
        ({"items": [{"type": "strng"}]}, '#/prefixItems/0/type is "strng"'),
        ({"format": "nanoid"}, '#/format is "nanoid"; expected one of date-time'),
        ({"format": "regex", "pattern": "a"}, '#/format is "regex"; expected one of date-time'),
        ({"format": "regex"}, '#/format is "regex"; expected one of date-time'),
        ({"required": "a"}, "#/required is"),
        ({"properties": {"a": 3}}, "#/properties is"),
        ({"minProperties": 2}, "#/minProperties is 2, which is supported up to one more"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#: .*minLength \\(3\\) is greater than maxLength \\(2\\)"),
        ({"x-guidance": {"lenient": True}}, "#/x-guidance: the keyword"),
        (False, "The schema is false"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "allows no text"),
        ({"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(6)]} for i in range(8)]}, "too large"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(constraints: Constraints, schema: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        constraints.compile(Constraint.json_schema(schema))
    assert caught.value.param == "constraint"
    assert caught.value.code in ("invalid_schema", "unsupported_schema", "invalid_grammar")


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        (
            {"exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
            ["0.1", "0.49", "0.00000000000001"],
            ["0", "0.0", "-0", "0.5", "0.50"],
        ),
        ({"exclusiveMinimum": -0.5, "exclusiveMaximum": 0}, ["-0.1", "-0.49"], ["0", "-0", "-0.0", "-0.5"]),
        ({"exclusiveMinimum": 3, "maximum": 3.5}, ["3.5", "3.25"], ["3", "3.0", "3.6"]),
        ({"exclusiveMinimum": 3, "minimum": 2}, ["3.25", "4", "100"], ["3", "2", "3.0"]),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0.5"], ["0"]),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, ["4"], ["3", "5"]),
        ({"type": "integer", "minimum": 10**14 - 3, "exclusiveMaximum": 10**14 - 1}, [str(10**14 - 3)], [str(10**14 - 1)]),
        ({"minimum": 0.5, "maximum": 0.9999999999999999}, ["0.5", "0.75"], ["1", "1.0", "0.4999"]),
        ({"minimum": 0.1 + 0.2, "maximum": 0.5}, ["0.31", "0.5"], ["0.3", "0.30000000000000003"]),
        (
            {"minimum": -SAFE, "maximum": SAFE},
            ["0", "0.5", str(SAFE), str(-SAFE), f"{SAFE}.0", f"{SAFE - 1}.9"],
            [str(SAFE + 1), str(-SAFE - 1), f"{SAFE}.5", f"{SAFE}0"],
        ),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": SAFE}, ["1", str(SAFE)], ["0", "-1", str(SAFE + 1)]),
        (
            {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
            ["0", str(SAFE), str(-SAFE)],
            [str(-(2**63) - 1), str(2**64)],
        ),
        (
            {"type": "integer", "exclusiveMinimum": SAFE - 3, "exclusiveMaximum": SAFE},
            [str(SAFE - 2), str(SAFE - 1)],
            [str(SAFE - 3)],
        ),
        (
            {"type": "integer", "exclusiveMinimum": -SAFE, "exclusiveMaximum": 3 - SAFE},
            [str(1 - SAFE), str(2 - SAFE)],
            [str(-SAFE)],
        ),
    ],
    ids=str,
)
def test_exclusive_bounds(constraints: Constraints, bounds: Any, good: list[str], bad: list[str]) -> None:
    grammar = constraints.compile(Constraint.json_schema({"type": "number", **bounds}))
    assert [fits(grammar, text) for text in good] == [True] * len(good)
    assert [fits(grammar, text) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {
                "$schema": DRAFT7,
                "type": "array",
                "items": [{"type": "null"}, {"type": "boolean"}],
                "additionalItems": False,
                "minItems": 2,
            },
            ["[null,true]"],
            ["[null]", "[true,null]", "[null,true,1]"],
        ),
        (
            {"$schema": DRAFT7, "items": [{"const": 1}], "additionalItems": {"const": 2}},
            ["[]", "[1]", "[1,2,2]"],
            ["[2]", "[1,1]"],
        ),
        ({"$schema": DRAFT7, "items": [], "additionalItems": {"const": 2}}, ["[2,2]"], ["[1]"]),
        ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1}}, ['{"a":1}'], ['{"a":2}']),
        (
            {
                "type": "object",
                "propertyNames": {"type": "string", "enum": ["a", "b"]},
                "additionalProperties": {"const": 1},
                "required": ["b"],
            },
            ['{"b":1}', '{"a":1,"b":1}'],
            ['{"a":1}', '{"b":1,"c":1}', '{"b":2}'],
        ),
        ({"type": "array", "items": {"type": "string", "format": "nanoid", "pattern": "^a{2}$"}}, ['["aa"]'], ['["a"]']),
    ],
    ids=str,
)
def test_other_spellings(constraints: Constraints, schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = constraints.compile(Constraint.json_schema(schema))
    assert [fits(grammar, text) for text in good] == [True] * len(good)
    assert [fits(grammar, text) for text in bad] == [False] * len(bad)


def test_what_only_describes_is_allowed(constraints: Constraints) -> None:
    schema = {"title": "T", "description": "d", "default": 1, "examples": [1], "x-order": 3, "type": "boolean", "$comment": ""}
    assert fits(constraints.compile(Constraint.json_schema(schema)), "true")


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint("json_schema", "{"), "The schema is not JSON"),
        (Constraint("json_schema", "[1]"), "The schema is \\[1\\]; expected an object or a boolean"),
        (Constraint("json_schema", '{"minimum": NaN}'), "NaN is no JSON number"),
        (Constraint("json_schema", "[" * 100_000), "nested deeper than 64"),
        (Constraint("json_schema", '{"items":' * 65 + "{}" + "}" * 65), "nested deeper than 64"),
        (Constraint("json_schema", "{" + " " * MAX_SOURCE + "}"), "expected at most 262,144"),
        (Constraint("lark", "start: foo"), 'unknown name: "foo"'),
        (Constraint("lark", 'start: "a" b\nb[capture, max_tokens=3]: /x+/'), "line 2: the option 'max_tokens'"),
        (Constraint("lark", 'start[stop="x"]: /.*/'), "line 1: the option 'stop'"),
        (
            Constraint("lark", 'start: %json\n{"items": {"mult\\u0069pleOf": 4294967291}}'),
            "multipleOf is 4294967291, with all others",
        ),
        (
            Constraint("lark", 'start: %json {"const": ' + "9" * 5000 + ', "multipleOf": 399983}'),
            "multipleOf is 399983, with all others",
        ),
        (
            Constraint("lark", 'start: a b\na: %json {"multipleOf": 499}\nb: %json {"multipleOf": 503}'),
            "multipleOf is 503, with all others",
        ),
        (Constraint("lark", "start: "), "allows no text but the empty one"),
        (Constraint("regex", "(?=a)b"), "look-around"),
        (Constraint("regex", ""), "The regex is empty"),
        (Constraint("choice", "[]"), "expected a JSON list of strings"),
        (Constraint("choice", '["a", ""]'), "expected a JSON list of strings"),
    ],
)
def test_what_makes_no_sense_is_refused(constraints: Constraints, constraint: Constraint, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        constraints.compile(constraint)


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(RequestError, match="kind of a constraint is 'xml'; expected one of json_object"):
        Constraint("xml")  # type: ignore[arg-type]


def test_a_missing_library_is_named(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match="need the package llguidance, which is not installed") as caught:
        Constraints(tokenizer).compile(Constraint("json_object"))
    assert caught.value.hint == "Install it: pip install 'tensorsharp-core[constrain]'."


def test_what_was_prepared_is_used(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tokenizer] = []

    class Counted(TokenTrie):
        def __init__(self, tokenizer: Tokenizer) -> None:
            made.append(tokenizer)
            super().__init__(tokenizer)

    monkeypatch.setattr("tensorsharp.text.constraints.TokenTrie", Counted)
    constraints = Constraints(tokenizer)
    constraints.prepare()
    assert made == [tokenizer]
    constraints.compile(Constraint("json_object"))
    constraints.prepare()
    assert made == [tokenizer]


def test_a_file_without_a_vocabulary(constraints: Constraints) -> None:
    bare = load_tokenizer(MetadataFile({"tokenizer.ggml.model": "none", "llama.vocab_size": 300}))
    with pytest.raises(UnsupportedError, match="no vocabulary"):
        Constraints(bare).compile(Constraint("json_object"))


def test_a_token_that_does_not_fit_is_an_error(constraints: Constraints) -> None:
    matcher = constraints.compile(Constraint("json_object")).start()
    with pytest.raises(BackendError, match="cannot be followed any further"):
        matcher.accept(ord("x"))


def test_a_schema_is_kept_as_text() -> None:
    constraint = Constraint.json_schema({"enum": ["é", 1.5]})
    assert json.loads(constraint.source) == {"enum": ["é", 1.5]}
    assert hash(constraint) == hash(Constraint.json_schema({"enum": ["é", 1.5]}))
