"""POST /v1/messages, over the wire and through Anthropic's own client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

if TYPE_CHECKING:
    from harness import Served

PATH = "/v1/messages"
ASKED: Any = [{"role": "user", "content": "Hallo?"}]
ASK: Any = {"model": "staged", "messages": ASKED, "max_tokens": 40}
PROMPT = "[user]Hallo?[assistant]"
WEATHER: Any = {
    "name": "weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def events(server: Served, **body: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of each event of a stream."""
    answer = server.http.post(PATH, json={**ASK, **body, "stream": True})
    assert answer.status_code == 200, answer.text
    found = [block.split("\n") for block in answer.text.rstrip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in found]


def test_an_answer(server: Served) -> None:
    server.director.script = "Grüße!\nZwei."
    message = server.anthropic.messages.create(**ASK, metadata={"user_id": "u"})
    assert (message.type, message.role, message.model) == ("message", "assistant", "staged")
    assert [block.model_dump(exclude_none=True) for block in message.content] == [{"type": "text", "text": "Grüße!\nZwei."}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(server.llm.tokenize(PROMPT))
    assert (usage.output_tokens, usage.cache_creation_input_tokens) == (14, 0)


def test_the_reply_is_the_one_of_other_protocols(server: Served) -> None:
    answer = server.post(PATH, **ASK, seed=7, temperature=1, top_p=1, system="s")
    messages = [{"role": "system", "content": "s"}, *ASKED]
    asked: dict[str, Any] = {"model": "staged", "messages": messages, "seed": 7, "temperature": 1, "top_p": 1}
    other = server.post("/v1/chat/completions", **asked, max_tokens=40)
    assert answer["content"][0]["text"] == other["choices"][0]["message"]["content"]
    assert (answer["stop_reason"], answer["tensorsharp"]) == ("max_tokens", other["tensorsharp"])


def test_what_was_found_again_is_not_input(server: Served) -> None:
    long: Any = [{"role": "user", "content": "w" * 100}]
    server.anthropic.messages.create(model="staged", messages=long, max_tokens=1)
    usage = server.anthropic.messages.create(model="staged", messages=long, max_tokens=1).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (
        1,
        len(server.llm.tokenize(f"[user]{'w' * 100}[assistant]")) - 1,
    )


def test_a_stream_joins_to_the_whole(server: Served) -> None:
    asked: Any = {**ASK, "extra_body": {"seed": 3}}
    whole = server.anthropic.messages.create(**asked)
    with server.anthropic.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]
    assert (text, final.stop_reason) == (whole.content[0].text, "max_tokens")  # type: ignore[union-attr]
    assert final.usage.output_tokens == 40
    prompts = [one.usage.input_tokens + (one.usage.cache_read_input_tokens or 0) for one in (final, whole)]
    assert prompts == [len(server.llm.tokenize(PROMPT))] * 2


def test_the_events_of_a_stream(server: Served) -> None:
    server.director.script = "ja"
    found = events(server)
    deltas = [data["delta"] for name, data in found if name == "content_block_delta"]
    assert all(name == data["type"] for name, data in found)
    assert [name for name, _ in found] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * len(deltas),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(delta["text"] for delta in deltas) == "ja"
    assert {delta["type"] for delta in deltas} == {"text_delta"}
    start = found[0][1]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert start["usage"]["input_tokens"] == len(server.llm.tokenize(PROMPT))
    assert found[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_named(server: Served, *, stream: bool) -> None:
    server.director.script = "eins zwei drei"
    found = events(server, stop_sequences=["drei", "wei"]) if stream else []
    data = server.post(PATH, **ASK, stop_sequences=["drei", "wei"])
    ending = found[-2][1]["delta"] if stream else data
    assert (ending["stop_reason"], ending["stop_sequence"]) == ("stop_sequence", "wei")
    assert data["content"] == [{"type": "text", "text": "eins z"}]


def test_a_conversation_with_a_tool(thinker: Served) -> None:
    client = thinker.anthropic
    thinker.director.script = "<think>Hm.</think>Moment. " + CALL
    asked: Any = {"model": "thinker", "max_tokens": 200, "tools": [WEATHER]}
    whole = client.messages.create(**asked, messages=ASKED)
    with client.messages.stream(**asked, messages=ASKED) as stream:
        final = stream.get_final_message()
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]
    thought, said, called = whole.content
    assert (thought.type, said.type, called.type, whole.stop_reason) == ("thinking", "text", "tool_use", "tool_use")
    assert (thought.thinking, said.text) == ("Hm.", "Moment.")
    assert (called.name, called.input) == ("weather", {"city": "Köln"})
    result = {"type": "tool_result", "tool_use_id": called.id, "content": [{"type": "text", "text": "17"}]}
    more: Any = [
        *ASKED,
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [result, {"type": "text", "text": "Also?"}]},
    ]
    text = thinker.post(
        "/apply-template",
        messages=[
            *ASKED,
            {
                "role": "assistant",
                "content": "Moment.",
                "tool_calls": [{"id": called.id, "function": {"name": "weather", "arguments": {"city": "Köln"}}}],
            },
            {"role": "tool", "content": "17"},
            {"role": "user", "content": "Also?"},
        ],
    )["prompt"]
    count = client.messages.count_tokens(model="thinker", messages=more).input_tokens
    assert count == len(thinker.llm.tokenize_prompt(text))
    thinker.director.script = "17 Grad"
    assert client.messages.create(**asked, messages=more).content[0].text == "17 Grad"  # type: ignore[union-attr]


