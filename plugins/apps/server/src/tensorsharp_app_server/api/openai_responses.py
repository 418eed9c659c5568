"""POST /v1/responses, without memory: a request brings the whole conversation."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from starlette.routing import Route

from tensorsharp.chat import ChatReply
from tensorsharp.types import EFFORTS, SamplingParams
from tensorsharp_app_server.answers import Body, Stream, json_body
from tensorsharp_app_server.api import openai, responses
from tensorsharp_app_server.api.openai_logprobs import chat_entries
from tensorsharp_app_server.api.response_items import Event, Items
from tensorsharp_app_server.api.shared_fields import FUNCTION, MODEL, NEEDED_NAME, SAMPLING, SCHEMA, SCHEMA_FIELD, SEED, STREAM
from tensorsharp_app_server.describe import FLAG, OBJECT, TEXT, TEXTS, Field, Operation, an_object, either, listed, one_of, whole
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.errors import RefusedError, failure
from tensorsharp_app_server.internal import Answers, Ask, Chunk, answering
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.wire import event

CALLABLE: Final[Any] = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
SPACE: Final = an_object(
    Field("type", one_of("namespace"), "namespace", needed=True),
    NEEDED_NAME,
    Field("tools", listed(an_object(Field("type", one_of("function"), "function"), *FUNCTION)), [CALLABLE], needed=True),
)
FORM: Final = an_object(
    Field("type", one_of("text", "json_object", "json_schema"), "text", needed=True), Field("schema", SCHEMA_FIELD, SCHEMA)
)
OPERATION: Final = Operation(
    "Reply in a conversation of items; nothing is kept.",
    (
        MODEL,
        Field("input", either(TEXT, listed(OBJECT, 1)), [{"role": "user", "content": "Hallo?"}], needed=True),
        Field("instructions", TEXT, "Be brief."),
        *SAMPLING,
        SEED,
        Field("max_output_tokens", whole(1), 5),
        Field("top_logprobs", whole(0, 20), 2),
        Field("include", TEXTS, ["message.output_text.logprobs"]),
        Field("tools", listed(either(an_object(Field("type", one_of("function"), "function"), *FUNCTION), SPACE)), [CALLABLE]),
        Field(
            "tool_choice",
            either(
                one_of("auto", "none", "required"),
                an_object(Field("type", one_of("function"), "function", needed=True), NEEDED_NAME),
            ),
            {"type": "function", "name": "weather"},
            beside={"tools": [CALLABLE]},
        ),
        Field("parallel_tool_calls", FLAG, False),
        Field("reasoning", an_object(Field("effort", one_of("none", *EFFORTS), "none")), {"effort": "low"}),
        Field(
            "text",
            an_object(Field("format", FORM, {"type": "json_schema", "schema": SCHEMA})),
            {"format": {"type": "json_schema", "schema": SCHEMA}},
        ),
        Field("background", one_of(False), False),
        Field("truncation", one_of("disabled"), "disabled"),
        STREAM,
    ),
    streams=True,
)


def routes(service: Service) -> list[Route]:
    found = []
    for prefix in ("/v1", ""):
        described = OPERATION if prefix else None
        found.append(route(service, f"{prefix}/responses", create, openai.WIRE, operation=described))
        path = f"{prefix}/responses/{{id}}"
        found.append(route(service, path, retrieve, openai.WIRE, methods=("GET", "DELETE"), reads=False))
    return found


async def retrieve(call: Call) -> Body:
    """No response is kept."""
    raise RefusedError(404, "Responses are not kept.", code="response_not_found", param="id", final=True)


async def create(call: Call) -> Body | Stream:
    ask = responses.read_ask(call.body)
    if call.body.flag("stream"):
        return Stream(_frames(call, ask))
    async with answering(call, ask) as answers:
        reply = _Reply(call, ask, answers)
        async for chunk in answers.chunks():
            for _ in reply.take(chunk):
                continue
    return json_body(reply.response)


async def _frames(call: Call, ask: Ask) -> AsyncGenerator[bytes, None]:
    async with answering(call, ask) as answers:
        reply, number = _Reply(call, ask, answers), 0

        def framed(found: Event) -> bytes:
            nonlocal number
            number += 1
            return event({**found, "sequence_number": number - 1}, found["type"])

        yield b"".join(framed({"type": f"response.{name}", "response": reply.response}) for name in ("created", "in_progress"))
        try:
            async for chunk in answers.chunks():
                yield b"".join(map(framed, reply.take(chunk)))
        except Exception as error:
            told = failure(error)
            call.told["error"] = told.code
            reply.response |= {"status": "failed", "error": {"code": "server_error", "message": told.text}}
            yield framed({"type": "response.failed", "response": reply.response})
            return
        yield framed({"type": f"response.{reply.response['status']}", "response": reply.response})


class _Reply:
    """One response while it is made. response: the object, as far as it is known."""

    def __init__(self, call: Call, ask: Ask, answers: Answers) -> None:
        self.response = _begun(call, ask, answers)
        self._answers = answers
        self._items = Items(call.id, responses.namespaces(call.body))

    def take(self, chunk: Chunk) -> Iterator[Event]:
        """The events of one chunk."""
        if chunk.delta is not None:
            entries = chat_entries(self._answers.served, chunk.tokens)
            yield from self._items.take(chunk.delta, entries)
        if chunk.done is not None:
            cut = chunk.done.finish_reason == "length"
            yield from self._items.finish("incomplete" if cut else "completed")
            self.response |= {
                "status": "incomplete" if cut else "completed",
                "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
                "completed_at": int(time.time()),
                "output": self._items.output,
                "usage": self._usage(chunk.done),
                **openai.facts(self._answers.served, [(0, chunk.done)]),
            }

    def _usage(self, done: ChatReply) -> dict[str, Any]:
        found = done.reply.usage
        return {
            "input_tokens": found.prompt,
            "input_tokens_details": {"cached_tokens": found.cached, "cache_write_tokens": 0},
            "output_tokens": found.completion,
            "output_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
            "total_tokens": found.prompt + found.completion,
        }


def _begun(call: Call, ask: Ask, answers: Answers) -> dict[str, Any]:
    """The response before it has any output, with what was asked."""
    body, plain = call.body.data, SamplingParams()
    return {
        "id": f"resp_{call.id}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": ask.params.get("max_tokens"),
        "metadata": body.get("metadata") or {},
        "model": answers.served.name,
        "output": [],
        "parallel_tool_calls": ask.options.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "store": False,
        "temperature": ask.params.get("temperature", plain.temperature),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": ask.params.get("logprobs") or 0,
        "top_p": ask.params.get("top_p", plain.top_p),
        "truncation": "disabled",
        "usage": None,
    }
