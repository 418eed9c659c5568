"""The fields of a request that choose tokens, in the words of any protocol, checked with the names that the client wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorsharp.errors import RequestError
from tensorsharp.parameters import sampling_params
from tensorsharp_app_server.fields import Fields, are_ids, as_whole, invalid

WHOLE = frozenset({"max_tokens", "top_k", "seed", "repeat_last_n"})

_ID_DIGITS = 18
"""Token ids have fewer digits by far."""
SHARED = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Field of SamplingParams -> the name that most protocols give it."""


def read_sampling(body: Fields, names: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of SamplingParams from the fields that `names` maps them to; absent ones are left to the engine's defaults.

    Also `stop`, `logit_bias`, `stop_token_ids` and `ignore_eos`, which are called so everywhere. RequestError names the field.
    """
    params: dict[str, Any] = {}
    for ours, theirs in names.items():
        value = body.number(theirs)
        if value is not None and ours in WHOLE:
            value = as_whole(value)
            if value is None:
                raise body.refuse(theirs, "a whole number")
        if value is not None:
            params[ours] = value
    if (stop := body.strings("stop")) is not None:
        params["stop"] = stop
    if "stop_token_ids" in body:
        params["stop_token_ids"] = _ids(body, "stop_token_ids")
    if "ignore_eos" in body:
        params["ignore_eos"] = body.flag("ignore_eos")
    if (bias := body.object("logit_bias")) is not None:
        params["logit_bias"] = _bias(bias)
    check_sampling(body, params, names)
    return params


def read_serving(body: Fields) -> dict[str, Any]:
    """How a request is served: `priority`, `cache_salt` (only requests with the same one share prefixes; vLLM's name) and
    `history_ids`."""
    found: dict[str, Any] = {}
    if "priority" in body:
        found["priority"] = body.whole("priority", -(2**31), 2**31)
    if "cache_salt" in body:
        found["cache_scope"] = body.text("cache_salt")
    if "history_ids" in body:
        found["history_ids"] = body.flag("history_ids")
    return {name: value for name, value in found.items() if value is not None}


def read_logprobs(body: Fields, params: dict[str, Any]) -> None:
    """Adds what `logprobs` and `top_logprobs` of a conversation ask for."""
    top = body.whole("top_logprobs", 0)
    if body.flag("logprobs"):
        params["logprobs"] = top or 0
        check_sampling(body, params, {"logprobs": "top_logprobs"})
    elif top:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true.")


def check_sampling(body: Fields, params: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """RequestError, in the client's words, for a value that cannot be used."""
    try:
        sampling_params(params)
    except RequestError as error:
        raise renamed(error, {ours: body.name(names.get(ours, ours)) for ours in params}) from error


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same error with the field's name as the client knows it, where they differ."""
    ours = error.param or ""
    theirs = names.get(ours, ours)
    message = str(error)
    if message.startswith((f"{ours} ", f"{ours}[")):
        message = theirs + message[len(ours) :]
    return type(error)(message, param=theirs or None, code=error.code, hint=error.hint)


def _ids(body: Fields, field: str) -> tuple[int, ...]:
    value = body.data[field]
    if value == []:
        return ()
    if not are_ids(value):
        raise body.refuse(field, "a list of token ids")
    return tuple(value)


def _bias(bias: Fields) -> dict[int, float]:
    """JSON's keys are strings."""
    found: dict[int, float] = {}
    for key in bias.data:
        value = bias.number(key)
        if len(key) > _ID_DIGITS or not key.isdecimal() or not key.isascii():
            raise invalid("logit_bias", f"logit_bias has the key '{key[:40]}'; expected token ids.")
        if value is not None:
            found[int(key)] = value
    return found
