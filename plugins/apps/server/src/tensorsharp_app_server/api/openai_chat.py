"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.routing import Route

from tensorsharp.generation import Reply
from tensorsharp_app_server.answers import Body, Stream, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.dialect import event
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.fields import Fields, invalid
from tensorsharp_app_server.host import Served
from tensorsharp_app_server.internal import Ask, Chunk, answering
from tensorsharp_app_server.messages import read_messages
from tensorsharp_app_server.runtime import runtime, tell, timings
from tensorsharp_app_server.sampling import check_sampling, read_sampling
from tensorsharp_app_server.service import Service


def routes(service: Service) -> list[Route]:
    return [route(service, path, complete, openai.DIALECT) for path in ("/v1/chat/completions", "/chat/completions")]


def read_ask(body: Fields) -> Ask:
    """The request in the engine's words. RequestError names the field that is wrong."""
    names = openai.names(body)
    params = read_sampling(body, names)
    if (logprobs := _logprobs(body)) is not None:
        params["logprobs"] = logprobs
        check_sampling(body, params, names | {"logprobs": "top_logprobs"})
    return Ask(body.text("model"), params, messages=read_messages(body), count=openai.choices(body))


def _logprobs(body: Fields) -> int | None:
    top = body.whole("top_logprobs", 0)
    if body.flag("logprobs"):
        return top or 0
    if top:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true.")
    return None


async def complete(call: Call) -> Body | Stream:
    ask = read_ask(call.body)
    with_usage = openai.includes_usage(call.body)
    if call.body.flag("stream"):
        return Stream(_frames(call, ask, with_usage=with_usage))
    async with answering(call, ask) as answers:
        found = await answers.replies()
    replies = [reply for _, reply in found]
    tell(call, replies)
    return json_body(
        {
            **_head(call, answers.served, "chat.completion"),
            "choices": [_choice(answers.served, ask, chunks, reply) for chunks, reply in found],
            "usage": openai.usage(replies),
            **_facts(answers.served, list(enumerate(replies))),
        }
    )


def _head(call: Call, served: Served, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{call.id}",
        "object": kind,
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": openai.fingerprint(served),
    }


def _facts(served: Served, replies: Sequence[tuple[int, Reply]]) -> dict[str, Any]:
    return {"timings": timings(replies[0][1]), "tensorsharp": runtime(served, replies)}


def _choice(served: Served, ask: Ask, chunks: Sequence[Chunk], reply: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text, "refusal": None}
    return {
        "index": chunks[-1].index,
        "message": message,
        "logprobs": _content_logprobs(served, ask, [token for chunk in chunks for token in chunk.tokens]),
        "finish_reason": reply.finish_reason,
    }


def _content_logprobs(served: Served, ask: Ask, tokens: Sequence[Any]) -> dict[str, Any] | None:
    return {"content": openai.token_entries(served, tokens), "refusal": None} if "logprobs" in ask.params else None


async def _frames(call: Call, ask: Ask, *, with_usage: bool) -> AsyncGenerator[bytes, None]:
    async with answering(call, ask) as answers:
        served = answers.served
        head = _head(call, served, "chat.completion.chunk") | ({"usage": None} if with_usage else {})

        def chunk_of(index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
            return {**head, "choices": [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}

        yield b"".join(event(chunk_of(i, {"role": "assistant", "content": ""})) for i in range(len(answers.running)))
        replies: dict[int, Reply] = {}
        async for chunk in answers.chunks():
            logprobs = _content_logprobs(served, ask, chunk.tokens) if chunk.tokens else None
            if chunk.reply is None:
                text = "".join(delta.text for delta in chunk.deltas)
                yield event(chunk_of(chunk.index, {"content": text}, logprobs))
            else:
                replies[chunk.index] = chunk.reply
                last = chunk_of(chunk.index, {}, logprobs, chunk.reply.finish_reason)
                yield event(last | _facts(served, [(chunk.index, chunk.reply)]))
        tell(call, replies.values())
        if with_usage:
            yield event({**head, "choices": [], "usage": openai.usage(list(replies.values()))})
        yield openai.DONE