def test_blocks_stand_in_the_order_in_which_they_came(thinker: Served) -> None:
    thinker.director.script = f"<think>Hm.</think>Erst {CALL}<think>So.</think>dann {CALL} ja."
    asked: Any = {"model": "thinker", "max_tokens": 300, "tools": [WEATHER], "messages": ASKED}
    whole = thinker.anthropic.messages.create(**asked).content
    with thinker.anthropic.messages.stream(**asked) as stream:
        assert [block.model_dump() for block in stream.get_final_message().content] == [block.model_dump() for block in whole]
    kinds = ["thinking", "text", "tool_use"]
    assert [block.type for block in whole] == [*kinds, *kinds, "text"]


def test_several_calls_are_several_blocks(thinker: Served) -> None:
    thinker.director.script = CALL + CALL.replace("Köln", "Bern")
    asked: Any = {"model": "thinker", "max_tokens": 200, "tools": [WEATHER], "messages": ASKED}
    with thinker.anthropic.messages.stream(**asked) as stream:
        found = stream.get_final_message().content
    assert [block.input for block in found if block.type == "tool_use"] == [{"city": "Köln"}, {"city": "Bern"}]
    one: Any = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(thinker.anthropic.messages.create(**asked, tool_choice=one).content) == 1
    never: Any = {"type": "none"}
    assert [b.type for b in thinker.anthropic.messages.create(**asked, tool_choice=never).content] == ["text"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "pick"}])
