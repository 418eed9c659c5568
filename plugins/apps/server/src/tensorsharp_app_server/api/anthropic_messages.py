"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from starlette.routing import Route

from tensorsharp.chat import ChatReply, ContentDelta, Delta, ReasoningDelta
from tensorsharp_app_server.answers import Body, Stream, json_body
from tensorsharp_app_server.api import anthropic
from tensorsharp_app_server.describe import Operation
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.internal import Answers, Ask, answering, rendered
from tensorsharp_app_server.runtime import runtime, timings
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.wire import event

Event = dict[str, Any]
REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}


CREATE: Final = Operation("Reply in a conversation.", anthropic.REQUEST, streams=True)
COUNT: Final = Operation("The tokens that a conversation has.", anthropic.PROMPT)


def routes(service: Service) -> list[Route]:
    return [
        route(service, "/v1/messages", create, anthropic.WIRE, operation=CREATE),
        route(service, "/v1/messages/count_tokens", count_tokens, anthropic.WIRE, operation=COUNT),
    ]


async def create(call: Call) -> Body | Stream:
    ask = anthropic.read_ask(call.body)
    if call.body.flag("stream"):
        return Stream(_frames(call, ask))
    blocks, body = _Blocks(), {}
    async with answering(call, ask) as answers:
        async for chunk in answers.chunks():
            for _ in blocks.take(chunk.delta):
                continue
            if chunk.done is not None:
                body = {**_head(call, answers), "content": blocks.content, **_ending(chunk.done), **_facts(answers, chunk.done)}
    return json_body(body)


async def count_tokens(call: Call) -> Body:
    """The tokens of a conversation, with tools and system, as the model would read them."""
    messages, options = anthropic.read_messages(call.body), anthropic.read_options(call.body)
    async with call.service.host.use(call.body.text("model")) as served:
        llm = served.llm
        count = await asyncio.to_thread(lambda: len(llm.tokenize_prompt(rendered(llm, messages, options, anthropic.TOLD))))
    return json_body({"input_tokens": count})


def _head(call: Call, answers: Answers) -> dict[str, Any]:
    return {"id": f"msg_{call.id}", "type": "message", "role": "assistant", "model": answers.served.name}


def _ending(done: ChatReply) -> dict[str, Any]:
    stop = done.reply.stop
    reason = "stop_sequence" if stop is not None else REASONS.get(done.finish_reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": stop}


def _facts(answers: Answers, done: ChatReply) -> dict[str, Any]:
    found = done.reply.usage
    return {
        "usage": _usage(found.prompt, found.cached, found.completion),
        "timings": timings(done.reply),
        "tensorsharp": runtime(answers.served, [(0, done.reply)]),
    }


def _usage(prompt: int, cached: int, completion: int) -> dict[str, int]:
    """Tokens that were found again are not among those of the input."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
    }


async def _frames(call: Call, ask: Ask) -> AsyncGenerator[bytes, None]:
    async with answering(call, ask) as answers:
        (running,) = answers.running
        started = {"stop_reason": None, "stop_sequence": None, "usage": _usage(running.prompt_tokens, 0, 0)}
        yield _framed(_event("message_start", message={**_head(call, answers), "content": [], **started}))
        blocks = _Blocks()
        async for chunk in answers.chunks():
            yield b"".join(map(_framed, blocks.take(chunk.delta)))
            if chunk.done is not None:
                yield _framed(_event("message_delta", delta=_ending(chunk.done), **_facts(answers, chunk.done)))
        yield _framed(_event("message_stop"))


class _Blocks:
    """The blocks of a reply while they are made, and the events that tell of them, one block after the other.

    content: the blocks. Nobody signs what was thought here.
    """

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []
        self._open: str | None = None
        self._input = ""

    def take(self, delta: Delta | None) -> Iterator[Event]:
        """The events of one delta; None is the end."""
        if delta is None:
            yield from self._close()
        elif isinstance(delta, ContentDelta):
            yield from self._begin({"type": "text", "text": ""})
            self.content[-1]["text"] += delta.text
            yield self._more({"type": "text_delta", "text": delta.text})
        elif isinstance(delta, ReasoningDelta):
            yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            self.content[-1]["thinking"] += delta.text
            yield self._more({"type": "thinking_delta", "thinking": delta.text})
        else:
            if delta.id is not None:
                yield from self._close()
                yield from self._begin({"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
            if delta.arguments:
                self._input += delta.arguments
                yield self._more({"type": "input_json_delta", "partial_json": delta.arguments})

    def _begin(self, block: dict[str, Any]) -> Iterator[Event]:
        if self._open == block["type"]:
            return
        yield from self._close()
        self._open = block["type"]
        self.content.append(block)
        yield _event("content_block_start", index=len(self.content) - 1, content_block=dict(block))

    def _more(self, delta: dict[str, Any]) -> Event:
        return _event("content_block_delta", index=len(self.content) - 1, delta=delta)

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open == "tool_use":
            self.content[-1]["input"], self._input = json.loads(self._input), ""
        self._open = None
        yield _event("content_block_stop", index=len(self.content) - 1)


def _event(type: str, **fields: Any) -> Event:
    return {"type": type, **fields}


def _framed(found: Event) -> bytes:
    return event(found, found["type"])
