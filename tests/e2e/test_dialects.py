"""Ollama's and Anthropic's clients against the served command: a reply is the same one in every protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from tests.e2e.served import PATIENCE_S, Command, serving, until
from tests.realmodels import SMOLLM2, needs

ASKED: Any = [{"role": "user", "content": "Why is the sky blue?"}]
LENGTH = 24
CITY: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CARRIED = {keyword: value for keyword, value in CITY.items() if keyword != "additionalProperties"}
"""What Ollama's client sends of a tool's schema."""
FUNCTION: Any = {"name": "get_weather", "description": "The weather in a city", "parameters": CARRIED}
TOOL: Any = {"type": "function", "function": FUNCTION}
CUSTOM: Any = {"name": "get_weather", "description": "The weather in a city", "input_schema": CARRIED}
COLD = {"temperature": 0}
WEATHER: Any = [{"role": "user", "content": "What is the weather in Rome?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Command]:
    with serving(needs(SMOLLM2), "--ctx-size", "1024") as found:
        yield found


@pytest.fixture(scope="module")
def name(server: Command) -> str:
    found: str = httpx.get(f"{server.url}/api/tags", timeout=PATIENCE_S).json()["models"][0]["model"]
    return found


@pytest.fixture
def as_openai(server: Command) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def as_ollama(server: Command) -> Iterator[ollama.Client]:
    client = ollama.Client(server.url, timeout=120)
    yield client
    client.close()


@pytest.fixture
def as_anthropic(server: Command) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_a_reply_is_the_same_in_every_protocol(
    as_openai: openai.OpenAI, as_ollama: ollama.Client, as_anthropic: anthropic.Anthropic, name: str
) -> None:
    options = {"seed": 1, "num_predict": LENGTH}
    first = as_openai.chat.completions.create(model=name, messages=ASKED, seed=1, max_tokens=LENGTH)
    text = first.choices[0].message.content or ""
    assert "sky" in text.lower()
    assert as_ollama.chat(name, ASKED, options=options).message.content == text
    assert as_ollama.generate(name, ASKED[0]["content"], options=options).response == text
    assert "".join(p.message.content or "" for p in as_ollama.chat(name, ASKED, options=options, stream=True)) == text
    asked: Any = {"model": name, "messages": ASKED, "max_tokens": LENGTH, "extra_body": {"seed": 1}}
    whole = as_anthropic.messages.create(**asked)
    assert [block.text for block in whole.content if block.type == "text"] == [text]
    assert whole.stop_reason == "max_tokens"
    with as_anthropic.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == text


def test_a_call_that_is_required_is_the_same_in_every_protocol(
    as_openai: openai.OpenAI, server: Command, as_anthropic: anthropic.Anthropic, name: str
) -> None:
    asked: Any = {"model": name, "messages": WEATHER, "max_tokens": 100, "temperature": 0}
    choice = as_openai.chat.completions.create(**asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[
        0
    ]
    (call,) = choice.message.tool_calls or ()
    assert choice.finish_reason == "tool_calls"
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in CITY["properties"]["city"]["enum"]
    body = {"model": name, "messages": WEATHER, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    body |= {"options": {"temperature": 0}, "stream": False}
    theirs = httpx.post(f"{server.url}/api/chat", json=body, timeout=120).json()["message"]["tool_calls"]
    assert theirs == [{"id": call.id, "function": {"name": "get_weather", "arguments": arguments}}]
    message = as_anthropic.messages.create(
        model=name,
        messages=WEATHER,
        max_tokens=100,
        tools=[CUSTOM],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        extra_body=COLD,
    )
    (block,) = message.content
    assert (block.type, message.stop_reason) == ("tool_use", "tool_use")
    assert (block.id, block.name, block.input) == (call.id, "get_weather", arguments)  # type: ignore[union-attr]


def test_results_of_tools_are_read_as_the_same_prompt(
    as_openai: openai.OpenAI, as_ollama: ollama.Client, as_anthropic: anthropic.Anthropic, name: str
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "17 degrees and rain"}
    first = as_openai.chat.completions.create(
        model=name, messages=[*WEATHER, said, result], tools=[TOOL], max_tokens=LENGTH, temperature=0
    )
    text = first.choices[0].message.content
    assert text
    calls = [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]
    answered = {"role": "tool", "tool_name": "get_weather", "content": "17 degrees and rain"}
    options = {"temperature": 0, "num_predict": LENGTH}
    messages: Any = [*WEATHER, {"role": "assistant", "content": "", "tool_calls": calls}, answered]
    second = as_ollama.chat(name, messages, tools=[TOOL], options=options)
    assert second.message.content == text
    use = {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Rome"}}
    back = {"type": "tool_result", "tool_use_id": "c1", "content": "17 degrees and rain"}
    history: Any = [*WEATHER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]
    asked: Any = {"model": name, "messages": history, "tools": [CUSTOM]}
    message = as_anthropic.messages.create(**asked, max_tokens=LENGTH, extra_body=COLD)
    assert [block.text for block in message.content if block.type == "text"] == [text]
    assert first.usage is not None
    assert second.prompt_eval_count == first.usage.prompt_tokens
    assert as_anthropic.messages.count_tokens(**asked).input_tokens == first.usage.prompt_tokens


def test_a_schema_is_followed(as_ollama: ollama.Client, as_anthropic: anthropic.Anthropic, name: str) -> None:
    answer = as_ollama.chat(name, WEATHER, format=CITY, options={"temperature": 0})
    form: Any = {"format": {"type": "json_schema", "schema": CITY}}
    asked: Any = {"model": name, "messages": WEATHER, "max_tokens": 100, "extra_body": {"output_config": form, **COLD}}
    (block,) = as_anthropic.messages.create(**asked).content
    assert block.type == "text"
    assert answer.message.content == block.text
    assert json.loads(block.text)["city"] in CITY["properties"]["city"]["enum"]


def test_log_probabilities_are_the_same(as_openai: openai.OpenAI, as_ollama: ollama.Client, name: str) -> None:
    asked: Any = {"model": name, "messages": ASKED, "max_tokens": 8, "seed": 2, "logprobs": True, "top_logprobs": 2}
    first = as_openai.chat.completions.create(**asked).choices[0].logprobs
    answer = as_ollama.chat(name, ASKED, options={"seed": 2, "num_predict": 8}, logprobs=True, top_logprobs=2)
    assert first is not None
    found = [(entry.token, entry.logprob, len(entry.top_logprobs or ())) for entry in answer.logprobs or ()]
    assert found == [(entry.token, entry.logprob, 2) for entry in first.content or ()]


def test_a_chat_model_makes_no_vectors(as_openai: openai.OpenAI, as_ollama: ollama.Client, name: str) -> None:
    with pytest.raises(openai.BadRequestError, match="not made for embeddings"):
        as_openai.embeddings.create(model=name, input="x")
    with pytest.raises(ollama.ResponseError, match="not made for embeddings") as refused:
        as_ollama.embed(name, "x")
    assert refused.value.status_code == 400


def test_errors_are_the_clients_own(as_ollama: ollama.Client, as_anthropic: anthropic.Anthropic, name: str) -> None:
    long: Any = [{"role": "user", "content": "word " * 2000}]
    with pytest.raises(ollama.ResponseError, match="context") as refused:
        as_ollama.chat(name, long)
    assert refused.value.status_code == 400
    with pytest.raises(anthropic.BadRequestError, match="context"):
        as_anthropic.messages.create(model=name, messages=long, max_tokens=5)
    with pytest.raises(ollama.ResponseError):
        as_ollama.chat("llama9", ASKED)
    with pytest.raises(anthropic.NotFoundError):
        as_anthropic.messages.create(model="claude-9", messages=ASKED, max_tokens=5)


def test_what_the_file_is(as_ollama: ollama.Client, name: str) -> None:
    (tag,) = as_ollama.list().models
    assert tag.details is not None
    assert (tag.details.family, tag.details.parameter_size, tag.details.quantization_level) == ("llama", "134.52M", "Q4_1")
    assert as_ollama.show(name).capabilities == ["completion", "tools"]
    (running,) = as_ollama.ps().models
    assert (running.model, running.context_length, running.digest) == (name, 1024, tag.digest)


@pytest.mark.parametrize("protocol", ["ollama", "anthropic"])
def test_a_stream_that_is_closed_gives_its_memory_back(
    server: Command, as_ollama: ollama.Client, as_anthropic: anthropic.Anthropic, name: str, protocol: str
) -> None:
    before = _engine(server)["requests"].get("cancelled", 0)
    if protocol == "ollama":
        lines: Any = as_ollama.chat(name, ASKED, stream=True)
        next(iter(lines))
        lines.close()
    else:
        stream = as_anthropic.messages.create(model=name, messages=ASKED, max_tokens=900, stream=True)
        assert next(stream).type == "message_start"
        stream.close()
    assert until(lambda: _engine(server)["requests"].get("cancelled", 0) == before + 1)
    blocks = _engine(server)["blocks"]
    assert [used for used, _ in blocks.values()] == [0] * len(blocks)


def _engine(server: Command) -> Any:
    return httpx.get(f"{server.url}/stats", timeout=PATIENCE_S).json()["models"][0]["engine"]
