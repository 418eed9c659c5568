"""What OpenAI's endpoints have in common. The wire format is that of the OpenAI API reference."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final

from tensorsharp.chat import ChatReply, ContentDelta
from tensorsharp_app_server.api.shared_fields import FORMS, MODEL, SAMPLING, SEED, SERVING, STOPS, STREAM
from tensorsharp_app_server.describe import FLAG, Field, an_object, whole
from tensorsharp_app_server.errors import Failure
from tensorsharp_app_server.fields import Fields, invalid
from tensorsharp_app_server.host import Served
from tensorsharp_app_server.internal import Answers, Chunk
from tensorsharp_app_server.runtime import runtime, timings
from tensorsharp_app_server.sampling import SHARED
from tensorsharp_app_server.wire import Pattern, Wire, event

DONE = b"data: [DONE]\n\n"
MOST_CHOICES = 128
NAMES = SHARED | {"max_tokens": "max_tokens"}
COMPLETION: Final = (
    MODEL,
    *SAMPLING,
    SEED,
    *STOPS,
    *FORMS,
    *SERVING,
    STREAM,
    Field("n", whole(1, MOST_CHOICES), 2),
    Field("best_of", whole(1), 1),
    Field("stream_options", an_object(Field("include_usage", FLAG, True)), {"include_usage": True}, beside={"stream": True}),
)
"""Fields of both kinds of completion."""


def error_body(failure: Failure) -> dict[str, Any]:
    kind = failure.code if failure.status == 404 else failure.kind
    return {"error": {"message": failure.text, "type": kind, "param": failure.param, "code": failure.code}}


WIRE = Wire("openai", error_body, lambda failure: event(error_body(failure)) + DONE)


def choices(body: Fields) -> int:
    """How many answers to each prompt."""
    count = body.whole("n", 1, MOST_CHOICES) or 1
    best_of = body.whole("best_of", 1)
    if best_of is not None and best_of != count:
        raise body.refuse("best_of", f"the value of n, {count}: no reply is better than another one")
    return count


def names(body: Fields) -> dict[str, str]:
    """Field of SamplingParams -> the field of this request that gives it."""
    return NAMES | ({"max_tokens": "max_completion_tokens"} if "max_completion_tokens" in body else {})


def includes_usage(body: Fields) -> bool:
    """Whether a stream ends with a chunk of usage."""
    options = body.object("stream_options")
    if options is not None and not body.flag("stream"):
        raise invalid("stream_options", "stream_options is for a stream; expected stream to be true.")
    return options is not None and options.flag("include_usage")


def usage(done: Sequence[ChatReply], count: int = 1) -> dict[str, Any]:
    """Of all choices together. count: choices for each prompt, which counts once."""
    first = [one.reply.usage for one in done[::count]]
    prompt = sum(found.prompt for found in first)
    completion = sum(one.reply.usage.completion for one in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(found.cached for found in first)},
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning_tokens for one in done)},
    }


def facts(served: Served, done: Sequence[tuple[int, ChatReply]]) -> dict[str, Any]:
    """What is told beside choices: the speed of the first one, and what it takes to get the same replies again."""
    return {"timings": timings(done[0][1].reply), "tensorsharp": runtime(served, [(index, one.reply) for index, one in done])}


async def frames(
    answers: Answers, head: dict[str, Any], piece: Callable[[Chunk], dict[str, Any]], count: int, *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The events of a stream behind its first one. piece: a chunk's event. count: choices for each prompt."""
    done: dict[int, ChatReply] = {}
    contents = [_content(piece, index) for index in range(len(answers.running))]
    last = b""  # what ends the stream is sent at once
    async for chunk in answers.chunks():
        if chunk.done is not None:
            done[chunk.index] = chunk.done
            last = event(piece(chunk) | facts(answers.served, [(chunk.index, chunk.done)]))
            if len(done) < len(answers.running):
                yield last
        elif isinstance(chunk.delta, ContentDelta) and not chunk.tokens:
            yield contents[chunk.index].filled(chunk.delta.text)
        else:
            yield event(piece(chunk))
    if with_usage:
        last += event({**head, "choices": [], "usage": usage([done[index] for index in sorted(done)], count)})
    yield last + DONE


def _content(piece: Callable[[Chunk], dict[str, Any]], index: int) -> Pattern:
    """Nearly all events of a stream: more content of one choice."""
    return Pattern(lambda text: event(piece(Chunk(index, ContentDelta(text), ()))))


def fingerprint(served: Served) -> str:
    """Changes with whatever may change a bit of the arithmetic."""
    return "fp_" + hashlib.sha256(served.arithmetic_id.encode()).hexdigest()[:12]
