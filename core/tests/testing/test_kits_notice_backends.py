"""Planted faults in backends: each kit test must fail on the mistake that it is there for, and pass without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from tensorsharp.errors import BackendError, UnsupportedError
from tensorsharp.inputs import ModelBatch, Request, Tensor
from tensorsharp.ops import Source
from tensorsharp.plugin import PluginSpec
from tensorsharp.protocols.backend import BackendOptions, Runner, StateSizes, StateStore, StepResult, Weights
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Layout, Tail
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.reference.backend import ReferenceBackend
from tensorsharp.reference.operations import ReferenceOps, Value, f32
from tensorsharp.reference.runner import ReferenceRunner
from tensorsharp.reference.weights import ReferenceWeights
from tensorsharp.state import HostStateStore
from tensorsharp.testing.backend import ATTENTION, STATELESS, BackendConformance
from tensorsharp.testing.minimodel import MiniModel
from tensorsharp.testing.running import Subject

FAILURES = (AssertionError, BackendError, pytest.fail.Exception)
"""What a failing kit test ends with: an assertion, a wrong address that the backend noticed, or a missing refusal."""


def mini(backend: ReferenceBackend) -> Subject:
    file = MiniModel.file()
    return Subject(file, MiniModel.from_file(file), backend)


class OtherOps(ReferenceOps):
    """The reference's operations, to be spoiled one by one."""


class FaultyBackend(ReferenceBackend):
    """The reference under another name, with other operations or another store."""

    name = "faulty"
    ops: ClassVar[type[ReferenceOps]] = OtherOps
    store: ClassVar[type[HostStateStore]] = HostStateStore

    @property
    def arithmetic_id(self) -> str:
        return f"faulty/{super().arithmetic_id}"

    def state(self, layout: Layout, sizes: StateSizes) -> StateStore:
        return self.store(layout, sizes, limit=self.memory()[1])

    def compile(self, model: IBatchedPagedModel, weights: Weights, state: StateStore) -> Runner:
        assert isinstance(weights, ReferenceWeights)
        assert isinstance(state, HostStateStore)
        return FaultyRunner(self.ops, model, weights, state)


class FaultyRunner(ReferenceRunner):
    def __init__(
        self, ops: type[ReferenceOps], model: IBatchedPagedModel, weights: ReferenceWeights, state: HostStateStore
    ) -> None:
        super().__init__(model, weights, state)
        self._ops = ops

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        ops = self._ops(self._weights, self._state, batch, taps)
        logits = f32(self._model.forward(ops, ModelBatch(ops.declare)))
        if any(name not in ops.taps for name in taps):
            raise UnsupportedError(f"no tap {taps[0]!r}")
        return StepResult(logits, ops.taps)


class TileFromTheChunk(OtherOps):
    """Another order of additions when more than one row is computed."""

    def attend(self, q: Tensor, sources: Sequence[Source], scale: float, **options: Any) -> Value:
        y = f32(super().attend(q, sources, scale, **options))
        return Value(np.nextafter(y, np.float32(np.inf)) if len(y) > 8 else y)


class PhysicalOrder(OtherOps):
    """Visits blocks as they lie in memory."""

    def attend(self, q: Tensor, sources: Sequence[Source], scale: float, **options: Any) -> Value:
        y = f32(super().attend(q, sources, scale, **options))
        first = self._batch.tables[None][:, 0]
        return Value(y + np.float32(1e-6) * first[self._batch.seq][:, None, None])


class NormsTheBatch(OtherOps):
    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Value:
        y = f32(super().rms_norm(x, weight, eps))
        return Value(y * (np.float32(1) + np.float32(1e-6) * np.float32(len(y) % 5)))


class StalePositions(OtherOps):
    """Inputs of the first batch of a signature are kept for the next."""

    kept: ClassVar[dict[tuple[Request, int, int], Value]] = {}

    def declare(self, request: Request) -> Value:
        if "Angles" not in type(request).__name__:
            return super().declare(request)
        return self.kept.setdefault((request, self._batch.rows, self._batch.sequences), super().declare(request))


class PaddingWrites(OtherOps):
    def __init__(self, weights: ReferenceWeights, store: HostStateStore, batch: Batch, taps: Sequence[str]) -> None:
        super().__init__(weights, store, batch, taps)
        padding = batch.seq < 0
        if padding.any():
            store.arrays["k"][batch.tables[None][0, 0], 0] = 0


