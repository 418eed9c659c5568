"""The conformance kit for backend plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from tensorsharp.errors import CapacityError, ModelError, PluginError, UnsupportedError
from tensorsharp.inputs import ModelBatch, Tensor
from tensorsharp.ops import Ops
from tensorsharp.protocols.backend import Backend, BackendOptions, StateSizes
from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.layout import Format, Layout, Paged, Slot, Tail
from tensorsharp.testing.memoryfile import MemoryFile
from tensorsharp.testing.minimodel import MiniModel
from tensorsharp.testing.opcases import ids, stateless_cases
from tensorsharp.testing.opmodel import SCHEDULES, WHOLE, OpCase, rows_for, run_case
from tensorsharp.testing.plugincheck import PluginChecks
from tensorsharp.testing.running import Subject, open_backend
from tensorsharp.testing.statecases import stateful_cases
from tensorsharp.testing.stepchecks import StepChecks, assert_same
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME

FORMATS: tuple[Format, ...] = ("f16", "bf16", "f32")
WEIGHT_TYPES = tuple(
    name
    for name, kind in GGML_TYPES_BY_NAME.items()
    if (kind.block_size > 1 or name in ("F16", "BF16")) and name not in ("Q8_1", "Q8_K")
)
"""Types that files hold matrices in; Q8_1 and Q8_K only exist inside kernels."""
SEEDS = (0, 1)
STATELESS = {f"{case}/{seed}": case for seed in SEEDS for case in stateless_cases(seed)}
STATEFUL = {f"{case}/{seed}": case for seed in SEEDS for case in stateful_cases(seed)}
ATTENTION = {name: case for name, case in STATEFUL.items() if name.startswith(("attend", "select")) and name.endswith("/0")}
EVERY_KIND: Layout = {
    "k": Paged(8, "f32"),
    "entry": Paged(4, "f32", stride=4),
    "w": Paged(6, "f32", window=16),
    "tail": Tail(5, 3),
    "slot": Slot((2, 3)),
}
SIZES = StateSizes(block_tokens=64, blocks={None: 5, 16: 3}, sequences=4, slots=6, slack=2)


class BackendConformance(PluginChecks, StepChecks):
    """Everything a backend promises: state, tensor types, every operation against the reference and against itself.

    Write a class with `plugin`, the backend's name. product_error: largest error of a product with quantised weights,
    relative to the lengths of the two vectors (a backend may quantise the rows too; 8 bits a value give about 0.003).
    """

    kind: ClassVar[str] = "backend"
    product_error: ClassVar[float] = 0.01

    @pytest.fixture
    def backend(self) -> Iterator[Backend]:
        found = self.open()
        yield found
        found.close()

    @pytest.fixture
    def subject(self, backend: Backend) -> Subject:
        file = MiniModel.file()
        return Subject(file, MiniModel.from_file(file), backend)

    def open(self, options: BackendOptions | None = None) -> Backend:
        found: Backend = self.implementation()(options or BackendOptions())
        return found

    # the device ------------------------------------------------------------------------------------------------

    def test_it_says_what_it_is(self, backend: Backend) -> None:
        other = self.open()
        total, available = backend.memory()
        assert backend.name == self.plugin
        assert backend.device
        assert backend.threads >= 1
        assert 0 < available <= total
        assert backend.arithmetic_id == other.arithmetic_id
        assert self.plugin in backend.arithmetic_id
        assert all(isinstance(x, str) for item in backend.describe().items() for x in item)
        promise = backend.bitwise({"F32"})
        assert promise.holds or promise.reason, "a contract that does not hold needs a reason"

    def test_an_unknown_device_is_refused(self) -> None:
        with pytest.raises(PluginError, match="no-such-device"):
            self.open(BackendOptions(device="no-such-device"))

    # state -----------------------------------------------------------------------------------------------------

    def test_blocks_are_copied_and_written_exactly(self, backend: Backend) -> None:
        store = backend.state(EVERY_KIND, SIZES)
        for group, blocks in SIZES.blocks.items():
            size = store.block_bytes(group)
            contents = [np.random.default_rng((7, b)).bytes(size) for b in range(blocks)]
            for block, data in enumerate(contents):
                store.write(group, block, data)
            assert [store.read(group, block) for block in range(blocks)] == contents
            store.copy(group, 1, 2)
            assert [store.read(group, block) for block in range(blocks)] == [*contents[:2], contents[1], *contents[3:]]
            with pytest.raises(ValueError, match=str(size)):
                store.write(group, 0, contents[0][:-1])
            assert store.read(group, 0) == contents[0]
        assert store.block_bytes(None) == 64 * 8 * 4 + 16 * 4 * 4
        store.free()

    def test_snapshots_are_exact(self, backend: Backend) -> None:
        store = backend.state(EVERY_KIND, SIZES)
        size = store.slot_bytes()
        assert size == 5 * 5 * 4 + 2 * 3 * 4
        one, two = (np.random.default_rng(seed).bytes(size) for seed in (1, 2))
        store.restore(0, 3, one)
        store.restore(1, 4, two)
        store.restore(2, 5, store.snapshot(0, 3))
        assert store.snapshot(2, 5) == store.snapshot(0, 3) == one
        assert store.snapshot(1, 4) == two
        assert len(store.snapshot(1, -1)) == 5 * 5 * 4
        with pytest.raises(ValueError, match=str(size)):
            store.restore(0, 3, one + b"x")
        assert store.snapshot(0, 3) == one
        store.free()
        store.free()

    def test_too_much_state_is_a_capacity_error(self, backend: Backend) -> None:
        sizes = StateSizes(block_tokens=1 << 20, blocks={None: 1 << 20}, sequences=1)
        with pytest.raises(CapacityError):
            backend.state({"k": Paged(1 << 20, "f32")}, sizes)
        backend.state(EVERY_KIND, SIZES).free()

    @pytest.mark.parametrize("fmt", FORMATS)
    def test_a_format_that_is_not_declared_is_refused(self, backend: Backend, fmt: Format) -> None:
        case = ATTENTION["attend-all/0"]
        if f"{fmt}-state" in self.spec().capabilities:
            self._agree(case, backend, kv_format=fmt)
        else:
            with pytest.raises(UnsupportedError, match=fmt):
                run_case(case, backend, rows_for(case), WHOLE, kv_format=fmt)

    # weights ---------------------------------------------------------------------------------------------------

    def test_an_unknown_tensor_type_is_refused_by_the_tensor_s_name(self, backend: Backend) -> None:
        file = MemoryFile("op", {"odd.weight": ("Q99_Z", (4, 32), np.zeros(64, np.uint8))})
        with pytest.raises(ModelError, match=r"odd\.weight"):
            backend.load(file, ["odd.weight"])

    def test_a_missing_tensor_is_refused_by_its_name(self, backend: Backend) -> None:
        with pytest.raises(ModelError, match=r"missing\.weight"):
            backend.load(MiniModel.file(), ["missing.weight"])

    def test_weights_know_their_size(self, backend: Backend) -> None:
        file = MiniModel.file()
        weights = backend.load(file, ["up", "norm"])
        assert weights.nbytes >= file.tensors["up"].nbytes + file.tensors["norm"].nbytes
        weights.close()

    @pytest.mark.parametrize("type_name", WEIGHT_TYPES)
    def test_products_and_rows_of_every_tensor_type(self, backend: Backend, type_name: str) -> None:
        """A type is refused when it is loaded, by the tensor's name, or it works and agrees with the reference."""
        product, rows = _of_type(type_name)
        quantised = GGML_TYPES_BY_NAME[type_name].block_size > 1
        refusal = _refusal(backend, product)
        if refusal:
            assert "w" in refusal.split()
            assert type_name in refusal
            return
        assert not quantised or "quantised-weights" in self.spec().capabilities, f"{type_name} is loaded but not declared"
        self._agree(rows, backend)
        found, expected = self._both(product, backend)
        data = rows_for(product)
        length = np.linalg.norm(self._dequantised(product), axis=1)
        for s in found:
            error = np.abs(found[s] - expected[s]) / (np.linalg.norm(data[s], axis=1)[:, None] * length)
            assert float(error.max()) <= self.product_error
        if backend.bitwise({type_name}).holds:
            for name in ("together", "one at a time"):
                again = run_case(product, backend, data, SCHEDULES[name])
                for s in found:
                    assert_same(again[s], found[s], f"{type_name} rows {name}")

    # operations ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("case", [*STATELESS.values(), *STATEFUL.values()], ids=[*STATELESS, *STATEFUL])
    def test_an_operation_agrees_with_the_reference(self, backend: Backend, case: OpCase) -> None:
        if backend.name == "reference":
            pytest.skip("it is the reference")
        self._agree(case, backend)

    @pytest.mark.parametrize("case", STATELESS.values(), ids=STATELESS)
    def test_a_row_does_not_depend_on_the_rows_beside_it(self, backend: Backend, case: OpCase) -> None:
        self._same_in_every_cut(case, backend, ("together", "one at a time"), "f32")

    @pytest.mark.parametrize("case", STATEFUL.values(), ids=STATEFUL)
    def test_state_does_not_depend_on_how_a_sequence_is_cut(self, backend: Backend, case: OpCase) -> None:
        self._same_in_every_cut(case, backend, tuple(SCHEDULES), "f32")

    @pytest.mark.parametrize("fmt", FORMATS)
    @pytest.mark.parametrize("case", ATTENTION.values(), ids=ATTENTION)
    def test_narrow_rows_are_rounded_once(self, backend: Backend, case: OpCase, fmt: Format) -> None:
        if f"{fmt}-state" not in self.spec().capabilities:
            pytest.skip(f"the spec does not declare '{fmt}-state'")
        self._same_in_every_cut(case, backend, ("threes", "around blocks"), fmt)

    def test_what_ran_on_the_host_is_counted(self, backend: Backend) -> None:
        with Subject(MiniModel.file(), MiniModel(), backend).running() as running:
            counts = running.result([(0, [1, 2])]).fallbacks
        assert all(name in Ops.__dict__ and n >= 1 for name, n in counts.items())

    # helpers ---------------------------------------------------------------------------------------------------

    def _both(self, case: OpCase, backend: Backend, kv_format: Format = "f32") -> tuple[Mapping[int, F32], Mapping[int, F32]]:
        """What the backend gives, and the reference."""
        data = rows_for(case)
        reference = open_backend("reference")
        expected = run_case(case, reference, data, WHOLE, kv_format=kv_format)
        return run_case(case, backend, data, WHOLE, kv_format=kv_format), expected

    def _agree(self, case: OpCase, backend: Backend, kv_format: Format = "f32") -> None:
        found, expected = self._both(case, backend, kv_format)
        for s, rows in expected.items():
            bound = case.tolerance * float(np.abs(rows).max())
            distance = float(np.abs(found[s] - rows).max())
            assert distance <= bound, f"{case}: {distance:.3g} from the reference, more than {bound:.3g}"

    def _same_in_every_cut(self, case: OpCase, backend: Backend, names: tuple[str, ...], kv_format: Format) -> None:
        promise = backend.bitwise({case.types.get(name, "F32") for name in case.weights})
        if not promise.holds:
            pytest.skip(f"backend {backend.name!r} does not promise it: {promise.reason}")
        data = rows_for(case)
        expected = run_case(case, backend, data, WHOLE, kv_format=kv_format)
        for seed, name in enumerate(names):
            for pad in (0, 3):
                found = run_case(case, backend, data, SCHEDULES[name], kv_format=kv_format, seed=seed, pad=pad)
                for s, rows in expected.items():
                    assert_same(found[s], rows, f"{case}, {name}, stream {s}, {pad} padding rows")

    def _dequantised(self, case: OpCase) -> F32:
        from tensorsharp.weights.quants import dequantize

        file = case.file()
        return dequantize(file.raw("w"), file.tensors["w"].type_name, file.tensors["w"].shape)


def _refusal(backend: Backend, case: OpCase) -> str:
    """Why the case's tensors cannot be loaded, or nothing."""
    try:
        backend.load(case.file(), case.weights).close()
    except ModelError as error:
        return str(error)
    return ""


def _of_type(type_name: str) -> tuple[OpCase, OpCase]:
    """A product with a matrix of that type, and rows of it."""

    def product(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.linear(x, ops.weight("w"))

    def rows(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.take(ops.weight("w"), ids(batch))

    case = OpCase(f"linear-{type_name}", 512, 24, product, {"w": (24, 512)}, {"w": type_name})
    return case, replace(case, name=f"take-{type_name}", width=4, out=512, build=rows, tolerance=1e-6)
