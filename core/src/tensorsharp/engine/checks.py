"""What the engine refuses at its edge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np

from tensorsharp.errors import RequestError
from tensorsharp.types import GenerationRequest

BIAS_BOUND = 1e9
"""Largest magnitude of a logit bias: far beyond any logit, and far from overflow at any temperature."""


def check_ids(ids: Iterable[object], vocab: int, param: str) -> None:
    """RequestError for the first id that is not a token of the vocabulary."""
    for number, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < vocab:
            raise RequestError(
                f"{param}[{number}] is {token!r}; expected a token id between 0 and {vocab - 1}.",
                param=param,
                code="invalid_token",
            )


def check_prompt(count: int, limit: int, *, reply: int) -> None:
    """RequestError for an empty prompt, or one that leaves no room for `reply` tokens in `limit` positions."""
    if count == 0:
        raise RequestError("The prompt has no tokens; expected at least one.", param="prompt_ids", code="empty_prompt")
    check_length(count, limit, reply=reply)


def check_length(count: int, limit: int, *, reply: int, exact: bool = True) -> None:
    """RequestError for a prompt that leaves no room for `reply` tokens in `limit` positions. exact: `count` are all it has."""
    if count + reply > limit:
        known = f"{count}" if exact else f"at least {count}"
        raise RequestError(
            f"The prompt has {known} tokens; at most {limit - reply} fit in the context of {limit}"
            + (", which holds the reply too." if reply else "."),
            param="prompt_ids",
            code="context_length_exceeded",
            hint="Shorten the prompt, or load the model with a larger context (--ctx-size).",
        )


def check_request(request: GenerationRequest, vocab: int, limit: int) -> None:
    """RequestError naming the field that is wrong."""
    check_prompt(len(request.prompt_ids), limit, reply=1)
    check_ids(request.prompt_ids, vocab, "prompt_ids")
    check_ids(request.params.stop_token_ids, vocab, "stop_token_ids")
    check_ids(request.params.logit_bias, vocab, "logit_bias")
    for token, bias in request.params.logit_bias.items():
        if not abs(bias) <= BIAS_BOUND:  # a NaN is within no bound
            raise RequestError(
                f"logit_bias[{token}] is {bias!r}; expected a number between {-BIAS_BOUND:g} and {BIAS_BOUND:g}.",
                param="logit_bias",
                code="invalid_value",
            )
    _check_options(request)
    if any(not 0 <= b <= len(request.prompt_ids) for b in request.boundaries):
        raise RequestError(
            f"boundaries are {list(request.boundaries)}; expected offsets between 0 and {len(request.prompt_ids)}.",
            param="boundaries",
            code="invalid_value",
        )


def _check_options(request: GenerationRequest) -> None:
    """They come from callers that no type checker saw."""
    seconds: object = request.timeout_s
    priority: object = request.priority
    scope: object = request.cache_scope
    constraint: object = request.constraint
    checks = (
        ("timeout_s", seconds is None or (_is_number(seconds, (int, float)) and seconds > 0), "seconds above 0, or None"),
        ("priority", _is_number(priority, (int,)), "a whole number"),
        ("cache_scope", scope is None or isinstance(scope, str), "a string or None"),
        ("constraint", constraint is None or hasattr(constraint, "start"), "a compiled constraint or None"),
    )
    for name, ok, expected in checks:
        if not ok:
            raise RequestError(f"{name} is {getattr(request, name)!r}; expected {expected}.", param=name, code="invalid_value")


def _is_number(value: Any, kinds: tuple[type, ...]) -> TypeGuard[float]:
    return isinstance(value, kinds) and not isinstance(value, bool)
