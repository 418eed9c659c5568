"""What a request that does not generate takes from the rows of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from tensorsharp.engine.logprobs import log_probabilities
from tensorsharp.engine.ranking import likeliest
from tensorsharp.ops import OUTPUT
from tensorsharp.protocols.batch import F32
from tensorsharp.types import TokenEvent

Pooling = Literal["mean", "first", "last"]
"""Which rows of a text make its embedding."""


class Evaluation(Protocol):
    """Takes results as the rows of a prompt are computed. taps: what the step has to publish besides logits."""

    taps: tuple[str, ...]

    def wanted(self, rows: int, pending: int) -> int:
        """How many of the next `rows` rows, counted from the last, it needs; `pending` rows are not computed yet."""
        ...

    def take(self, first: int, logits: F32, output: F32) -> None:
        """The results of as many rows, from position `first` on. output [W, width]; [0, 0] if it was not asked for."""
        ...


class AllLogits:
    """The logits of every row. out: [n, vocab] float32."""

    taps: tuple[str, ...] = ()

    def __init__(self, out: F32) -> None:
        self._out = out

    def wanted(self, rows: int, pending: int) -> int:
        return rows

    def take(self, first: int, logits: F32, output: F32) -> None:
        self._out[first : first + len(logits)] = logits


class PromptLogprobs:
    """The log-probability of every token after the first, given those before it. top: how many alternatives of each.

    events: as those of generated tokens, in order.
    """

    taps: tuple[str, ...] = ()

    def __init__(self, ids: Sequence[int], top: int) -> None:
        self.events: list[TokenEvent] = []
        self._ids = ids
        self._top = top

    def wanted(self, rows: int, pending: int) -> int:
        return rows

    def take(self, first: int, logits: F32, output: F32) -> None:
        del self.events[first:]  # a preempted request begins again
        following = self._ids[first + 1 : first + 1 + len(logits)]
        for place, (token, row) in enumerate(zip(following, logits, strict=False), first + 1):
            self.events.append(TokenEvent(token, place, *log_probabilities(row, likeliest(row, place), token, self._top)))


class Embedding:
    """One row for a text of `length` tokens: the model's last hidden rows, normalised as for the logits, and pooled.

    The mean is summed in float64 in order of positions, so it does not depend on how the prompt is cut.
    """

    taps: tuple[str, ...] = (OUTPUT,)

    def __init__(self, pooling: Pooling, length: int) -> None:
        self._pooling = pooling
        self._length = length
        self._sum: npt.NDArray[np.float64] | None = None

    def wanted(self, rows: int, pending: int) -> int:
        return int(rows == pending) if self._pooling == "last" else rows

    def take(self, first: int, logits: F32, output: F32) -> None:
        if first == 0:  # a preempted request begins again
            self._sum = None
        chosen = output[: 1 if first == 0 else 0] if self._pooling == "first" else output
        for row in chosen:
            self._sum = row.astype(np.float64) if self._sum is None else self._sum + row

    def vector(self) -> F32:
        """[width] of length 1."""
        if self._sum is None:
            raise ValueError("the text has not been computed")
        pooled = self._sum / self._length if self._pooling == "mean" else self._sum
        length = float(np.sqrt(np.dot(pooled, pooled)))
        return (pooled / length if length > 0 else pooled).astype(np.float32)
