"""Sampling parameters from keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tensorsharp.errors import RequestError, did_you_mean
from tensorsharp.types import SamplingParams


def sampling_params(params: Mapping[str, Any]) -> SamplingParams:
    """Checked parameters from keyword arguments. `stop` may be one string. RequestError names what is wrong."""
    known = [f.name for f in fields(SamplingParams)]
    unknown = [name for name in params if name not in known]
    if unknown:
        message = f"{unknown[0]!r} is not a parameter; expected one of {', '.join(known)}."
        raise RequestError(message, param=unknown[0], code="unknown_parameter", hint=did_you_mean(unknown[0], known))
    given = dict(params)
    for name, one in (("stop", str), ("stop_token_ids", int)):
        if name in given:
            given[name] = (given[name],) if isinstance(given[name], one) else _as_tuple(given[name])
    return SamplingParams(**given)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, set, frozenset)) else value
