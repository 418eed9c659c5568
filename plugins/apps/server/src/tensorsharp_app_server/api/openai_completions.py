"""POST /v1/completions: continuations of texts or of token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.routing import Route

from tensorsharp.chat import ChatReply, ContentDelta
from tensorsharp.types import TokenEvent
from tensorsharp_app_server.answers import Body, Stream, json_body
from tensorsharp_app_server.api import openai
from tensorsharp_app_server.api.openai_logprobs import TextLogprobs
from tensorsharp_app_server.endpoint import Call, route
from tensorsharp_app_server.fields import Fields, are_ids, invalid
from tensorsharp_app_server.forms import read_form
from tensorsharp_app_server.internal import Answers, Ask, Chunk, answering
from tensorsharp_app_server.sampling import read_sampling
from tensorsharp_app_server.service import Service
from tensorsharp_app_server.wire import event

DEFAULT_TOKENS = 16
"""OpenAI's default of max_tokens here: a text has no natural end."""
MOST_PROMPTS = 256


def routes(service: Service) -> list[Route]:
    return [route(service, path, complete, openai.WIRE) for path in ("/v1/completions", "/completions")]


def read_ask(body: Fields) -> Ask:
    """The request in the engine's words. RequestError names the field that is wrong."""
    names = openai.names(body) | {"logprobs": "logprobs"}
    params = {"max_tokens": DEFAULT_TOKENS} | read_sampling(body, names)
    prompts = _prompts(body)
    suffix = body.text("suffix")
    if suffix is not None and (len(prompts) > 1 or not isinstance(prompts[0], str)):
        raise invalid("suffix", "suffix needs one prompt that is a text.")
    named = names | {"prompt_ids": "prompt"}
    if (form := read_form(body)) is not None:
        named["constraint"], params["constraint"] = form
    return Ask(body.text("model"), params, prompts=prompts, suffix=suffix, count=openai.choices(body), names=named)


def _prompts(body: Fields) -> list[str | list[int]]:
    """A text, token ids, or a list of either."""
    given = body.data.get("prompt")
    if isinstance(given, str):
        return [given]
    if are_ids(given):
        return [given]  # type: ignore[list-item]
    several = isinstance(given, list) and 0 < len(given) <= MOST_PROMPTS
    if not several or not all(isinstance(one, str) or are_ids(one) for one in given or ()):
        raise body.refuse("prompt", f"a text, a list of token ids, or a list of up to {MOST_PROMPTS} of either")
    return list(given or ())


async def complete(call: Call) -> Body | Stream:
    ask = read_ask(call.body)
    with_usage = openai.includes_usage(call.body)
    echo = call.body.flag("echo")
    if echo and "logprobs" in ask.params:
        raise invalid("logprobs", "logprobs cannot be had of an echoed prompt.")
    if call.body.flag("stream"):
        return Stream(_frames(call, ask, echo=echo, with_usage=with_usage))
    async with answering(call, ask) as answers:
        found = await answers.finished()
        begun = _echoes(answers, ask) if echo else [""] * len(found)
    done = [one for one, _ in found]
    return json_body(
        {
            **_head(call, answers),
            "choices": [_choice(answers, i, begun[i], one, tokens) for i, (one, tokens) in enumerate(found)],
            "usage": openai.usage(done, ask.count),
            **openai.facts(answers.served, list(enumerate(done))),
        }
    )


def _head(call: Call, answers: Answers) -> dict[str, Any]:
    return {
        "id": f"cmpl-{call.id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": answers.served.name,
        "system_fingerprint": openai.fingerprint(answers.served),
    }


def _echoes(answers: Answers, ask: Ask) -> list[str]:
    """The prompt of every choice, as text."""
    texts = [
        prompt if isinstance(prompt, str) else answers.served.llm.detokenize(ids, special=True)
        for prompt, ids in zip(ask.prompts, answers.prompt_ids, strict=True)
    ]
    return [text for text in texts for _ in range(ask.count)]


def _choice(answers: Answers, index: int, begun: str, done: ChatReply, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
    logprobs = TextLogprobs(answers.served).entries(tokens) if answers.logprobs else None
    return {"index": index, "text": begun + done.content, "logprobs": logprobs, "finish_reason": done.finish_reason}


async def _frames(call: Call, ask: Ask, *, echo: bool, with_usage: bool) -> AsyncGenerator[bytes, None]:
    async with answering(call, ask) as answers:
        head = _head(call, answers) | ({"usage": None} if with_usage else {})
        yield b"".join(event(_piece(head, i, text)) for i, text in enumerate(_echoes(answers, ask))) if echo else b""
        logprobs = [TextLogprobs(answers.served) for _ in answers.running]
        done: dict[int, ChatReply] = {}
        async for chunk in answers.chunks():
            entries = logprobs[chunk.index].entries(chunk.tokens) if chunk.tokens else None
            yield event(_streamed(answers, head, chunk, entries))
            if chunk.done is not None:
                done[chunk.index] = chunk.done
        if with_usage:
            usage = openai.usage([done[index] for index in sorted(done)], ask.count)
            yield event({**head, "choices": [], "usage": usage})
        yield openai.DONE


def _streamed(answers: Answers, head: dict[str, Any], chunk: Chunk, logprobs: Any) -> dict[str, Any]:
    text = chunk.delta.text if isinstance(chunk.delta, ContentDelta) else ""
    piece = _piece(head, chunk.index, text, logprobs, chunk.done and chunk.done.finish_reason)
    return piece | openai.facts(answers.served, [(chunk.index, chunk.done)]) if chunk.done else piece


def _piece(head: dict[str, Any], index: int, text: str, logprobs: Any = None, finish: Any = None) -> dict[str, Any]:
    return {**head, "choices": [{"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}]}
