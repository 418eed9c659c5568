"""Replies that are calls or content in a form: what the grammar lets through, and that it is read as one of both."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from core.tests.text.replies import TOOLS, Read, read

from tensorsharp.errors import UnsupportedError
from tensorsharp.text.callgrammar import ANY_OBJECT
from tensorsharp.text.toolcalls import Tools, read_tools
from tensorsharp.types import Constraint

from .test_callgrammar import BOUNDED, CALLS, WRITTEN, Vocabulary, fits, format_of, grammar_of, vocabulary, walk

__all__ = ["vocabulary"]

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "name": {"$ref": "#/$defs/name"}},
    "required": ["answer"],
    "additionalProperties": False,
    "$defs": {"name": {"enum": ["book", "now", "x"]}},
}
FORM = Constraint.json_schema(SCHEMA)
BOOKED = {"kind": "room", "nights": 2}
ANY = Tools([replace(tool, parameters=ANY_OBJECT) for tool in TOOLS])
TEXTS = [name for name in WRITTEN if name != "bare_json"]


def call_of(vocabulary: Vocabulary, name: str) -> str:
    """A text that calls `book` or `now`."""
    grammar = grammar_of(vocabulary, name, BOUNDED, several=False)
    return next(text for seed in range(12) if (text := walk(grammar, vocabulary[0], seed)) is not None)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_reply_is_calls_or_content_in_the_form(vocabulary: Vocabulary, name: str) -> None:
    grammar, answer, call = (
        grammar_of(vocabulary, name, BOUNDED, free=True, form=FORM),
        format_of(name).answer,
        call_of(vocabulary, name),
    )
    content = f'{answer}{{"answer": "yes", "name": "book"}}'
    for text in (call, content, f'{answer}{{"answer":"no"}}'):
        assert fits(grammar, vocabulary[0], text), text
    wrong = call.replace("now", "not").replace("book", "boot")
    for text in (wrong, f"{answer}Hello", f'{answer}{{"answer": "maybe"}}', content + call, call + content, f"{content} ", ""):
        assert not fits(grammar, vocabulary[0], text), text


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_let_through_is_read_as_one_of_both(vocabulary: Vocabulary, name: str) -> None:
    grammar = grammar_of(vocabulary, name, BOUNDED, free=True, form=FORM)
    kinds = set()
    for seed in range(12):
        if (text := walk(grammar, vocabulary[0], seed)) is None:
            continue
        found = read(format_of(name), [text], tools=BOUNDED, formed=True)
        kinds.add(bool(found.calls))
        if found.content:
            assert found.calls == (), text
            jsonschema.validate(json.loads(found.content), SCHEMA)
        for called, arguments in found.calls:
            jsonschema.validate(arguments, dict(BOUNDED.by_name[called].parameters))
    assert kinds == {False, True}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_looks_like_a_call_inside_the_content_is_content(vocabulary: Vocabulary, name: str) -> None:
    content = json.dumps({"answer": f" {call_of(vocabulary, name)} "}, ensure_ascii=False)
    reply = f"{format_of(name).answer}{content}"
    for pieces in ([reply], list(reply)):
        assert read(format_of(name), pieces, tools=BOUNDED, formed=True) == Read(content=content)


@pytest.mark.parametrize("golden", CALLS, ids=lambda golden: golden["template"])
def test_tools_that_are_not_strict_are_called_with_any_object(vocabulary: Vocabulary, golden: dict[str, Any]) -> None:
    reply = golden["reply"].split("</think>")[-1].replace(', "id": "call00001"', "")
    assert fits(grammar_of(vocabulary, golden["format"], ANY, free=True, form=FORM), vocabulary[0], reply)


@pytest.mark.parametrize("name", WRITTEN)
def test_any_object_is_read_as_one(vocabulary: Vocabulary, name: str) -> None:
    grammar = grammar_of(vocabulary, name, ANY)
    texts = [text for seed in range(12) if (text := walk(grammar, vocabulary[0], seed)) is not None]
    assert texts
    for text in texts:
        found = read(format_of(name), [text], tools=ANY)
        assert found.calls, text
        assert found.content == "", text


@pytest.mark.parametrize("name", TEXTS)
def test_a_form_may_be_a_text(vocabulary: Vocabulary, name: str) -> None:
    call, answer = call_of(vocabulary, name), format_of(name).answer
    for form, said in ((Constraint.choice(["yes", "[no]", "<no>"]), "<no>"), (Constraint("regex", r"(?s).*"), "\nHello <you>")):
        grammar = grammar_of(vocabulary, name, BOUNDED, free=True, form=form)
        assert fits(grammar, vocabulary[0], call)
        assert fits(grammar, vocabulary[0], answer + said)
        if not answer:
            assert not fits(grammar, vocabulary[0], call.replace("now", "not").replace("book", "boot"))
            assert not fits(grammar, vocabulary[0], f" {call}")
    behind = replace(Constraint("regex", r"(?s).*"), after="</think>")
    grammar = grammar_of(vocabulary, name, BOUNDED, free=True, form=behind)
    gap = "" if answer else "\n\n"
    assert fits(grammar, vocabulary[0], f"{gap}{call}")
    assert fits(grammar, vocabulary[0], f"{answer}\n\n[no]")


@pytest.mark.parametrize("kind", ["grammar", "lark"])
def test_a_grammar_is_no_form_beside_calls(vocabulary: Vocabulary, kind: Any) -> None:
    form = Constraint(kind, 'root ::= "a"' if kind == "grammar" else 'start: "a"')
    with pytest.raises(UnsupportedError, match=f"A {kind} cannot stand beside tools"):
        grammar_of(vocabulary, "tagged_json", BOUNDED, free=True, form=form)


def test_calls_that_are_json_are_told_from_content_by_what_it_has_to_hold(vocabulary: Vocabulary) -> None:
    open_form = Constraint("json_object")
    with pytest.raises(UnsupportedError, match="Strict tools cannot be kept beside a form"):
        grammar_of(vocabulary, "bare_json", BOUNDED, free=True, form=open_form)
    with pytest.raises(UnsupportedError, match="A choice cannot be told from calls"):
        grammar_of(vocabulary, "bare_json", ANY, free=True, form=Constraint.choice(["yes"]))
    loose = grammar_of(vocabulary, "bare_json", ANY, free=True, form=open_form)
    for text in ('{"name": "now", "parameters": {}}; {"name": "weather", "parameters": {"a": [1]}}', '{"name": 3}', "{}"):
        assert fits(loose, vocabulary[0], text)
    assert not fits(loose, vocabulary[0], '{"name": 3}; {"name": "now", "parameters": {}}')


def test_a_strict_tool_may_refer_to_its_own_definitions(vocabulary: Vocabulary) -> None:
    definitions = {"$defs": {"n": {"enum": [1, 2]}}, "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
    tools = read_tools([{"name": "f", "strict": True, "parameters": {"type": "object", **definitions}}])
    grammar = grammar_of(vocabulary, "bare_json", tools, free=True, form=FORM)
    assert fits(grammar, vocabulary[0], '{"name": "f", "parameters": {"n": 2}}')
    assert not fits(grammar, vocabulary[0], '{"name": "f", "parameters": {"n": 3}}')


def test_an_object_that_calls_a_strict_tool_otherwise_than_grammars_write_it_is_content() -> None:
    strict = Tools([replace(tool, strict=True) for tool in TOOLS])
    text = '{"name": "now", "arguments": {}}'
    assert read(format_of("bare_json"), [text], tools=strict) == Read(content=text)
    assert read(format_of("bare_json"), [text]) == Read(calls=(("now", {}),))