def test_a_call_can_be_required(thinker: Served, choice: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    tools: Any = [{"name": "pick", "input_schema": schema, "type": "custom"}]
    message = thinker.anthropic.messages.create(
        model="thinker",
        messages=ASKED,
        max_tokens=100,
        tools=tools,
        tool_choice={**choice, "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
    )
    assert [(block.name, block.input) for block in message.content if block.type == "tool_use"] == [("pick", {"a": "x"})]
    assert (len(message.content), message.stop_reason) == (1, "tool_use")


def test_thinking_has_a_budget(thinker: Served) -> None:
    thinker.director.script = "<think>" + "Hm. " * 20 + "</think>Ja."
    asked: Any = {"model": "thinker", "messages": ASKED, "max_tokens": 100}
    free = thinker.anthropic.messages.create(**asked, thinking={"type": "adaptive"}).content
    bound = thinker.post(PATH, **asked, thinking={"type": "enabled", "budget_tokens": 20})["content"]
    assert (free[0].type, free[0].thinking) == ("thinking", ("Hm. " * 20).strip())
    first = bound[0]["thinking"].split("\n\n")[0]  # the model begins its text again behind the end that was forced
    assert 0 < len(first) <= 20, "a token is a letter"


def test_a_reply_fits_its_schema(server: Served) -> None:
    schema = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}
    data = server.post(PATH, **ASK, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(data["content"][0]["text"]) == {"n": 7}


def test_tokens_are_counted(server: Served) -> None:
    blocks: Any = [{"type": "text", "text": "Hallo?", "cache_control": {"type": "ephemeral"}}]
    count = server.anthropic.messages.count_tokens(model="staged", messages=[{"role": "user", "content": blocks}], system="s")
    assert count.input_tokens == len(server.llm.tokenize(f"[system]s{PROMPT}"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_tokens": None}, "max_tokens is null"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "txt"}}}},
            "output_config.format.schema: #/type",
        ),
        ({"messages": []}, "messages is []"),
        ({"messages": "hi"}, "messages is"),
        ({"messages": ["hi"]}, "messages[0] is"),
        ({"messages": [{"content": "x"}]}, "messages[0].role is missing"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role is"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content is []"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type is 'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        (
            {
                "messages": [
                    *ASKED,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "x"}]},
                ]
            },
            "messages[1].content[0].input is",
        ),
        ({"messages": [*ASKED, {"role": "assistant", "content": "The answer is"}]}, "cannot be continued"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "prompt is too long: The prompt has "),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "prompt is too long: The prompt has at least 512 tokens"),
        ({"system": 3}, "system is 3"),
        ({"system": [IMAGE]}, "system[0].type is"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type is"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema is missing"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name is"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type is"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
        ({"tool_choice": {"type": "tool", "name": "none"}}, "tool_choice names"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "does not reason"),
        ({"thinking": {"budget_tokens": 2000}}, "thinking.type is missing"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens is 0"),
        ({"stop_sequences": [""]}, "stop_sequences is"),
        ({"stop_sequences": [1]}, "stop_sequences is"),
        ({"temperature": "warm"}, "temperature is"),
        ({"top_k": 1.5}, "top_k is"),
        ({"stream": 1}, "stream is"),
        ({"output_config": {"effort": "none"}}, "output_config.effort is"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema is missing"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "not"),
    ],
)
def test_a_field_that_is_wrong_is_named(server: Served, body: dict[str, Any], words: str) -> None:
    answer = server.http.post(PATH, json={**ASK, **body})
    data = answer.json()
    assert (answer.status_code, data["type"], data["error"]["type"]) == (400, "error", "invalid_request_error"), answer.text
    assert words in data["error"]["message"]


def test_a_thread_is_refused_in_the_words_that_let_a_client_go_on_without(server: Served) -> None:
    tools = [{"type": "custom", "name": "weather", "input_schema": {"type": "object"}}]
    asked = {**ASK, "tools": tools, "tool_choice": {"type": "any"}, "thread": {"type": "create"}, "stream": False}
    answer = server.http.post(PATH, json=asked, headers={"anthropic-beta": "message-threads-2026-08-12"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert (
        error["message"] == "thread cannot be used: the server keeps no conversations. Send the whole conversation as messages."
    )
    assert error["details"] == {"error_code": "thread_unsupported_request"}


def test_the_client_raises_its_own_errors(server: Served) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        server.anthropic.messages.create(model="claude-9", messages=ASKED, max_tokens=1)
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        server.anthropic.messages.create(model="staged", messages=ASKED, max_tokens=0)


def test_a_key_is_asked_for(serve: Any) -> None:
    server = serve(api_keys=("geheim",))
    with pytest.raises(anthropic.AuthenticationError):
        server.anthropic.messages.create(**ASK)
    with anthropic.Anthropic(base_url=server.url, api_key="geheim", max_retries=0) as client:
        assert client.messages.create(**ASK).content


def test_the_client_lists_models(server: Served) -> None:
    page = server.anthropic.models.list()
    assert [(one.id, one.type, one.display_name) for one in page] == [
        ("second", "model", "second"),
        ("staged", "model", "staged"),
    ]
    assert page.has_more is False
    assert server.anthropic.models.retrieve("staged").created_at is not None


def test_an_error_after_the_first_byte_is_in_the_stream(server: Served) -> None:
    server.anthropic.messages.create(**ASK)
    server.director.breaks = 5
    with pytest.raises(anthropic.APIStatusError, match="the lamp went out"), server.anthropic.messages.stream(**ASK) as stream:
        stream.get_final_message()
    server.director.breaks = 3
    name, data = events(server)[-1]
    assert (name, data["type"], data["error"]["type"]) == ("error", "error", "api_error")


def test_a_long_silence_is_broken_by_pings(serve: Any) -> None:
    server = serve(ping_s=0.05)
    server.anthropic.messages.create(**ASK)
    server.director.pace.clear()
    with server.http.stream("POST", PATH, json={**ASK, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: message_start"
        assert next(line for line in lines if line.startswith("event: ")) == "event: ping"
        assert next(lines) == 'data: {"type":"ping"}'
        server.director.pace.set()
        assert list(lines)[-3] == "event: message_stop"
