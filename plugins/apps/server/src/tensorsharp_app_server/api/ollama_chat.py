"""POST /api/chat and /api/generate."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from starlette.routing import Route

from tensorsharp.chat import ChatOptions, ChatReply, ContentDelta, Delta, ReasoningDelta, ToolCall
from tensorsharp.errors import UnsupportedError
from tensorsharp.types import TokenEvent
from tensorsharp_app_server.answers import Body, Stream, json_body
from tensorsharp_app_server.api import ollama
from tensorsharp_app_server.api.openai_chat import read_options
from tensorsharp_app_server.api.openai_logprobs import chat_entries
from tensorsharp_app_server.api.shared_fields import MESSAGE, MESSAGES, REASONING, TOOLS
from tensorsharp_app_server.describe import FLAG, TEXT, Field, Operation, listed, whole
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.fields import Fields, invalid
from tensorsharp_app_server.internal import Answers, Ask, answering
from tensorsharp_app_server.reasoning import FIELDS, option_names, read_reasoning
from tensorsharp_app_server.runtime import runtime
from tensorsharp_app_server.sampling import read_logprobs
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.wire import line

CHAT: Final = Operation(
    "Reply in a conversation; without messages, load or close the model.",
    (*ollama.REQUEST, Field("messages", listed(MESSAGE), MESSAGES.example), *TOOLS, *REASONING),
    streams=True,
)
GENERATE: Final = Operation(
    "Reply to a prompt, or continue it; without one, load or close the model.",
    (
        *ollama.REQUEST,
        Field("prompt", TEXT, "Hallo?"),
        Field("system", TEXT, "Be brief."),
        Field("raw", FLAG, True),
        Field("suffix", TEXT, "end"),
        Field("template", TEXT, ""),
        Field("context", listed(whole(0)), []),
        Field("images", listed(TEXT), []),
        *(field for field in REASONING if field.name in FIELDS),
    ),
    streams=True,
)
BESIDE_RAW = ("system", "template", "context", "think")
"""Fields that mean nothing where the chat template is left out."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a reply has become by one chunk, or all of it."""

    content: str = ""
    thinking: str = ""
    calls: Sequence[ToolCall] = ()


Shape = Callable[[Part], dict[str, Any]]


def routes(service: Service) -> list[Route]:
    return [
        route(service, "/api/chat", chat, ollama.WIRE, operation=CHAT),
        route(service, "/api/generate", generate, ollama.WIRE, operation=GENERATE),
    ]


async def chat(call: Call) -> Body | Stream:
    ask = read_chat(call.body)
    return await (_answer(call, ask, _message) if ask.messages else _held(call, ask, _message))


async def generate(call: Call) -> Body | Stream:
    ask = read_generate(call.body)
    asks = call.body.text("prompt") or ask.suffix
    return await (_answer(call, ask, _response) if asks else _held(call, ask, _response))


# what is asked ------------------------------------------------------------------------------------------------------


def read_chat(body: Fields) -> Ask:
    """The request of /api/chat in the engine's words. RequestError names the field that is wrong."""
    for message in body.objects("messages"):
        _refuse_images(message)
    body = ollama.with_beyond(body)
    ask = _ask(body, read_options(body))
    return replace(ask, messages=body.items("messages"), names={**ask.names, "prompt_ids": "messages"})


def read_generate(body: Fields) -> Ask:
    """The request of /api/generate: the prompt is one message, unless it is to be continued as it is."""
    _refuse_images(body)
    if body.text("template"):
        raise UnsupportedError(
            "template cannot be given with a request: the model's own is used.",
            param="template",
            hint="Render it yourself and set raw.",
        )
    if body.items("context"):
        raise UnsupportedError(
            "context is not read: send the conversation to /api/chat, which computes nothing twice.", param="context"
        )
    prompt, suffix, system = body.text("prompt") or "", body.text("suffix"), body.text("system")
    thinking = read_reasoning(body)
    ask = _ask(body, ChatOptions(reasoning=thinking))
    ask = replace(ask, prompts=[prompt], names={**ask.names, "prompt_ids": "prompt"})
    if body.flag("raw") or suffix:
        _refuse_beside(body, "raw" if body.flag("raw") else "suffix")
        return replace(ask, suffix=suffix or None)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    # A model without a template continues the prompt, if that leaves nothing out.
    return replace(ask, messages=messages, prompts=() if system or thinking else ask.prompts)


def _ask(body: Fields, options: ChatOptions) -> Ask:
    params, names = ollama.read_options(body)
    read_logprobs(body, params)
    names |= {"constraint": "format"} | option_names(body)
    options = replace(options, constraint=ollama.read_format(body))
    return Ask(ollama.read_name(body), params, options=options, names=names, keep_alive_s=ollama.read_keep_alive(body))


