"""A conversation with tools on a real model whose chat template knows none."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import tensorsharp as ts
from tests.realmodels import SMOLLM2, needs

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "description": "The time"}}
ASKED = {"role": "user", "content": "What is the weather in Paris?"}


@pytest.fixture(scope="module")
def llm() -> Iterator[ts.LLM]:
    with ts.load(needs(SMOLLM2)) as made:
        yield made


def test_a_call_is_made_and_its_result_is_used(llm: ts.LLM) -> None:
    options = ts.ChatOptions(tools=[WEATHER, NOW], tool_choice="required", parallel_tool_calls=False)
    called = llm.start_chat([ASKED], options, temperature=0, max_tokens=80).result()
    assert (called.content, called.finish_reason) == ("", "tool_calls")
    [call] = called.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    past = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees"}
    answer = llm.start_chat([ASKED, past, result], ts.ChatOptions(tools=[WEATHER, NOW]), temperature=0, max_tokens=60).result()
    assert (answer.tool_calls, answer.finish_reason) == ((), "stop")
    assert "21 degrees" in answer.content
    assert answer.reply.usage.cached > 0