class OnlyTheLastSlot(OtherOps):
    """The recurrent state is written after the last row only."""

    def scan(self, *args: Any, **options: Any) -> Value:
        batch = self._batch
        last = np.zeros(batch.rows, bool)
        last[batch.first_row + batch.length - 1] = True
        kept = batch.slot_out.copy()
        batch.slot_out[~last] = -1
        y = super().scan(*args, **options)
        batch.slot_out[:] = kept
        return y


class EveryRow(OtherOps):
    """Gives all rows, whatever is wanted."""

    def take(self, table: Tensor, index: Tensor) -> Value:
        whole = index.shape == (len(self._batch.wanted),) and table.shape[0] == self._batch.rows
        return Value(f32(table)) if whole else super().take(table, index)


class TableGelu(OtherOps):
    def act(self, x: Tensor, kind: Any) -> Value:
        y = f32(super().act(x, kind))
        return Value(y.astype(np.float16).astype(np.float32) if kind == "gelu_tanh" else y)


class FreshRowsUnrounded(OtherOps):
    """Rows of the same step are attended to as they were before they were stored: a step of one row sees more digits."""

    def store(self, name: str, x: Tensor, *, at: Tensor | None = None) -> None:
        super().store(name, x, at=at)
        self.fresh = getattr(self, "fresh", 0) + 1

    def attend(self, q: Tensor, sources: Sequence[Source], scale: float, **options: Any) -> Value:
        y = f32(super().attend(q, sources, scale, **options))
        narrow = next(iter(self._store.arrays.values())).dtype != np.float32
        return Value(y + np.float32(1e-4) * len(y) if narrow else y)


class UnknownTapsAreEmpty(FaultyBackend):
    def compile(self, model: IBatchedPagedModel, weights: Weights, state: StateStore) -> Runner:
        assert isinstance(weights, ReferenceWeights)
        assert isinstance(state, HostStateStore)
        runner = FaultyRunner(self.ops, model, weights, state)
        step = runner.step
        runner.step = lambda batch, taps=(): step(batch)  # type: ignore[method-assign]
        return runner


class DropsThePartialBlock(HostStateStore):
    """Copies whole quarters of a block that are full of numbers; the last, partial one is left."""

    def copy(self, group: int | None, source: int, target: int) -> None:
        super().copy(group, source, target)
        for array in self._group(group):
            array[target, -8:] = 0


class ReadsShort(HostStateStore):
    def read(self, group: int | None, block: int) -> bytes:
        data = super().read(group, block)
        return data[:-64] + bytes(64)


class ForgetsRings(HostStateStore):
    def restore(self, tail: int, slot: int, data: bytes) -> None:
        before = {name: self.arrays[name][tail].copy() for name, kind in self.layout.items() if isinstance(kind, Tail)}
        super().restore(tail, slot, data)
        for name, ring in before.items():
            self.arrays[name][tail] = ring


class NoLimit(FaultyBackend):
    def state(self, layout: Layout, sizes: StateSizes) -> StateStore:
        return HostStateStore({name: kind for name, kind in layout.items() if name == "tail"}, sizes)


class AnyDevice(FaultyBackend):
    def __init__(self, options: BackendOptions | None = None) -> None:
        super().__init__()


class AnyType(FaultyBackend):
    def load(self, file: ModelFile, names: Any) -> Weights:
        return ReferenceWeights(file, ())


def with_ops(spoiled: type[ReferenceOps]) -> type[FaultyBackend]:
    return type(spoiled.__name__, (FaultyBackend,), {"ops": spoiled})


def with_store(spoiled: type[HostStateStore]) -> type[FaultyBackend]:
    return type(spoiled.__name__, (FaultyBackend,), {"store": spoiled})


class BackendKit(BackendConformance):
    plugin = "faulty"
    backend_class: ClassVar[type[ReferenceBackend]] = FaultyBackend

    @classmethod
    def implementation(cls) -> Any:
        return cls.backend_class

    @classmethod
    def spec(cls) -> PluginSpec:
        return PluginSpec("a:b", (1, 0), "x", frozenset({"f16-state", "bf16-state", "f32-state", "quantised-weights"}))


