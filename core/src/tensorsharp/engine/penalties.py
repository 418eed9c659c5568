"""Penalties and logit bias: the few logits of a row that differ from what the model gave."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensorsharp.engine.exactmath import F64
from tensorsharp.protocols.batch import F32, I32
from tensorsharp.types import SamplingParams

Ids = npt.NDArray[np.int64]


class Adjustment:
    """The penalties and the bias of one request.

    For a token seen c > 0 times among the last `repeat_last_n` tokens, in float64 and in this order: the logit is
    divided by the repeat penalty if positive, else multiplied by it; c * frequency is subtracted; presence is
    subtracted. Then the bias is added.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._repeat = params.repeat_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._last = params.repeat_last_n
        self._bias_ids: Ids = np.array(sorted(params.logit_bias), np.int64)
        self._bias: F64 = np.array([params.logit_bias[i] for i in self._bias_ids.tolist()], np.float64)
        self._penalises = self._last != 0 and (self._repeat, self._frequency, self._presence) != (1.0, 0.0, 0.0)
        self.active = self._penalises or len(self._bias_ids) > 0

    def apply(self, row: F32, history: I32) -> tuple[Ids, F64]:
        """The ids that are touched, ascending, and their new values. row [vocab]; history: all tokens before."""
        seen, counts = self._seen(history)
        ids = np.union1d(seen, self._bias_ids)
        values = row[ids].astype(np.float64)
        at = np.searchsorted(ids, seen)
        old = values[at]
        values[at] = np.where(old > 0.0, old / self._repeat, old * self._repeat) - counts * self._frequency - self._presence
        values[np.searchsorted(ids, self._bias_ids)] += self._bias
        return ids, values

    def _seen(self, history: I32) -> tuple[Ids, F64]:
        if not self._penalises:
            return np.zeros(0, np.int64), np.zeros(0)
        recent = history if self._last < 0 else history[-self._last :]
        ids, counts = np.unique(recent, return_counts=True)
        return ids.astype(np.int64), counts.astype(np.float64)
