"""Answers do not depend on how fast tokens come and are read: but for times they are the same, whole and streamed."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tensorsharp.engine.handle import RequestHandle
from tensorsharp.types import TokenEvent

if TYPE_CHECKING:
    from harness import Served

ASKED = [{"role": "user", "content": "Hallo?"}]
SPOKEN = '<think>Hm.</think>So, 🎉<tool_call>{"name": "now"}</tool_call> ja.'
FUNCTION: Any = {"name": "now", "parameters": {"type": "object"}}
TOOL: Any = {"type": "function", "function": FUNCTION}
TIMES = {"created", "created_at", "completed_at", "sequence_number"}
TEXTS = {"content", "reasoning_content", "text", "delta", "thinking", "partial_json", "response", "arguments"}

CASES = {
    "chat": ("/v1/chat/completions", SPOKEN, {"messages": ASKED, "tools": [TOOL]}),
    "chat, one call": ("/v1/chat/completions", SPOKEN, {"messages": ASKED, "tools": [TOOL], "parallel_tool_calls": False}),
    "chat, log-probabilities": ("/v1/chat/completions", SPOKEN, {"messages": ASKED, "logprobs": True, "stop": ["ja"]}),
    "chat, stop at the limit": (
        "/v1/chat/completions",
        "<think>ab</think>cd",
        {"messages": ASKED, "stop": "cd", "max_tokens": 19},
    ),
    "chat, markup that is none": ("/v1/chat/completions", "<tool_call>ab", {"messages": ASKED, "tools": [TOOL], "stop": "b"}),
    "text": ("/v1/completions", "Grüße! 🎉 a", {"prompt": "a", "echo": True, "stop": ["🎉 "], "max_tokens": 14}),
    "text, log-probabilities": ("/v1/completions", "Grüße! 🎉", {"prompt": "a", "logprobs": 2, "max_tokens": 10}),
    "responses": ("/v1/responses", SPOKEN, {"input": "Hallo?", "tools": [{"type": "function", **FUNCTION}]}),
    "responses, cut": ("/v1/responses", SPOKEN, {"input": "Hallo?", "max_output_tokens": 24}),
    "messages": ("/v1/messages", SPOKEN, {"messages": ASKED, "max_tokens": 90, "stop_sequences": ["ja"]}),
    "messages, a tool": (
        "/v1/messages",
        SPOKEN,
        {"messages": ASKED, "max_tokens": 90, "tools": [{"name": "now", "input_schema": FUNCTION["parameters"]}]},
    ),
    "ollama": ("/api/chat", SPOKEN, {"messages": ASKED, "tools": [TOOL], "options": {"seed": 5, "stop": ["ja"]}}),
    "ollama, log-probabilities": (
        "/api/generate",
        SPOKEN,
        {"prompt": "a", "logprobs": True, "options": {"seed": 5, "num_predict": 40}},
    ),
}
"""Path, what the model says, what is asked."""


def without_times(data: Any) -> Any:
    if isinstance(data, list):
        return [without_times(one) for one in data]
    if not isinstance(data, dict):
        return data
    timed = TIMES | {key for key in data if key.endswith(("_duration", "_ms", "_per_second"))}
    return {key: without_times(value) for key, value in data.items() if key not in timed}


def parted(data: Any) -> tuple[Any, list[str]]:
    """(an event without its texts, those)."""
    if not isinstance(data, dict):
        return (["…"], []) if isinstance(data, list) and not data else (data, [])
    texts = [data[key] for key in data if key in TEXTS and isinstance(data[key], str)]
    made = {key: "…" if key in TEXTS and isinstance(value, str) else value for key, value in data.items()}
    for key, value in made.items():
        inner = [parted(one) for one in (value if isinstance(value, list) else [value])]
        made[key] = [one for one, _ in inner] if isinstance(value, list) else inner[0][0]
        texts += [text for _, found in inner for text in found]
    return made, texts


def streamed(answer: str) -> list[tuple[Any, list[str]]]:
    """The events; those that differ in their texts alone, one after the other, are one."""
    joined: list[tuple[Any, list[str]]] = []
    for line in answer.splitlines():
        data = line.removeprefix("data: ")
        if not data.startswith("{"):
            continue
        shape, texts = parted(without_times(json.loads(data)))
        if joined and joined[-1][0] == shape:
            joined[-1] = (shape, [a + b for a, b in zip(joined[-1][1], texts, strict=True)])
        else:
            joined.append((shape, texts))
    return joined


def counted(server: Served) -> Counter[str]:
    """Requests by their ends, and tokens."""
    server.llm.engine.check_idle()
    stats = server.llm.stats()
    return Counter(dict(stats.requests)) + Counter(computed=stats.tokens_computed, generated=stats.tokens_generated)


def read_singly(patch: pytest.MonkeyPatch) -> None:
    """As by who waits for each token."""

    async def ready(handle: RequestHandle) -> list[TokenEvent]:
        event = await anext(handle, None)
        return [] if event is None else [event]

    patch.setattr(RequestHandle, "ready", ready)


def read_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """As by who comes when all tokens are there."""
    real, real_next = RequestHandle.ready, RequestHandle.__anext__

    async def ready(handle: RequestHandle) -> list[TokenEvent]:
        await handle.wait()
        return await real(handle)

    async def following(handle: RequestHandle) -> TokenEvent:
        await handle.wait()
        return await real_next(handle)

    patch.setattr(RequestHandle, "ready", ready)
    patch.setattr(RequestHandle, "__anext__", following)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_an_answer_is_the_same_at_each_pace(thinker: Served, case: tuple[str, str, dict[str, Any]]) -> None:
    path, thinker.director.script, body = case
    ask = {"model": "thinker", "seed": 5, **body}

    def post(stream: bool) -> str:
        answer = thinker.http.post(path, json=ask | {"stream": stream}, headers={"X-Request-Id": "same"})
        assert answer.status_code == 200, answer.text
        return answer.text

    post(False)  # from now on the prompt is known
    found = []
    for pace in (read_singly, read_at_the_end):
        with pytest.MonkeyPatch.context() as patch:
            pace(patch)
            before = counted(thinker)
            answers = without_times(json.loads(post(False))), streamed(post(True))
        found.append((answers, counted(thinker) - before))
    assert found[0] == found[1]
