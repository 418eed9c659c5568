"""The steps of a measurement, and what is told of each.

The columns and their formats are those of ds4-bench, so that its tools read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ladder:
    """The context lengths: from `start`, times `factor` if above 1 else plus `increment`, to `last` (None: what the model
    allows, at most 32,768). written: tokens to write at each. text: what to read; None: a generated text."""

    start: int
    last: int | None
    increment: int
    factor: float
    written: int
    text: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured at one context length.

    prefill_tokens, prefill_tps: the tokens that were read since the step before, and their speed (tok/s). gen_tokens,
    gen_tps: tokens written from here on. kvcache_bytes: state that a sequence of ctx_tokens holds.
    """

    ctx_tokens: int
    prefill_tokens: int
    prefill_tps: float
    gen_tokens: int
    gen_tps: float
    kvcache_bytes: int

    def csv(self) -> str:
        return ",".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in astuple(self))

    def data(self) -> dict[str, Any]:
        return asdict(self)


def frontiers(start: int, last: int, increment: int, factor: float) -> Iterator[int]:
    """Context lengths from `start` to `last`, which is always the last one: times `factor` if that is above 1, else plus
    `increment`."""
    current = min(start, last)
    while current < last:
        yield current
        current = min(last, math.ceil(current * factor) if factor > 1 else current + increment)
    yield last
