"""POST /v1/responses, over the wire and through OpenAI's own client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from harness import Served

PATH = "/v1/responses"
ITEM = {"type": "function_call", "name": "f", "call_id": "c"}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOSING: Any = {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def without_times(data: Any) -> Any:
    """What may differ between two responses to the same request, left out."""
    text = json.dumps({**data, "created_at": 0, "completed_at": 0, "timings": 0, "usage": 0})
    return json.loads(text.replace(data["id"].removeprefix("resp_"), ""))


def test_an_answer(server: Served) -> None:
    server.director.script = "Grüße!\nZwei."
    answer = server.openai.responses.create(model="staged", input="Hallo?", instructions="s", metadata={"a": "b"})
    assert (answer.object, answer.status, answer.output_text, answer.model) == (
        "response",
        "completed",
        "Grüße!\nZwei.",
        "staged",
    )
    (item,) = answer.output
    assert (item.type, item.status, item.id.startswith("msg_")) == ("message", "completed", True)
    assert answer.usage is not None
    assert answer.usage.input_tokens == len(server.llm.tokenize("[system]s[user]Hallo?[assistant]"))
    assert (answer.usage.output_tokens, answer.usage.output_tokens_details.reasoning_tokens) == (14, 0)
    assert (answer.store, answer.metadata, answer.instructions) == (False, {"a": "b"}, "s")


def test_the_reply_is_the_one_of_other_protocols(server: Served) -> None:
    answer = server.post(PATH, model="staged", input=[{"role": "user", "content": "Hallo?"}], seed=7, max_output_tokens=20)
    asked: dict[str, Any] = {"model": "staged", "messages": [{"role": "user", "content": "Hallo?"}]}
    other = server.post("/v1/chat/completions", **asked, seed=7, max_tokens=20)
    (item,) = answer["output"]
    assert item["content"][0]["text"] == other["choices"][0]["message"]["content"]
    assert answer["tensorsharp"] == other["tensorsharp"]
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert item["status"] == "incomplete"


def test_the_events_of_a_stream(server: Served) -> None:
    server.director.script = "ja"
    whole = server.post(PATH, model="staged", input="Hallo?", seed=1)
    events = list(server.openai.responses.create(model="staged", input="Hallo?", stream=True, extra_body={"seed": 1}))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * len(deltas),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert (events[0].response.status, events[0].response.output) == ("in_progress", [])  # type: ignore[union-attr]
    assert "".join(deltas) == "ja"
    last = events[-1]
    assert last.type == "response.completed"
    assert without_times(last.response.model_dump(mode="json", exclude_unset=True)) == without_times(whole)


def test_reasoning_text_and_calls_are_items(thinker: Served) -> None:
    thinker.director.script = "<think>Hm.</think>Moment. " + CALL + CALL.replace("Köln", "Bern")
    asked: Any = {"model": "thinker", "input": "Hallo?", "tools": [WEATHER]}
    whole = thinker.openai.responses.create(**asked)
    thought, said, first, second = whole.output
    assert (thought.type, said.type, first.type, second.type) == ("reasoning", "message", "function_call", "function_call")
    assert [part.text for part in thought.content or ()] == ["Hm."]
    assert whole.output_text == "Moment."
    assert [json.loads(call.arguments) for call in (first, second)] == [{"city": "Köln"}, {"city": "Bern"}]
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == len("<think>Hm."), "a token is a letter"
    with thinker.openai.responses.stream(**asked) as stream:
        seen = list(stream)
        final = stream.get_final_response()
    kinds = ["reasoning", "message", "function_call", "function_call"]
    assert [event.item.type for event in seen if event.type == "response.output_item.done"] == kinds
    arguments = [event.arguments for event in seen if event.type == "response.function_call_arguments.done"]
    assert arguments == [first.arguments, second.arguments]
    assert "".join(event.delta for event in seen if event.type == "response.reasoning_text.delta") == "Hm."
    plain = [[item.model_dump(exclude={"id", "parsed_arguments"}) for item in one.output] for one in (whole, final)]
    assert [item["type"] for item in plain[0]] == [item["type"] for item in plain[1]] == kinds
    assert [item["arguments"] for item in plain[0][2:]] == [item["arguments"] for item in plain[1][2:]]


def test_a_conversation_with_results(thinker: Served) -> None:
    thinker.director.script = "<think>Hm.</think>Moment. " + CALL
    first = thinker.openai.responses.create(model="thinker", input="Hallo?", tools=[WEATHER])
    call = first.output[-1]
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "17"}
    history: Any = [{"role": "user", "content": "Hallo?"}, *first.output, result]
    thinker.director.script = "17 Grad"
    answer = thinker.openai.responses.create(model="thinker", input=history, tools=[WEATHER])
    assert answer.output_text == "17 Grad"
    calls = [{"id": call.call_id, "function": {"name": "weather", "arguments": call.arguments}}]
    messages = [
        {"role": "user", "content": "Hallo?"},
        {"role": "assistant", "content": "Moment.", "tool_calls": calls, "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": call.call_id, "content": "17"},
    ]
    function = {"type": "function", "function": {name: WEATHER[name] for name in ("name", "description", "parameters")}}
    tokens = thinker.post("/tokenize", messages=messages, tools=[function])["count"]
    assert answer.usage is not None
    assert answer.usage.input_tokens == tokens


def test_functions_of_a_namespace(thinker: Served) -> None:
    close = {"type": "function", "name": "close", "description": "Close one.", "strict": False, "parameters": CLOSING}
    tools = [WEATHER, {"type": "namespace", "name": "agents", "description": "Tools for agents.", "tools": [close]}]
    asked: dict[str, Any] = {"model": "thinker", "tools": tools, "tool_choice": "auto", "store": False}
    turn = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hallo?"}]}
    thinker.director.script = '<tool_call>\n{"name": "agents.close", "arguments": {"target": "a"}}\n</tool_call>'
    answer = thinker.post(PATH, **asked, input=[turn])
    (call,) = answer["output"]
    assert (call["type"], call["name"], call["namespace"], call["arguments"]) == (
        "function_call",
        "close",
        "agents",
        '{"target": "a"}',
    )
    assert answer["tools"] == tools
    streamed = thinker.http.post(PATH, json={**asked, "input": [turn], "stream": True}).text
    added = next(line for line in streamed.splitlines() if '"response.output_item.added"' in line and line.startswith("data: "))
    assert json.loads(added.removeprefix("data: "))["item"]["namespace"] == "agents"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "closed"}
    thinker.director.script = "Gut."
    answer = thinker.post(PATH, **asked, input=[turn, call, result])
    assert answer["output"][0]["content"][0]["text"] == "Gut."
    function = {"name": "agents.close", "description": "Tools for agents. Close one.", "parameters": CLOSING}
    past = {"id": call["call_id"], "function": {"name": "agents.close", "arguments": call["arguments"]}}
    messages = [
        {"role": "user", "content": "Hallo?"},
        {"role": "assistant", "content": "", "tool_calls": [past]},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "closed"},
    ]
    weather = {name: WEATHER[name] for name in ("name", "description", "parameters")}
    tokens = thinker.post("/tokenize", messages=messages, tools=[weather, function])["count"]
    assert answer["usage"]["input_tokens"] == tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "pick"}])
def test_a_call_can_be_required(thinker: Served, choice: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    asked: Any = {"model": "thinker", "input": "x", "tools": [{"type": "function", "name": "pick", "parameters": schema}]}
    answer = thinker.post(PATH, **asked, tool_choice=choice, parallel_tool_calls=False, reasoning={"effort": "none"})
    (item,) = answer["output"]
    assert (item["name"], item["arguments"]) == ("pick", '{"a": "x"}')


def test_a_reply_fits_its_schema(server: Served) -> None:
    schema: Any = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    answer = server.openai.responses.create(model="staged", input="x", text=form, max_output_tokens=60)
    assert json.loads(answer.output_text) == {"n": 7}
    anything: Any = {"format": {"type": "json_object"}}
    assert (
        server.post(PATH, model="staged", input="x", text=anything, max_output_tokens=3)["output"][0]["content"][0]["text"]
        .lstrip()
        .startswith("{")
    )


@pytest.mark.parametrize("asked", [{"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"top_logprobs": 2}])
def test_log_probabilities(server: Served, asked: Any) -> None:
    asked = {"model": "staged", "input": "x", "max_output_tokens": 20, **asked}
    part = server.post(PATH, **asked, seed=3)["output"][0]["content"][0]
    assert b"".join(bytes(e["bytes"]) for e in part["logprobs"]).decode("utf-8", "replace") == part["text"]
    assert (len(part["logprobs"]), len(part["logprobs"][0]["top_logprobs"])) == (20, 2)
    events = server.openai.responses.create(stream=True, extra_body={"seed": 3}, **asked)
    told = [entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert told == [entry["token"] for entry in part["logprobs"]][: len(told)]
    assert len(told) >= 19, "a token at the end may complete no character"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 3}, "input", "invalid_value"),
        ({"input": ["x"]}, "input[0]", "invalid_value"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", "unsupported"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "unsupported"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "missing"),
        ({"input": [{**ITEM, "arguments": "{"}]}, "input[0].arguments", "invalid_value"),
        ({"input": [{**ITEM, "arguments": "[]"}], "instructions": "x"}, "input[0].arguments", "invalid_value"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "missing"),
        ({"input": "x", "instructions": 1}, "instructions", "invalid_value"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id", "unsupported"),
        ({"input": "x", "conversation": "c"}, "conversation", "unsupported"),
        ({"input": "x", "background": True}, "background", "unsupported"),
        ({"input": "x", "truncation": "auto"}, "truncation", "unsupported"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"input": "x", "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"input": "x", "temperature": -1}, "temperature", "invalid_value"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported"),
        ({"input": "x", "tools": [{"type": "namespace", "tools": []}]}, "tools[0].name", "missing"),
        (
            {"input": "x", "tools": [{"type": "namespace", "name": "a", "tools": [{"type": "custom"}]}]},
            "tools[0].tools[0].type",
            "unsupported",
        ),
        ({"input": "x", "tool_choice": {"type": "web_search"}}, "tool_choice.type", "invalid_value"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_value"),
        ({"input": "x", "reasoning": {"effort": "very"}}, "reasoning.effort", "invalid_value"),
        ({"input": "x", "reasoning": {"effort": "low"}}, "reasoning.effort", "unsupported"),
        ({"input": "x", "text": {"format": {}}}, "text.format.type", "missing"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing"),
        ({"input": "x" * 600}, "input", "context_length_exceeded"),
        ({"input": "x" * 9000}, "input", "context_length_exceeded"),
    ],
)
def test_a_field_that_is_wrong_is_named(server: Served, body: dict[str, Any], param: str, code: str) -> None:
    answer = server.http.post(PATH, json={"model": "staged", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error


def test_no_response_is_kept(server: Served) -> None:
    answer = server.openai.responses.create(model="staged", input="x", max_output_tokens=1)
    with pytest.raises(openai.NotFoundError, match="not kept"):
        server.openai.responses.retrieve(answer.id)


def test_an_error_after_the_first_byte_is_in_the_stream(server: Served) -> None:
    server.post(PATH, model="staged", input="x", max_output_tokens=1)
    server.director.breaks = 5
    events = list(server.openai.responses.create(model="staged", input="x", stream=True))
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "the lamp went out" in last.response.error.message
    server.director.breaks = 5
    with pytest.raises(openai.InternalServerError):
        server.openai.responses.create(model="staged", input="x")
