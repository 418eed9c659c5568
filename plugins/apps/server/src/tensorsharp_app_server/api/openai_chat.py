"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from starlette.routing import Route

from tensorsharp.chat import ChatOptions, ChatReply, ContentDelta, Delta, NamedTool, ReasoningDelta
from tensorsharp.types import TokenEvent
from tensorsharp_app_server.answers import Body, Stream, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.api.openai_logprobs import chat_entries
from tensorsharp_app_server.api.shared_fields import CONVERSATION, LOGPROBS
from tensorsharp_app_server.describe import FLAG, Field, Operation, whole
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.fields import Fields
from tensorsharp_app_server.forms import read_form
from tensorsharp_app_server.host import Served
from tensorsharp_app_server.internal import Answers, Ask, Chunk, answering
from tensorsharp_app_server.reasoning import option_names, read_budget, read_reasoning
from tensorsharp_app_server.sampling import read_logprobs, read_sampling, read_serving
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.wire import event

OPERATION: Final = Operation(
    "Reply in a conversation.",
    (
        *openai.COMPLETION,
        *CONVERSATION,
        *LOGPROBS,
        Field("history_ids", FLAG, True),
        Field("max_tokens", whole(1), 5),
        Field("max_completion_tokens", whole(1), 5),
    ),
    streams=True,
)


def routes(service: Service) -> list[Route]:
    return [
        route(service, "/v1/chat/completions", complete, openai.WIRE, operation=OPERATION),
        route(service, "/chat/completions", complete, openai.WIRE),
    ]


def read_ask(body: Fields) -> Ask:
    """The request in the engine's words. RequestError names the field that is wrong."""
    names = openai.names(body)
    params = read_sampling(body, names) | read_serving(body)
    read_logprobs(body, params)
    names |= {"prompt_ids": "messages"} | option_names(body)
    options = read_options(body)
    if (form := read_form(body)) is not None:
        names["constraint"] = form[0]
        options = replace(options, constraint=form[1])
    messages, count = read_messages(body), openai.choices(body)
    return Ask(body.text("model"), params, messages=messages, options=options, count=count, names=names)


def read_messages(body: Fields) -> list[Any]:
    """The messages as they are: the core reads them."""
    messages = body.items("messages")
    if not messages:
        raise body.refuse("messages", "a list with at least one message", code="empty_messages")
    return messages


def read_options(body: Fields) -> ChatOptions:
    """Tools and reasoning; the core checks them further."""
    variables = body.object("chat_template_kwargs")
    return ChatOptions(
        tools=body.items("tools") or (),
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.flag("parallel_tool_calls", True),
        reasoning=read_reasoning(body),
        reasoning_budget=read_budget(body),
        template_kwargs=variables.data if variables else {},
    )


def _tool_choice(body: Fields) -> Literal["auto", "none", "required"] | NamedTool:
    if isinstance(body.data.get("tool_choice"), dict):
        choice = body.object("tool_choice") or Fields({})
        # the second is how the Responses API says it, and how a provider of the AI SDK for Ollama does
        function = choice.object("function") or (choice if "name" in choice else None)
        if function is None:
            raise body.refuse("tool_choice", "auto, none, required, or an object with the name of a function")
        return NamedTool(function.needed_text("name"))
    return body.choice("tool_choice", "auto", "none", "required") or "auto"  # type: ignore[return-value]


async def complete(call: Call) -> Body | Stream:
    ask = read_ask(call.body)
    with_usage = openai.includes_usage(call.body)
    if call.body.flag("stream"):
        return Stream(_frames(call, ask, with_usage=with_usage))
    async with answering(call, ask) as answers:
        found = await answers.finished()
    done = [one for one, _ in found]
    return json_body(
        {
            **_head(call, answers.served, "chat.completion"),
            "choices": [_choice(answers, index, one, tokens) for index, (one, tokens) in enumerate(found)],
            "usage": openai.usage(done, ask.count),
            **openai.facts(answers.served, list(enumerate(done))),
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


def _choice(answers: Answers, index: int, done: ChatReply, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": done.content, "refusal": None}
    if done.reasoning:
        message["reasoning_content"] = done.reasoning
    if done.tool_calls:
        message["content"] = done.content or None
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in done.tool_calls
        ]
    logprobs = _content_logprobs(answers, tokens)
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": done.finish_reason}


def _content_logprobs(answers: Answers, tokens: Sequence[TokenEvent]) -> dict[str, Any] | None:
    return {"content": chat_entries(answers.served, tokens), "refusal": None} if answers.logprobs else None


async def _frames(call: Call, ask: Ask, *, with_usage: bool) -> AsyncGenerator[bytes, None]:
    async with answering(call, ask) as answers:
        head = _head(call, answers.served, "chat.completion.chunk") | ({"usage": None} if with_usage else {})
        yield b"".join(event(_piece(head, i, {"role": "assistant", "content": ""})) for i in range(len(answers.running)))
        async for frame in openai.frames(answers, head, partial(_streamed, answers, head), ask.count, with_usage=with_usage):
            yield frame


def _piece(head: dict[str, Any], index: int, delta: dict[str, Any], logprobs: Any = None, finish: Any = None) -> dict[str, Any]:
    return {**head, "choices": [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}


def _streamed(answers: Answers, head: dict[str, Any], chunk: Chunk) -> dict[str, Any]:
    logprobs = _content_logprobs(answers, chunk.tokens) if chunk.tokens else None
    return _piece(head, chunk.index, _delta(chunk.delta), logprobs, chunk.done and chunk.done.finish_reason)


def _delta(delta: Delta | None) -> dict[str, Any]:
    if delta is None:
        return {}
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    function = {"arguments": delta.arguments} | ({} if delta.name is None else {"name": delta.name})
    opened = {} if delta.id is None else {"id": delta.id, "type": "function"}
    return {"tool_calls": [{"index": delta.index, **opened, "function": function}]}
