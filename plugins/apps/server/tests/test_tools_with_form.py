"""Tools and a form in one request, in every protocol: the reply is a call, or content that keeps the form."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness import Served

SCHEMA = {"type": "object", "properties": {"n": {"enum": [7, 8]}}, "required": ["n"], "additionalProperties": False}
ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "parameters": ARGUMENTS}
TALK = [{"role": "user", "content": "Hallo?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
CALLED = ("", [("weather", {"city": "Köln", "days": 2})])

Answered = tuple[str, list[tuple[str, Any]]]
"""(content, [(tool, arguments)])"""


def _chat(served: Served, **more: Any) -> Answered:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    tools: Any = [{"type": "function", "function": FUNCTION}]
    asked = {"model": "thinker", "messages": TALK, "tools": tools, "response_format": form, **more}
    message = served.openai.chat.completions.create(**asked).choices[0].message  # type: ignore[call-overload]
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    return message.content or "", calls


def _responses(served: Served, **more: Any) -> Answered:
    form = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    tools = [{"type": "function", "strict": False, **FUNCTION}]
    asked = {"model": "thinker", "input": "Hallo?", "tools": tools, "text": form, **more}
    answer = served.openai.responses.create(**asked)
    calls = [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
    return answer.output_text, calls


def _ollama(served: Served, **more: Any) -> Answered:
    tools = [{"type": "function", "function": FUNCTION}]
    message = served.ollama.chat("thinker", TALK, tools=tools, format=SCHEMA, options=more).message
    return message.content or "", [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def _anthropic(served: Served, **more: Any) -> Answered:
    tools = [{"name": "weather", "input_schema": ARGUMENTS}]
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    choice = {"tool_choice": {"type": {"required": "any"}.get(more["tool_choice"], "none")}} if more else {}
    asked = {"model": "thinker", "max_tokens": 200, "messages": TALK, "tools": tools, "output_config": form, **choice}
    blocks = served.post("/v1/messages", **asked)["content"]
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    return "".join(block["text"] for block in blocks if block["type"] == "text"), calls


ASKS = pytest.mark.parametrize("ask", [_chat, _responses, _ollama, _anthropic])


@ASKS
def test_the_reply_is_a_call_or_keeps_the_form(thinker: Served, ask: Callable[..., Answered]) -> None:
    for thought in ("", "<think>Hm.</think>\n\n"):
        thinker.director.script = thought + CALL
        assert ask(thinker) == CALLED
        thinker.director.script = thought + '{"n": 8}'
        assert ask(thinker) == ('{"n": 8}', [])
        thinker.director.script = thought + '{"n": 9}'
        content, calls = ask(thinker)
        assert (json.loads(content) in ({"n": 7}, {"n": 8}), calls) == (True, [])


@ASKS
def test_the_choice_of_tools_says_what_the_reply_is(thinker: Served, ask: Callable[..., Answered]) -> None:
    thinker.director.script = '{"n": 8}'
    assert ask(thinker, tool_choice="none") == ('{"n": 8}', [])
    thinker.director.script = CALL.replace(', "days": 2', "")
    assert ask(thinker, tool_choice="required") == ("", [("weather", {"city": "Köln"})])