Check = Callable[[BackendKit, Any], None]


def step(check: Callable[[BackendKit, Subject], None]) -> Check:
    """A test of the kit that takes a subject."""
    return lambda kit, backend: check(kit, mini(backend))


BACKEND_FAULTS: list[tuple[type[FaultyBackend], Check]] = [
    (with_ops(TileFromTheChunk), step(lambda kit, s: kit.test_chunks_change_nothing(s, "3"))),
    (
        with_ops(TileFromTheChunk),
        lambda kit, b: kit.test_state_does_not_depend_on_how_a_sequence_is_cut(b, ATTENTION["attend-9-sinks/0"]),
    ),
    (with_ops(PhysicalOrder), step(lambda kit, s: kit.test_physical_blocks_change_nothing(s, 1))),
    (with_ops(NormsTheBatch), lambda kit, b: kit.test_a_row_does_not_depend_on_the_rows_beside_it(b, STATELESS["rms_norm/0"])),
    (with_ops(NormsTheBatch), step(lambda kit, s: kit.test_other_sequences_change_nothing(s, 2))),
    (with_ops(StalePositions), step(lambda kit, s: kit.test_a_replayed_step_takes_everything_from_its_batch(s))),
    (with_ops(StalePositions), step(lambda kit, s: kit.test_two_runners_do_not_meet(s))),
    (with_ops(PaddingWrites), step(lambda kit, s: kit.test_padding_changes_nothing(s))),
    (with_ops(OnlyTheLastSlot), step(lambda kit, s: kit.test_verifying_drafts_is_taking_steps(s, 3))),
    (with_ops(EveryRow), step(lambda kit, s: kit.test_only_the_rows_asked_for_come_back(s))),
    (with_ops(TableGelu), lambda kit, b: kit.test_an_operation_agrees_with_the_reference(b, STATELESS["act-gelu_tanh/0"])),
    (with_ops(FreshRowsUnrounded), lambda kit, b: kit.test_narrow_rows_are_rounded_once(b, ATTENTION["attend-9-sinks/0"], "f16")),
    (UnknownTapsAreEmpty, step(lambda kit, s: kit.test_a_tap_that_nobody_publishes_is_refused(s))),
    (with_store(DropsThePartialBlock), lambda kit, b: kit.test_blocks_are_copied_and_written_exactly(b)),
    (with_store(DropsThePartialBlock), step(lambda kit, s: kit.test_a_copied_prefix_serves_another_sequence(s))),
    (with_store(ReadsShort), step(lambda kit, s: kit.test_state_that_was_written_out_comes_back(s))),
    (with_store(ForgetsRings), lambda kit, b: kit.test_snapshots_are_exact(b)),
    (with_store(ForgetsRings), step(lambda kit, s: kit.test_state_that_was_written_out_comes_back(s))),
    (NoLimit, lambda kit, b: kit.test_too_much_state_is_a_capacity_error(b)),
    (AnyDevice, lambda kit, b: kit.test_an_unknown_device_is_refused()),
    (AnyType, lambda kit, b: kit.test_an_unknown_tensor_type_is_refused_by_the_tensor_s_name(b)),
]


@pytest.mark.parametrize(("fault", "check"), BACKEND_FAULTS, ids=[f"{f.__name__}-{i}" for i, (f, _) in enumerate(BACKEND_FAULTS)])
def test_faulty_backends_fail(fault: type[FaultyBackend], check: Check) -> None:
    class Faulty(BackendKit):
        backend_class = fault

    StalePositions.kept.clear()
    check(BackendKit(), FaultyBackend())
    with pytest.raises(FAILURES):
        check(Faulty(), fault())


def test_a_format_that_is_used_without_being_declared_fails() -> None:
    class Modest(BackendKit):
        @classmethod
        def spec(cls) -> PluginSpec:
            return PluginSpec("a:b", (1, 0), "x", frozenset({"f32-state"}))

    BackendKit().test_a_format_that_is_not_declared_is_refused(FaultyBackend(), "f16")
    with pytest.raises(FAILURES):
        Modest().test_a_format_that_is_not_declared_is_refused(FaultyBackend(), "f16")
    with pytest.raises(FAILURES):
        Modest().test_products_and_rows_of_every_tensor_type(FaultyBackend(), "Q8_0")
