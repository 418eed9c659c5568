"""Runs a model by calling its `forward` on every step: nothing is compiled, so nothing can be stale."""

from __future__ import annotations

from collections.abc import Sequence

from tensorsharp.errors import UnsupportedError
from tensorsharp.inputs import ModelBatch
from tensorsharp.protocols.backend import StepResult
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.reference.operations import ReferenceOps, f32
from tensorsharp.reference.weights import ReferenceWeights
from tensorsharp.state import HostStateStore


class ReferenceRunner:
    """A model bound to weights and state. UnsupportedError for a tap that the model does not publish."""

    def __init__(self, model: IBatchedPagedModel, weights: ReferenceWeights, state: HostStateStore) -> None:
        self._model, self._weights, self._state = model, weights, state

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        ops = ReferenceOps(self._weights, self._state, batch, taps)
        logits = self._model.forward(ops, ModelBatch(ops.declare))
        missing = [name for name in taps if name not in ops.taps]
        if missing:
            raise UnsupportedError(f"the {self._model.architecture} model publishes no tap {missing[0]!r}.", param="taps")
        return StepResult(f32(logits), ops.taps)

    def close(self) -> None:
        """Nothing is held beyond what was handed in."""
