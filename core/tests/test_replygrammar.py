"""Conversations whose reply is bound: a call required, strict tools, a form behind the reasoning, a limited reasoning.

The model draws at random, so that what holds is held by the constraint alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from core.tests.llmfakes import installed, write_file

from tensorsharp.chat import ChatOptions, ChatReply, NamedTool
from tensorsharp.errors import RequestError
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.types import Constraint

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
THINKING = PLAIN + "{% if enable_thinking is not false %}<think>\n{% else %}<think></think>{% endif %}"
CHANNELS = PLAIN + "{# <|channel|> #}{{ reasoning_effort }}{{ tools }}"
LITERALS = PLAIN + "{# <|tool_call>call: #}{{ tools }}"
USER = [{"role": "user", "content": "Hi"}]
SHORT = {"type": "string", "maxLength": 4, "pattern": "^[a-z]+$"}
TOOLS = [
    {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["kind", "n"],
            "additionalProperties": False,
        },
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
]


@pytest.fixture(autouse=True)
def plugins(site: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from installed(site, monkeypatch)


@contextmanager
def loaded(folder: Path, template: str) -> Iterator[LLM]:
    with load(write_file(folder / "model.gguf", template=template), backend="fake", ctx_size=4000) as llm:
        yield llm


def ask(llm: LLM, options: ChatOptions, seed: int, **params: Any) -> ChatReply:
    free = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 600, "seed": seed}
    return llm.start_chat(USER, options, **{**free, **params}).result()


@pytest.mark.parametrize("template", [PLAIN, CHANNELS])
def test_a_required_call_is_made_and_fits(tmp_path: Path, template: str) -> None:
    schemas = {tool["name"]: tool["parameters"] for tool in TOOLS}
    with loaded(tmp_path, template) as llm:
        for seed in range(4):
            reply = ask(llm, ChatOptions(tools=TOOLS, tool_choice="required", parallel_tool_calls=False), seed)
            assert reply.finish_reason == "tool_calls"
            [call] = reply.tool_calls
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])


@pytest.mark.parametrize("name", ["add", "now"])
def test_a_named_tool_is_the_one_that_is_called(tmp_path: Path, name: str) -> None:
    with loaded(tmp_path, PLAIN) as llm:
        for seed in range(3):
            reply = ask(llm, ChatOptions(tools=TOOLS, tool_choice=NamedTool(name)), seed)
            assert {call.name for call in reply.tool_calls} == {name}
            assert reply.content == ""


def test_a_call_is_required_behind_the_reasoning(tmp_path: Path) -> None:
    options = ChatOptions(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, reasoning_budget=5)
    with loaded(tmp_path, THINKING) as llm:
        reply = ask(llm, options, 3)
        assert reply.finish_reason == "tool_calls"
        assert reply.reply.text.count("</think>") == 1
        closing = llm.tokenize("\n</think>", bos=False)
        assert list(reply.reply.token_ids[5 : 5 + len(closing)]) == closing
        without = ask(llm, ChatOptions(tools=TOOLS, tool_choice="required", reasoning=False), 3)
        assert (without.reasoning, without.content, bool(without.tool_calls)) == ("", "", True)


def test_a_form_holds_for_the_content_behind_the_reasoning(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": SHORT}, "required": ["a"], "additionalProperties": False}
    constraint = Constraint.json_schema(schema)
    with loaded(tmp_path, THINKING) as llm:
        reply = ask(llm, ChatOptions(reasoning_budget=8, constraint=constraint), 1)
        assert list(json.loads(reply.content)) == ["a"]
        assert reply.reasoning
        assert list(json.loads(ask(llm, ChatOptions(reasoning=False, constraint=constraint), 1).content)) == ["a"]


@pytest.mark.parametrize("template", [PLAIN, THINKING, CHANNELS])
def test_with_tools_and_a_form_a_reply_is_calls_or_content_in_the_form(tmp_path: Path, template: str) -> None:
    schema = {"type": "object", "properties": {"a": SHORT}, "required": ["a"], "additionalProperties": False}
    strict = [{**tool, "strict": True} for tool in TOOLS]
    budget = None if template == PLAIN else 4
    options = ChatOptions(
        tools=strict, constraint=Constraint.json_schema(schema), parallel_tool_calls=False, reasoning_budget=budget
    )
    found = set()
    with loaded(tmp_path, template) as llm:
        # in channels a header that calls begins with a space, which this model likes
        spaced = {token: -100.0 for token in range(llm.tokenizer.vocab_size) if llm.tokenizer.bytes_of(token)[:1] == b" "}
        for seed in range(6):
            reply = ask(llm, options, seed, logit_bias=spaced if seed % 2 else {})
            found.add(reply.finish_reason)
            if reply.finish_reason == "stop":
                assert reply.tool_calls == ()
                jsonschema.validate(json.loads(reply.content), schema)
            else:
                assert (len(reply.tool_calls), reply.content) == (1, "")
                [call] = reply.tool_calls
                jsonschema.validate(json.loads(call.arguments), {tool["name"]: tool["parameters"] for tool in TOOLS}[call.name])
    assert found == {"stop", "tool_calls"}


def test_a_form_has_no_say_where_a_call_is_required_and_all_where_there_is_none(tmp_path: Path) -> None:
    asked = {"tools": TOOLS, "constraint": Constraint.choice(["yes", "no"]), "parallel_tool_calls": False}
    with loaded(tmp_path, PLAIN) as llm:
        for seed in range(3):
            called = ask(llm, ChatOptions(**asked, tool_choice="required"), seed)
            assert (called.content, len(called.tool_calls)) == ("", 1)
            assert ask(llm, ChatOptions(**asked, tool_choice="none"), seed).content in ("yes", "no")


def test_a_limited_reasoning_has_as_many_tokens_and_goes_on_with_the_answer(tmp_path: Path) -> None:
    with loaded(tmp_path, THINKING) as llm:
        free = ask(llm, ChatOptions(), 2, max_tokens=60, ignore_eos=True)
        limited = ask(llm, ChatOptions(reasoning_budget=10), 2, max_tokens=60, ignore_eos=True)
        closing = llm.tokenize("\n</think>", bos=False)
        assert limited.reply.token_ids[:10] == free.reply.token_ids[:10]
        assert list(limited.reply.token_ids[10 : 10 + len(closing)]) == closing
        assert (free.content, bool(limited.content)) == ("", True)
        assert limited.reply.usage.completion == 60


def test_the_same_request_gives_the_same_reply(tmp_path: Path) -> None:
    options = ChatOptions(tools=TOOLS, tool_choice="required", reasoning_budget=6)
    with loaded(tmp_path, THINKING) as llm:
        assert ask(llm, options, 5).tool_calls == ask(llm, options, 5).tool_calls


@pytest.mark.parametrize(
    ("template", "options", "params", "param", "words"),
    [
        (PLAIN, ChatOptions(tool_choice="required"), {}, "tool_choice", "there are no tools"),
        (
            PLAIN,
            ChatOptions(tools=TOOLS, tool_choice=NamedTool("sub")),
            {},
            "tool_choice",
            "is no tool; expected one of add",
        ),
        (PLAIN, ChatOptions(tools=TOOLS, tool_choice="any"), {}, "tool_choice", "expected auto, none"),  # type: ignore[arg-type]
        (LITERALS, ChatOptions(tools=TOOLS, tool_choice="required"), {}, "tool_choice", "has no grammar"),
        (LITERALS, ChatOptions(tools=[{**TOOLS[0], "strict": True}]), {}, "tools", "has no grammar"),
        (
            PLAIN,
            ChatOptions(tools=[TOOLS[1], {"name": "f", "strict": True, "parameters": {"properties": {"a": {"not": {}}}}}]),
            {},
            "tools[1].function.parameters",
            "'not' is not supported",
        ),
        (LITERALS, ChatOptions(tools=TOOLS, constraint=Constraint("json_object")), {}, "constraint", "has no grammar"),
        (PLAIN, ChatOptions(tools=TOOLS, constraint=Constraint("grammar", 'root ::= "a"')), {}, "constraint", "beside tools"),
        (PLAIN, ChatOptions(tools=TOOLS, constraint=Constraint.json_schema({"not": {}})), {}, "constraint", "#/not"),
        (
            PLAIN,
            ChatOptions(tools=TOOLS, constraint=Constraint("json_object", after="</x>")),
            {},
            "constraint",
            "without 'after'",
        ),
        (
            PLAIN,
            ChatOptions(tools=TOOLS, tool_choice="required", constraint=Constraint.json_schema({"not": {}})),
            {},
            "constraint",
            "#/not",
        ),
        (PLAIN, ChatOptions(reasoning_budget=5), {}, "reasoning_budget", "does not reason"),
        (THINKING, ChatOptions(reasoning_budget=-1), {}, "reasoning_budget", "expected a number of tokens"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    tmp_path: Path, template: str, options: ChatOptions, params: dict[str, Any], param: str, words: str
) -> None:
    with loaded(tmp_path, template) as llm, pytest.raises(RequestError, match=words) as caught:
        llm.start_chat(USER, options, **params)
    assert caught.value.param == param


def test_a_schema_that_is_not_strict_may_be_one_that_cannot_be_followed(tmp_path: Path) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"not": {"type": "null"}}}, "maxProperties": 0}}
    with loaded(tmp_path, PLAIN) as llm:
        generation = llm.start_chat(USER, ChatOptions(tools=[tool], tool_choice="required"), temperature=0, max_tokens=30)
        assert generation.result().reply.text.startswith('<tool_call>\n{"name": "f", "a')
