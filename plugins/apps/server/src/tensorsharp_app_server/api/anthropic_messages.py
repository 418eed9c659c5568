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
    async with answering(call, ask) as answers:
        ((done, _),) = await answers.finished()
    return json_body({**_head(call, answers), "content": _content(done), **_ending(done), **_facts(answers, done)})


async def count_tokens(call: Call) -> Body:
    """The tokens of a conversation, with tools and system, as the model would read them."""
    messages, options = anthropic.read_messages(call.body), anthropic.read_options(call.body)
    async with call.service.host.use(call.body.text("model")) as served:
        llm = served.llm
        count = await asyncio.to_thread(lambda: len(llm.tokenize_prompt(rendered(llm, messages, options, anthropic.TOLD))))
    return json_body({"input_tokens": count})


def _head(call: Call, answers: Answers) -> dict[str, Any]:
    return {"id": f"msg_{call.id}", "type": "message", "role": "assistant", "model": answers.served.name}


def _content(done: ChatReply) -> list[dict[str, Any]]:
    """The reply as blocks. Nobody signs what was thought here."""
    thought = [{"type": "thinking", "thinking": done.reasoning, "signature": ""}] if done.reasoning else []
    said = [{"type": "text", "text": done.content}] if done.content else []
    called = [{"type": "tool_use", "id": c.id, "name": c.name, "input": json.loads(c.arguments)} for c in done.tool_calls]
    return [*thought, *said, *called]


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
        yield _event("message_start", message={**_head(call, answers), "content": [], **started})
        blocks = _Blocks()
        async for chunk in answers.chunks():
            yield b"".join(blocks.take(chunk.delta))
            if chunk.done is not None:
                yield _event("message_delta", delta=_ending(chunk.done), **_facts(answers, chunk.done))
        yield _event("message_stop")


class _Blocks:
    """The events of a reply's blocks, one block after the other."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def take(self, delta: Delta | None) -> Iterator[bytes]:
        """Those of one delta; None is the end."""
        if delta is None:
            yield from self._close()
        elif isinstance(delta, ContentDelta):
            yield from self._begin({"type": "text", "text": ""})
            yield self._more({"type": "text_delta", "text": delta.text})
        elif isinstance(delta, ReasoningDelta):
            yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            yield self._more({"type": "thinking_delta", "thinking": delta.text})
        else:
            if delta.id is not None:
                yield from self._close()
                yield from self._begin({"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
            if delta.arguments:
                yield self._more({"type": "input_json_delta", "partial_json": delta.arguments})

    def _begin(self, block: dict[str, Any]) -> Iterator[bytes]:
        if self._open == block["type"]:
            return
        yield from self._close()
        self._index += 1
        self._open = block["type"]
        yield _event("content_block_start", index=self._index, content_block=block)

    def _more(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._index)


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)
