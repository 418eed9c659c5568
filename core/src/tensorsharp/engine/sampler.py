"""How a row of logits becomes a token: a pure function of (row, tokens before it, parameters, seed, position).

Order: penalties and bias, mask, temperature, top-k, top-p, min-p, keyed draw. Everything is float64 from the float32
logits. Candidates are ordered by value descending, then id ascending, and sums run in that order. The draw is
Gumbel-max: the survivor with the largest value + gumbel(u(seed, position, id)) is an exact sample of the softmax.
Shortcuts are taken only where they give the same token for certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt

from tensorsharp.engine.draw import draw, draw_row
from tensorsharp.engine.exactmath import F64, exp, log, running_sum
from tensorsharp.engine.logprobs import log_probabilities
from tensorsharp.engine.nucleus import nucleus
from tensorsharp.engine.penalties import Adjustment
from tensorsharp.engine.ranking import at_least, at_least_kth, descending, likeliest
from tensorsharp.errors import BackendError
from tensorsharp.protocols.batch import F32, I32
from tensorsharp.types import SamplingParams, TokenLogprob

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_COLDEST = 1e-6
_NOBODY, _NOTHING = np.zeros(0, np.int64), np.zeros(0)


@dataclass(frozen=True, slots=True)
class Choice:
    """A token, with its log-probability and the alternatives if the request asked for them."""

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class Sampler:
    """The choices of one request. seed: 0 .. 2^63-1."""

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self.seed = seed
        self._params = params
        self._adjustment = Adjustment(params)
        self._min_p = log(params.min_p) if params.min_p > 0.0 else -np.inf

    def choose(self, row: F32, history: I32, position: int, mask: Mask | None = None) -> Choice:
        """The token at absolute `position`.

        row [vocab]: raw logits. history: the tokens before. mask [vocab]: False where a token is not allowed.
        BackendError if a logit is NaN or +inf, or nothing can be chosen.
        """
        best = likeliest(row, position)
        allowed = row if mask is None else np.where(mask, row, np.float32(-np.inf))
        if self._params.temperature == 0.0:
            plain = mask is None and not self._adjustment.active
            token = best if plain else self._greedy(allowed, history, position)
        else:
            token = self._draw(allowed, history, position, None if mask is None else few_of(mask))
        if self._params.logprobs is None:
            return Choice(token)
        return Choice(token, *log_probabilities(row, best, token, self._params.logprobs))

    def _greedy(self, row: F32, history: I32, position: int) -> int:
        rest, touched, adjusted = self._adjusted(row, history)
        best = int(rest.argmax())
        ids = np.append(touched, best)
        values = np.append(adjusted, np.float64(rest[best]))
        _require_choice(float(values.max()), position)
        return int(ids[values == values.max()].min())

    def _draw(self, row: F32, history: I32, position: int, few: Ids | None) -> int:
        params = self._params
        temperature = max(params.temperature, _COLDEST)
        rest, touched, adjusted = self._adjusted(row, history)
        best = max(float(rest.max()), float(adjusted.max(initial=-np.inf)))
        _require_choice(best, position)
        if params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0:
            return draw_row(rest, temperature, touched, adjusted / temperature, self.seed, position)
        kept = None
        if params.top_k == 0 and params.top_p < 1.0:
            kept = nucleus(rest, touched, adjusted / temperature, temperature, params.top_p)
        if kept is None:
            kept = self._leading(*self._candidates(rest, best, temperature, touched, adjusted, few))
        ids, values = kept
        if params.min_p > 0.0:
            likely = values >= values.max() + self._min_p
            ids, values = ids[likely], values[likely]
        return draw(ids, values, self.seed, position)

    def _candidates(
        self, rest: F32, best: float, temperature: float, touched: Ids, adjusted: F64, few: Ids | None
    ) -> tuple[Ids, F64]:
        """Every token that the filters may keep, ids ascending, and their values. best: the largest before temperature."""
        if few is not None:
            ids = few
        elif self._params.top_k:
            ids = at_least_kth(rest, self._params.top_k)
        elif self._params.top_p < 1.0:
            ids = np.arange(len(rest))
        else:
            ids = at_least(rest, best, temperature * self._min_p)
        values = rest[ids].astype(np.float64)
        if len(touched):
            ids = np.union1d(ids, touched)
            values = rest[ids].astype(np.float64)
            values[np.searchsorted(ids, touched)] = adjusted
        return ids, values / temperature

    def _leading(self, ids: Ids, values: F64) -> tuple[Ids, F64]:
        """What top-k and top-p keep."""
        params = self._params
        if (0 < params.top_k < len(ids)) or params.top_p < 1.0:
            order = descending(values)
            if params.top_k:
                order = order[: params.top_k]
            ids, values = ids[order], values[order]
        if params.top_p < 1.0:
            cumulative = running_sum(exp(values - values[0]))
            keep = int(np.count_nonzero(cumulative < params.top_p * cumulative[-1])) + 1
            ids, values = ids[:keep], values[:keep]
        return ids, values

    def _adjusted(self, row: F32, history: I32) -> tuple[F32, Ids, F64]:
        """The row with -inf for the tokens that penalties and bias touch; these, ascending; and their new values."""
        if not self._adjustment.active:
            return row, _NOBODY, _NOTHING
        touched, adjusted = self._adjustment.apply(row, history)
        rest = row.copy()
        rest[touched] = -np.inf
        return rest, touched, adjusted


def few_of(mask: Mask) -> Ids | None:
    """Which tokens a mask allows, if they are so few that looking at them alone is less work than at a row; else None."""
    return np.flatnonzero(mask) if np.count_nonzero(mask) * 16 < len(mask) else None


def _require_choice(best: float, position: int) -> None:
    if not isfinite(best):
        raise BackendError(
            f"No token can be chosen at position {position}: after penalties, bias and mask the best value is {best}."
        )
