"""A conversation with tools through the client of each protocol, which keeps its messages in its own words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anthropic
import httpx
import ollama
import openai


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request brought. ended: the client's word for the reason. prompt, cached: tokens."""

    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    ended: str | None
    prompt: int
    cached: int


class Talk(Protocol):
    """A conversation at temperature 0. called, said: what `ended` is behind calls, and behind a text."""

    called: str
    said: str

    def say(self, text: str) -> None:
        """The user's turn."""

    def ask(self, *, required: bool) -> Answer:
        """The model's turn; with `required` it has to make one call."""

    def results(self, *texts: str) -> None:
        """What the calls of its last turn brought."""

    def streamed(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """The call of the next turn, from a stream; the conversation stays as it is."""

    def close(self) -> None:
        """Close the client."""


class OpenAITalk:
    called, said = "tool_calls", "stop"

    def __init__(self, url: str, model: str, functions: Sequence[dict[str, Any]]) -> None:
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        tools = [{"type": "function", "function": {**function, "strict": True}} for function in functions]
        self._messages: list[Any] = []
        self._asked: Any = {"model": model, "messages": self._messages, "tools": tools, "temperature": 0, "max_tokens": 200}
        self._bound = {"tool_choice": "required", "parallel_tool_calls": False}

    def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def ask(self, *, required: bool) -> Answer:
        made = self._client.chat.completions.create(**self._asked, **(self._bound if required else {}))
        message, usage = made.choices[0].message, made.usage
        self._messages.append(message.model_dump(exclude_none=True))
        calls = tuple((c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ())
        cached = usage.prompt_tokens_details.cached_tokens
        return Answer(message.content or "", calls, made.choices[0].finish_reason, usage.prompt_tokens, cached)

    def results(self, *texts: str) -> None:
        calls = self._messages[-1]["tool_calls"]
        self._messages += [{"role": "tool", "tool_call_id": c["id"], "content": t} for c, t in zip(calls, texts, strict=True)]

    def streamed(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        found: dict[int, list[str]] = {}
        for chunk in self._client.chat.completions.create(**self._asked, **self._bound, stream=True):
            for part in chunk.choices[0].delta.tool_calls or ():
                call = found.setdefault(part.index, ["", ""])
                call[0] += part.function.name or ""
                call[1] += part.function.arguments or ""
        return tuple((name, json.loads(arguments)) for name, arguments in found.values())

    def close(self) -> None:
        self._client.close()


class OllamaTalk:
    """Its client knows no choice of tools: that stands in `options`."""

    called = said = "stop"

    def __init__(self, url: str, model: str, functions: Sequence[dict[str, Any]]) -> None:
        self._client = ollama.Client(url, event_hooks={"response": [self._note]})
        self._cached = 0
        tools = [{"type": "function", "function": function} for function in functions]
        self._messages: list[Any] = []
        self._asked: Any = {"model": model, "messages": self._messages, "tools": tools}
        self._options = {"temperature": 0, "num_predict": 200}
        self._bound = {**self._options, "tool_choice": "required", "parallel_tool_calls": False}

    def say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})

    def ask(self, *, required: bool) -> Answer:
        made = self._client.chat(**self._asked, options=self._bound if required else self._options)
        self._messages.append(made.message)
        calls = tuple((c.function.name, dict(c.function.arguments)) for c in made.message.tool_calls or ())
        return Answer(made.message.content or "", calls, made.done_reason, made.prompt_eval_count or 0, self._cached)

    def results(self, *texts: str) -> None:
        calls = self._messages[-1].tool_calls
        self._messages += [
            {"role": "tool", "tool_name": c.function.name, "content": t} for c, t in zip(calls, texts, strict=True)
        ]

    def streamed(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        parts = self._client.chat(**self._asked, options=self._bound, stream=True)
        return tuple((c.function.name, dict(c.function.arguments)) for part in parts for c in part.message.tool_calls or ())

    def close(self) -> None:
        self._client.close()

    def _note(self, response: httpx.Response) -> None:
        """The client drops what Ollama does not send."""
        if response.headers["content-type"] == "application/json":
            self._cached = json.loads(response.read()).get("prompt_cache_hit_tokens", 0)


class AnthropicTalk:
    called, said = "tool_use", "end_turn"

    def __init__(self, url: str, model: str, functions: Sequence[dict[str, Any]]) -> None:
        self._client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        tools = [{"strict": True, **f, "input_schema": f["parameters"]} for f in functions]
        for tool in tools:
            del tool["parameters"]
        self._messages: list[Any] = []
        self._asked: Any = {"model": model, "messages": self._messages, "tools": tools, "max_tokens": 200}
        self._asked["extra_body"] = {"temperature": 0}
        self._bound: Any = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}

    def say(self, text: str) -> None:
        said = {"type": "text", "text": text}
        if self._messages and self._messages[-1]["role"] == "user":
            self._messages[-1]["content"].append(said)
        else:
            self._messages.append({"role": "user", "content": [said]})

    def ask(self, *, required: bool) -> Answer:
        made = self._client.messages.create(**self._asked, **(self._bound if required else {}))
        self._messages.append({"role": "assistant", "content": made.content})
        cached = made.usage.cache_read_input_tokens or 0
        text = "".join(block.text for block in made.content if block.type == "text")
        return Answer(text, _used(made), made.stop_reason, made.usage.input_tokens + cached, cached)

    def results(self, *texts: str) -> None:
        ids = [block.id for block in self._messages[-1]["content"] if block.type == "tool_use"]
        content = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in zip(ids, texts, strict=True)]
        self._messages.append({"role": "user", "content": content})

    def streamed(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        with self._client.messages.stream(**self._asked, **self._bound) as stream:
            return _used(stream.get_final_message())

    def close(self) -> None:
        self._client.close()


def _used(message: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple((block.name, block.input) for block in message.content if block.type == "tool_use")


TALKS: dict[str, type[OpenAITalk | OllamaTalk | AnthropicTalk]] = {
    "openai": OpenAITalk,
    "ollama": OllamaTalk,
    "anthropic": AnthropicTalk,
}
