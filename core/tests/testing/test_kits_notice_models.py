"""Planted faults in models: each kit test must fail on the mistake that it is there for, and pass without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from tensorsharp.errors import BackendError
from tensorsharp.inputs import ModelBatch, Tensor
from tensorsharp.ops import Ops, Source
from tensorsharp.protocols.batch import I32
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Format, Layout, Tail
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.reference.backend import ReferenceBackend
from tensorsharp.testing.minimodel import KERNEL, WIDTH, MiniModel
from tensorsharp.testing.model import ModelConformance
from tensorsharp.testing.running import Subject
from tensorsharp.testing.stepchecks import StepChecks

FAILURES = (AssertionError, BackendError, pytest.fail.Exception)
"""What a failing kit test ends with: an assertion, a wrong address that the backend noticed, or a missing refusal."""


class CountsFromTheChunk(MiniModel):
    """Its positions begin at 0 in every batch."""

    def heads(self, ops: Ops, x: Tensor, name: str, count: int) -> Tensor:
        return ops.mul(super().heads(ops, x, name, count), self.scale)

    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        def fn(tokens: I32, previous: I32, pos: I32) -> Any:
            return 1.0 + 0.01 * (pos - pos.min())[:, None, None]

        self.scale = batch.host("position", fn, width=(1, 1), dtype="f32")
        return super().forward(ops, batch)


class BranchesOnRows(MiniModel):
    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        logits = super().forward(ops, batch)
        return ops.mul(logits, 1.0001) if batch.tokens.shape[0] == 1 else logits


class LooksAhead(MiniModel):
    def attend(self, ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        y = super().attend(ops, batch, x)
        q = self.heads(ops, x, "q", 4)
        ahead = ops.attend(q, [Source("k", batch.visible(until="block"), "v", 2)], 0.3)
        return ops.add(y, ops.linear(ops.reshape(ahead, (-1, WIDTH)), ops.weight("out")))


class LooksAround(MiniModel):
    """A row knows what else is in the batch."""

    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        def fn(tokens: I32, previous: I32, pos: I32) -> Any:
            return np.full((len(tokens), 1), tokens.sum() % 7, np.float32)

        around = ops.take(batch.host("around", fn, width=(1,), dtype="f32"), batch.wanted)
        return ops.add(super().forward(ops, batch), around)


class DeclaresAShortTail(MiniModel):
    def layout(self, kv_format: Format) -> Layout:
        return {**super().layout(kv_format), "conv": Tail(WIDTH, KERNEL - 2)}


def mini(model: type[MiniModel] = MiniModel) -> Subject:
    file = MiniModel.file()
    return Subject(file, model.from_file(file), ReferenceBackend())


MODEL_FAULTS: list[tuple[type[MiniModel], Callable[[StepChecks, Subject], None]]] = [
    (CountsFromTheChunk, lambda kit, s: kit.test_chunks_change_nothing(s, "3")),
    (CountsFromTheChunk, lambda kit, s: kit.test_a_copied_prefix_serves_another_sequence(s)),
    (BranchesOnRows, lambda kit, s: kit.test_chunks_change_nothing(s, "1")),
    (LooksAhead, lambda kit, s: kit.test_chunks_change_nothing(s, "block-1")),
    (LooksAround, lambda kit, s: kit.test_other_sequences_change_nothing(s, 1)),
    (LooksAround, lambda kit, s: kit.test_two_runners_do_not_meet(s)),
    (DeclaresAShortTail, lambda kit, s: kit.test_chunks_change_nothing(s, "1")),
    (DeclaresAShortTail, lambda kit, s: kit.test_verifying_drafts_is_taking_steps(s, 3)),
]


@pytest.mark.parametrize(("fault", "check"), MODEL_FAULTS, ids=[f"{f.__name__}-{i}" for i, (f, _) in enumerate(MODEL_FAULTS)])
def test_faulty_models_fail(fault: type[MiniModel], check: Callable[[StepChecks, Subject], None]) -> None:
    check(StepChecks(), mini())
    with pytest.raises(FAILURES):
        check(StepChecks(), mini(fault))


class Kit(ModelConformance):
    plugin = "mini"
    model: ClassVar[type[MiniModel]] = MiniModel

    @classmethod
    def from_file(cls, file: Any) -> IBatchedPagedModel:
        return cast("IBatchedPagedModel", cls.model.from_file(file))


class TakesAnything(MiniModel):
    @classmethod
    def from_file(cls, file: ModelFile) -> TakesAnything:
        return cls()


class ForgetsATensor(MiniModel):
    def weights(self) -> frozenset[str]:
        return super().weights() - {"sinks"}


class WantsTooMuch(MiniModel):
    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        return ops.take(ops.linear(ops.take(ops.weight("embedding"), batch.tokens), ops.weight("embedding")), batch.wanted)


CONFIGURATION_FAULTS: list[tuple[type[MiniModel], Callable[[Kit, Any], None]]] = [
    (TakesAnything, lambda kit, file: kit.test_another_architecture_is_refused(file)),
    (TakesAnything, lambda kit, file: kit.test_a_missing_tensor_is_named(file)),
    (ForgetsATensor, lambda kit, file: kit.test_the_tensors_declared_are_the_tensors_read(file)),
    (WantsTooMuch, lambda kit, file: kit.test_the_tensors_declared_are_the_tensors_read(file)),
]


@pytest.mark.parametrize(("fault", "check"), CONFIGURATION_FAULTS)
def test_models_with_a_wrong_configuration_fail(fault: type[MiniModel], check: Callable[[Kit, Any], None]) -> None:
    class Faulty(Kit):
        model = fault

    check(Kit(), MiniModel.file())
    with pytest.raises(FAILURES):
        check(Faulty(), MiniModel.file())
