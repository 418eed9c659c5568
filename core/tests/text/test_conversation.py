"""Messages of clients as templates take them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensorsharp.errors import RequestError, UnsupportedError
from tensorsharp.text.conversation import fold_system, merge_system, one_call_each, read_messages, with_reasoning, with_short_ids
from tensorsharp.text.toolcalls import read_tools

USER = {"role": "user", "content": "Hi"}


def call(id: str | None, arguments: Any = None, name: str = "f") -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if id is None else {"id": id, **made}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"], "a\nb\nc"),
        ([], ""),
    ],
)
def test_content_is_text(content: Any, text: str) -> None:
    assert read_messages([{"role": "user", "content": content}]) == [{"role": "user", "content": text}]


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}, ' {"a":1} '])
def test_arguments_are_objects_whatever_was_sent(arguments: Any) -> None:
    [message] = read_messages([{"role": "assistant", "content": None, "tool_calls": [call("x", arguments)]}])
    assert message["content"] == ""
    assert message["tool_calls"] == [call("x", {"a": 1})]


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    [message] = read_messages([{"role": "assistant", "tool_calls": [call("x", arguments)]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {}


def test_results_find_their_calls_by_id_or_in_order() -> None:
    asked = {"role": "assistant", "tool_calls": [call("x", name="f"), call("y", name="g"), call(None, name="h")]}
    results = [
        {"role": "tool", "content": "2", "tool_call_id": "y"},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "3"},
    ]
    first, *read = read_messages([asked, *results])
    ids = [c["id"] for c in first["tool_calls"]]
    assert [(m["tool_call_id"], m["name"]) for m in read] == [("y", "g"), ("x", "f"), (ids[2], "h")]
    assert len(set(ids)) == 3


def test_a_result_may_name_its_tool() -> None:
    assert read_messages([{"role": "tool", "tool_name": "f", "content": "1"}]) == [{"role": "tool", "name": "f", "content": "1"}]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_one_name(field: str) -> None:
    assert read_messages([{"role": "assistant", "content": "a", field: "r"}]) == [
        {"role": "assistant", "content": "a", "reasoning_content": "r"}
    ]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        ([{"content": "a"}], "messages[0].role"),
        (["Hi"], "messages[0].role"),
        ([USER, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": "f"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "assistant", "tool_calls": [call("x", "{")]}], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [call("x", "[]")]}], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [{**call("x"), "id": 3}]}], "messages[0].tool_calls[0].id"),
        ([{"role": "assistant", "content": "a", "reasoning": 3}], "messages[0].reasoning_content"),
    ],
)
def test_what_cannot_be_read_is_named(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_messages(messages)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


def test_parts_that_are_no_text_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"messages\[0\].content\[0\].type is 'image_url'") as caught:
        read_messages([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
    assert caught.value.param == "messages[0].content[0]"


def test_system_messages_at_the_beginning_become_one() -> None:
    system = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]
    assert merge_system([*system, USER], "tools", developer=True) == [{"role": "system", "content": "a\n\nb\n\ntools"}, USER]
    assert merge_system([system[1], USER], developer=True) == [system[1], USER]
    assert merge_system([system[1], USER], developer=False) == [{"role": "system", "content": "b"}, USER]
    assert merge_system([USER], developer=False) == [USER]


def test_a_system_message_without_a_place_begins_the_first_of_the_user() -> None:
    system = {"role": "system", "content": "a"}
    assert fold_system([system, USER]) == [{"role": "user", "content": "a\n\nHi"}]
    assert fold_system([system]) == [{"role": "user", "content": "a"}]
    assert fold_system([USER]) == [USER]


def test_old_reasoning_stays_where_the_template_reads_it() -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "r"}
    called = {**said, "tool_calls": [call("x", {})]}
    assert with_reasoning([said], None) == [{"role": "assistant", "content": "a"}]
    assert with_reasoning([said, called], "reasoning_content") == [said, called]
    assert with_reasoning([said], "thinking") == [{"role": "assistant", "content": "a", "thinking": "r"}]
    assert with_reasoning([called], "thinking") == [
        {"role": "assistant", "content": "", "tool_calls": [call("x", {})], "thinking": "r\n\na"}
    ]


def test_identifiers_may_be_short() -> None:
    said = {"role": "assistant", "content": "", "tool_calls": [call("call_with_a_long_id", {}), call("abc123DEF", {})]}
    results = [{"role": "tool", "content": "", "tool_call_id": id} for id in ("call_with_a_long_id", "abc123DEF")]
    first, *answers = with_short_ids([said, *results])
    ids = [c["id"] for c in first["tool_calls"]]
    assert ids == [m["tool_call_id"] for m in answers]
    assert (len(ids[0]), ids[0].isalnum(), ids[1]) == (9, True, "abc123DEF")


def test_several_calls_become_one_each() -> None:
    x, y = call("x", {}), call("y", {})
    results = [{"role": "tool", "content": id, "tool_call_id": id} for id in "xy"]
    both = {"role": "assistant", "content": "a", "tool_calls": [x, y]}
    assert one_call_each([USER, both, *results, USER]) == [
        USER,
        {"role": "assistant", "content": "a", "tool_calls": [x]},
        results[0],
        {"role": "assistant", "content": "", "tool_calls": [y]},
        results[1],
        USER,
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}},
        {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True},
    ],
)
def test_tools_are_wrapped_or_not(item: dict[str, Any]) -> None:
    [tool] = read_tools([item])
    assert (tool.name, tool.description, tool.parameters, tool.strict) == ("f", "d", {"type": "object"}, True)


@pytest.mark.parametrize(
    ("items", "param"),
    [
        (["f"], "tools[0]"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"function": 3}], "tools[0].function"),
        ([{"function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"name": ""}], "tools[0].name"),
        ([{"name": "f", "parameters": []}], "tools[0].parameters"),
        ([{"name": "f", "description": 1}], "tools[0].description"),
        ([{"name": "f"}, {"name": "f"}], "tools[1].function.name"),
    ],
)
def test_a_tool_that_cannot_be_used_is_named(items: list[Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_tools(items)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "number"}, " 5 ", 5),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": "array"}, '["a"]', ["a"]),
        ({"type": "object"}, "{", "{"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": None}, "null", None),
        ({"$ref": "#/$defs/n"}, "7", 7),
        ({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}, "null", None),
        ({"allOf": [{}, {"type": "string"}]}, "7", "7"),
        ({"anyOf": [{}, {"type": "string"}]}, "7", 7),
        ({"$ref": "#/properties/p"}, "7", 7),
        ({}, "7", 7),
        ({}, "a", "a"),
        ({}, '"a"', '"a"'),
        (True, "true", True),
    ],
)
def test_values_have_the_declared_type(schema: Any, raw: str, value: Any) -> None:
    parameters = {"type": "object", "properties": {"p": schema}, "$defs": {"n": {"type": "integer"}}}
    tools = read_tools([{"name": "f", "parameters": parameters}])
    found = tools.value("f", "p", raw)
    assert found == value
    assert type(found) is type(value)


def test_values_of_unknown_tools_and_further_properties() -> None:
    tools = read_tools([{"name": "f", "parameters": {"additionalProperties": {"type": "string"}}}])
    assert (tools.value("f", "x", "5"), tools.value("g", "x", "5")) == ("5", 5)


def test_a_schema_is_told_in_one_order() -> None:
    inner = {"enum": [{"b": 1, "a": 2}], "title": "x", "description": "d", "type": "object"}
    written = {
        "title": "t",
        "required": ["type"],
        "properties": {"type": inner, "enum": True},
        "anyOf": [inner],
        "type": "object",
    }
    told = read_tools([{"name": "f", "parameters": written}]).by_name["f"].as_json()["function"]["parameters"]
    ordered = '{"type": "object", "description": "d", "enum": [{"b": 1, "a": 2}], "title": "x"}'
    named = f'{{"type": {ordered}, "enum": true}}'
    expected = f'{{"type": "object", "properties": {named}, "required": ["type"], "title": "t", "anyOf": [{ordered}]}}'
    assert json.dumps(told) == expected