def _refuse_images(body: Fields) -> None:
    if body.items("images"):
        name = body.name("images")
        raise UnsupportedError(f"{name} cannot be read: this model reads texts only.", param=name)


def _refuse_beside(body: Fields, field: str) -> None:
    for other in BESIDE_RAW:
        if body.data.get(other):
            raise invalid(other, f"{other} needs the chat template, which {field} leaves out.")


# what is answered ---------------------------------------------------------------------------------------------------


async def _held(call: Call, ask: Ask, shape: Shape) -> Body:
    """Without a question the model is loaded, or with `keep_alive` 0 closed."""
    call.body.flag("stream")  # there is nothing to stream
    if ask.keep_alive_s == 0:
        name, reason = (await call.service.host.unload(ask.model)).name, "unload"
    else:
        async with call.service.host.use(ask.model, ask.keep_alive_s) as served:
            name, reason = served.name, "load"
    return json_body({**_head(name), **shape(Part()), "done": True, "done_reason": reason})


async def _answer(call: Call, ask: Ask, shape: Shape) -> Body | Stream:
    began = time.perf_counter()
    if call.body.flag("stream", True):
        return Stream(_frames(call, ask, shape, began))
    async with answering(call, ask) as answers:
        ((done, tokens),) = await answers.finished()
    whole = Part(done.content, done.reasoning, done.tool_calls)
    return json_body(_piece(answers, shape, whole, tokens) | _ending(answers, done, began))


async def _frames(call: Call, ask: Ask, shape: Shape, began: float) -> AsyncGenerator[bytes, None]:
    async with answering(call, ask) as answers:
        collected = _Collected()
        async for chunk in answers.chunks():
            part = collected.take(chunk.delta, chunk.tokens)
            if part is not None:
                yield line(_piece(answers, shape, part, collected.told()))
            if chunk.done is not None:
                yield line(_piece(answers, shape, Part(), collected.told()) | _ending(answers, chunk.done, began))


@dataclass(slots=True)
class _Collected:
    """Calls are delivered whole; tokens wait for the line that tells of them."""

    call: ToolCall | None = None
    tokens: list[TokenEvent] = field(default_factory=list)

    def take(self, delta: Delta | None, tokens: Sequence[TokenEvent]) -> Part | None:
        """What a delta, or the end (None), makes certain."""
        self.tokens += tokens
        if isinstance(delta, ContentDelta | ReasoningDelta | None) or delta.id is not None:
            calls = [] if self.call is None else [self.call]
            self.call = None
            if isinstance(delta, ContentDelta):
                return Part(content=delta.text, calls=calls)
            if isinstance(delta, ReasoningDelta):
                return Part(thinking=delta.text, calls=calls)
            if delta is not None:
                self.call = ToolCall(delta.id or "", delta.name or "", delta.arguments)
            return Part(calls=calls) if calls else None
        if self.call is not None:
            self.call = replace(self.call, arguments=self.call.arguments + delta.arguments)
        return None

    def told(self) -> list[TokenEvent]:
        """The tokens that were not told before."""
        tokens, self.tokens = self.tokens, []
        return tokens


def _piece(answers: Answers, shape: Shape, part: Part, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
    logprobs = {"logprobs": chat_entries(answers.served, tokens)} if answers.logprobs and tokens else {}
    return {**_head(answers.served.name), **shape(part), **logprobs, "done": False}


def _ending(answers: Answers, done: ChatReply, began: float) -> dict[str, Any]:
    """What the last line, or the only one, has beside the text."""
    reply = done.reply
    return {
        "done": True,
        "done_reason": "length" if done.finish_reason == "length" else "stop",
        "total_duration": ollama.nanoseconds(time.perf_counter() - began),
        "load_duration": ollama.nanoseconds(answers.load_s),
        "prompt_eval_count": reply.usage.prompt,
        "prompt_eval_duration": ollama.nanoseconds(reply.timings.prefill_s),
        "eval_count": reply.usage.completion,
        "eval_duration": ollama.nanoseconds(reply.timings.decode_s),
        "prompt_cache_hit_tokens": reply.usage.cached,
        "tensorsharp": runtime(answers.served, [(0, reply)]),
    }


def _head(name: str) -> dict[str, Any]:
    return {"model": name, "created_at": ollama.timestamp()}


def _message(part: Part) -> dict[str, Any]:
    thinking = {"thinking": part.thinking} if part.thinking else {}
    calls = [{"id": c.id, "function": {"name": c.name, "arguments": json.loads(c.arguments)}} for c in part.calls]
    return {"message": {"role": "assistant", "content": part.content, **thinking, **({"tool_calls": calls} if calls else {})}}


def _response(part: Part) -> dict[str, Any]:
    return {"response": part.content, **({"thinking": part.thinking} if part.thinking else {})}
