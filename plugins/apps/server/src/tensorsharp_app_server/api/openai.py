"""What OpenAI's endpoints have in common. The wire format is that of the OpenAI API reference."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from tensorsharp.generation import Reply
from tensorsharp.types import TokenEvent
from tensorsharp_app_server.dialect import Dialect, event
from tensorsharp_app_server.errors import Failure
from tensorsharp_app_server.fields import Fields, invalid
from tensorsharp_app_server.host import Served
from tensorsharp_app_server.sampling import SHARED

DONE = b"data: [DONE]\n\n"
MOST_CHOICES = 128
NAMES = SHARED | {"max_tokens": "max_tokens"}


def error_body(failure: Failure) -> dict[str, Any]:
    kind = failure.code if failure.status == 404 else failure.kind
    return {"error": {"message": failure.text, "type": kind, "param": failure.param, "code": failure.code}}


DIALECT = Dialect("openai", error_body, lambda failure: event(error_body(failure)) + DONE)


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


def usage(replies: Sequence[Reply], prompts: int = 1) -> dict[str, Any]:
    """Of all choices together; a prompt that several choices answer counts once. prompts: how many there are."""
    per = max(1, len(replies) // max(1, prompts))
    prompt = sum(reply.usage.prompt for reply in replies[::per])
    completion = sum(reply.usage.completion for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(reply.usage.cached for reply in replies[::per])},
    }


def token_entry(served: Served, token: int, logprob: float | None) -> dict[str, Any]:
    """One token with its log-probability; the bytes of all tokens joined are the reply's text in UTF-8."""
    tokenizer = served.llm.tokenizer
    raw = tokenizer.bytes_of(token)
    text = raw.decode("utf-8", "replace") if raw else tokenizer.piece(token)
    return {"token": text, "logprob": logprob, "bytes": list(raw)}


def token_entries(served: Served, tokens: Iterable[TokenEvent]) -> list[dict[str, Any]]:
    """Entries as in `logprobs.content` of a chat completion."""
    return [
        token_entry(served, t.token, t.logprob) | {"top_logprobs": [token_entry(served, o.token, o.logprob) for o in t.top]}
        for t in tokens
    ]


def fingerprint(served: Served) -> str:
    """Changes with whatever may change a bit of the arithmetic."""
    return "fp_" + hashlib.sha256(served.arithmetic_id.encode()).hexdigest()[:12]
