"""How a row of logits becomes a token: a pure function of (row, tokens before it, parameters, seed, position).

Order: penalties and bias, mask, temperature, top-k, top-p, min-p, keyed draw. Everything is float64 from the float32
logits. Candidates are ordered by value descending, then id ascending, and sums run in that order. The draw is
Gumbel-max: the survivor with the largest value + gumbel(u(seed, position, id)) is an exact sample of the softmax.
Shortcuts are taken only where they give the same token for certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensorsharp.engine.exactmath import F64, exp, log, running_sum, total
from tensorsharp.engine.keyed import ROUGHNESS, gumbel, rough_gumbel, uniforms
from tensorsharp.engine.penalties import Adjustment
from tensorsharp.engine.ranking import at_least_kth, descending, largest
from tensorsharp.errors import BackendError
from tensorsharp.protocols.batch import F32, I32
from tensorsharp.types import SamplingParams, TokenLogprob

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_COLDEST = 1e-6
_ROUNDING = 2.0**-48
"""Far above the relative rounding of one sum."""


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
        best = int(row.argmax())
        if not np.isfinite(row[best]):  # a NaN counts as the largest
            raise BackendError(f"The model gave no usable logits for position {position}: that of token {best} is {row[best]}.")
        allowed = row if mask is None else np.where(mask, row, np.float32(-np.inf))
        if self._params.temperature == 0.0:
            plain = mask is None and not self._adjustment.active
            token = best if plain else self._greedy(allowed, history, position)
        else:
            token = self._draw(allowed, history, position)
        if self._params.logprobs is None:
            return Choice(token)
        return Choice(token, *log_probabilities(row, token, self._params.logprobs))

    def _greedy(self, row: F32, history: I32, position: int) -> int:
        touched, adjusted = self._adjustment.apply(row, history)
        rest = row.copy()
        rest[touched] = -np.inf
        best = int(rest.argmax())
        ids = np.append(touched, best)
        values = np.append(adjusted, np.float64(rest[best]))
        _require_choice(values, position)
        return int(ids[values == values.max()].min())

    def _draw(self, row: F32, history: I32, position: int) -> int:
        ids, values = self._candidates(row, history, position)
        values = values / max(self._params.temperature, _COLDEST)
        ids, values = self._filter(ids, values)
        return draw(ids, values, self.seed, position)

    def _candidates(self, row: F32, history: I32, position: int) -> tuple[Ids, F64]:
        """Every token that top-k may keep, ids ascending, and their values before temperature."""
        k = self._params.top_k or len(row)
        if not self._adjustment.active:
            ids = at_least_kth(row, k)
            values = row[ids].astype(np.float64)
        else:
            touched, adjusted = self._adjustment.apply(row, history)
            rest = row.copy()
            rest[touched] = -np.inf
            ids = np.union1d(at_least_kth(rest, k), touched)
            values = row[ids].astype(np.float64)
            values[np.searchsorted(ids, touched)] = adjusted
        _require_choice(values, position)
        return ids, values

    def _filter(self, ids: Ids, values: F64) -> tuple[Ids, F64]:
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
        if params.min_p > 0.0:
            kept = values >= values.max() + self._min_p
            ids, values = ids[kept], values[kept]
        return ids, values


def draw(ids: Ids, values: F64, seed: int, position: int) -> int:
    """The keyed draw over candidates in any order; equal scores: the larger value, then the lower id.

    Rough scores leave out whatever cannot win; the exact ones decide.
    """
    u = uniforms(seed, position, ids)
    rough = values + rough_gumbel(u)
    best = float(rough.max())
    near = (rough >= best - 4 * (ROUGHNESS + _ROUNDING * abs(best))).nonzero()[0]
    exact = [(-(float(values[i]) + gumbel(float(u[i]))), -float(values[i]), int(ids[i])) for i in near.tolist()]
    return min(exact)[2]


def log_probabilities(row: F32, token: int, top: int) -> tuple[float, tuple[TokenLogprob, ...]]:
    """log softmax of the raw row at `token` and at the `top` likeliest; summed in id order, rounded to float32."""
    raised = row.astype(np.float64)
    raised -= raised.max()
    lowered = log(total(exp(raised)))

    def at(index: int) -> float:
        return float(np.float32(raised[index] - lowered))

    likeliest = largest(row, top).tolist() if top else []
    return at(token), tuple(TokenLogprob(i, at(i)) for i in likeliest)


def _require_choice(values: F64, position: int) -> None:
    best = values.max()
    if not np.isfinite(best):
        raise BackendError(
            f"No token can be chosen at position {position}: after penalties, bias and mask the best value is {best}."
        )
