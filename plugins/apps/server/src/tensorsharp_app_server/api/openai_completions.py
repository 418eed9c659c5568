"""POST /v1/completions: continuations of texts or of token ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, Final

from starlette.routing import Route

from tensorsharp.chat import ChatOptions, ChatReply, ContentDelta
from tensorsharp.types import TokenEvent
from tensorsharp_app_server.answers import Body, Stream, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.api.openai_echo import NOTHING, Echo, echoed
from tensorsharp_app_server.api.openai_logprobs import TextLogprobs
from tensorsharp_app_server.api.shared_fields import PROMPTS
from tensorsharp_app_server.describe import FLAG, TEXT, Field, Operation, whole
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.fields import Fields, invalid, texts_or_ids
from tensorsharp_app_server.forms import read_form
from tensorsharp_app_server.host import Served
from tensorsharp_app_server.internal import Answers, Ask, Chunk, answering, prompt_ids
from tensorsharp_app_server.sampling import read_sampling, read_serving
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.wire import event

DEFAULT_TOKENS = 16
"""OpenAI's default of max_tokens here: a text has no natural end."""
MOST_PROMPTS = 256


OPERATION: Final = Operation(
    "Continue texts or token ids.",
    (
        *openai.COMPLETION,
        Field("prompt", PROMPTS, "Once", needed=True),
        Field("suffix", TEXT, "end"),
        Field("echo", FLAG, True),
        Field("logprobs", whole(0, 20), 2),
        Field("max_tokens", whole(0), 5),
    ),
    streams=True,
)


def routes(service: Service) -> list[Route]:
    return [
        route(service, "/v1/completions", complete, openai.WIRE, operation=OPERATION),
        route(service, "/completions", complete, openai.WIRE),
    ]


def read_ask(body: Fields) -> Ask:
    """The request in the engine's words. RequestError names the field that is wrong."""
    names = openai.names(body) | {"logprobs": "logprobs"}
    params = {"max_tokens": DEFAULT_TOKENS} | read_sampling(body, names) | read_serving(body)
    prompts = texts_or_ids(body, "prompt", MOST_PROMPTS)
    suffix = body.text("suffix")
    if suffix is not None and (len(prompts) > 1 or not isinstance(prompts[0], str)):
        raise invalid("suffix", "suffix needs one prompt that is a text.")
    named = names | {"prompt_ids": "prompt"}
    options = ChatOptions()
    if (form := read_form(body)) is not None:
        named["constraint"], options = form[0], ChatOptions(constraint=form[1])
    count = openai.choices(body)
    return Ask(body.text("model"), params, options=options, prompts=prompts, suffix=suffix, count=count, names=named)


async def complete(call: Call) -> Body | Stream:
    body = call.body
    with_usage, echo = openai.includes_usage(body), body.flag("echo")
    if echo and body.whole("max_tokens", 0) == 0:
        return await _scored(call)
    ask = read_ask(body)
    if body.flag("stream"):
        return Stream(_frames(call, ask, echo=echo, with_usage=with_usage))
    async with answering(call, ask) as answers:
        echoes = await _echoes(answers, ask) if echo else [NOTHING] * len(ask.prompts)
        found = await answers.finished()
        # many tokens take long to put into words: not on the thread that serves the others
        choices = await asyncio.to_thread(
            lambda: [_choice(answers, echoes[i // ask.count], i, *one) for i, one in enumerate(found)]
        )
    done = [one for one, _ in found]
    return json_body(
        {
            **_head(call, answers.served),
            "choices": choices,
            "usage": openai.usage(done, ask.count),
            **openai.facts(answers.served, list(enumerate(done))),
        }
    )


async def _scored(call: Call) -> Body:
    """Nothing is written: the prompts come back, with their log-probabilities if asked for."""
    ask = read_ask(Fields({**call.body.data, "max_tokens": 1}))
    if call.body.flag("stream"):
        raise invalid("stream", "stream needs max_tokens of at least 1.")
    async with call.service.host.use(ask.model) as served:
        ids = await asyncio.to_thread(lambda: [prompt_ids(served.llm, prompt) for prompt in ask.prompts])
        echoes = await echoed(served, ask.prompts, ids, ask.params.get("logprobs"))
        columns = await asyncio.to_thread(lambda: [echo.columns(served) for echo in echoes for _ in range(ask.count)])
    read = sum(map(len, ids))
    choices = [
        {"index": i, "text": echoes[i // ask.count].text, "logprobs": one, "finish_reason": "length"}
        for i, one in enumerate(columns)
    ]
    usage = {"prompt_tokens": read, "completion_tokens": 0, "total_tokens": read}
    return json_body({**_head(call, served), "choices": choices, "usage": usage})


def _head(call: Call, served: Served) -> dict[str, Any]:
    return {
        "id": f"cmpl-{call.id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": openai.fingerprint(served),
    }


async def _echoes(answers: Answers, ask: Ask) -> list[Echo]:
    return await echoed(answers.served, ask.prompts, answers.prompt_ids, ask.params.get("logprobs"))


def _choice(answers: Answers, echo: Echo, index: int, done: ChatReply, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
    logprobs = TextLogprobs(answers.served).entries([*echo.tokens, *tokens]) if answers.logprobs else None
    return {"index": index, "text": echo.text + done.content, "logprobs": logprobs, "finish_reason": done.finish_reason}


async def _frames(call: Call, ask: Ask, *, echo: bool, with_usage: bool) -> AsyncGenerator[bytes, None]:
    async with answering(call, ask) as answers:
        head = _head(call, answers.served) | ({"usage": None} if with_usage else {})
        logprobs = [TextLogprobs(answers.served) for _ in answers.running]
        echoes = [e for e in (await _echoes(answers, ask) if echo else ()) for _ in range(ask.count)]

        def beginning(i: int, one: Echo) -> bytes:
            return event(_piece(head, i, one.text, logprobs[i].entries(one.tokens) if answers.logprobs else None))

        yield b"".join([await asyncio.to_thread(beginning, i, one) for i, one in enumerate(echoes)])
        piece = partial(_streamed, head, logprobs)
        async for frame in openai.frames(answers, head, piece, ask.count, with_usage=with_usage):
            yield frame


def _streamed(head: dict[str, Any], logprobs: Sequence[TextLogprobs], chunk: Chunk) -> dict[str, Any]:
    text = chunk.delta.text if isinstance(chunk.delta, ContentDelta) else ""
    entries = logprobs[chunk.index].entries(chunk.tokens) if chunk.tokens else None
    return _piece(head, chunk.index, text, entries, chunk.done and chunk.done.finish_reason)


def _piece(head: dict[str, Any], index: int, text: str, logprobs: Any = None, finish: Any = None) -> dict[str, Any]:
    return {**head, "choices": [{"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}]}
