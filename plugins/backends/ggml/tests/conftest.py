"""Tiny models and batches for the ggml backend's tests: a model is any function of (ops, batch)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pytest

from tensorsharp.inputs import ModelBatch
from tensorsharp.ops import Ops
from tensorsharp.protocols.backend import Backend, BackendOptions, StateSizes, StepResult
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.file import ModelFile, TensorInfo
from tensorsharp.protocols.layout import Format, Layout, block_groups
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME
from tensorsharp_backend_ggml import native
from tensorsharp_backend_ggml.backend import GgmlBackend

VOCAB = 1 << 20


class MemoryFile:
    """A model file in memory: name -> (type, shape, bytes), every tensor at a multiple of 32 bytes, or one byte off."""

    def __init__(self, tensors: Mapping[str, tuple[str, tuple[int, ...], npt.NDArray[Any]]], *, shift: int = 0) -> None:
        self.path, self.architecture, self.fingerprint = "memory.gguf", "tiny", "0"
        self.metadata: Mapping[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        end = 0
        for name, (type_name, shape, data) in tensors.items():
            offset = -(-end // 32) * 32 + shift
            kind = GGML_TYPES_BY_NAME[type_name]
            self.tensors[name] = TensorInfo(name, shape, kind.id, type_name, data.nbytes, 0, offset)
            end = offset + data.nbytes
        raw = np.zeros(end + 64, np.uint8)
        self._data = raw[-raw.ctypes.data % 64 :]
        for name, (_, _, data) in tensors.items():
            self.raw(name)[:] = data.reshape(-1).view(np.uint8)

    def shard(self, index: int) -> npt.NDArray[np.uint8]:
        assert index == 0
        return self._data

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        info = self.tensors[name]
        return self._data[info.offset : info.offset + info.nbytes]


def floats(**arrays: npt.NDArray[np.float32]) -> dict[str, tuple[str, tuple[int, ...], npt.NDArray[Any]]]:
    """F32 tensors for a :class:`MemoryFile`."""
    return {name: ("F32", a.shape, np.ascontiguousarray(a, np.float32)) for name, a in arrays.items()}


class TinyModel:
    """A model whose `forward` is `write` and whose layout is given."""

    architecture, vocab_size, context_length, layers, width = "tiny", VOCAB, 4096, 1, 1

    def __init__(self, write: Callable[[Ops, ModelBatch], Any], names: frozenset[str], layout: Layout) -> None:
        self._write, self._names, self._layout = write, names, layout

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        raise NotImplementedError

    def layout(self, kv_format: Format) -> Layout:
        return self._layout

    def weights(self) -> frozenset[str]:
        return self._names

    def forward(self, ops: Ops, batch: ModelBatch) -> Any:
        return self._write(ops, batch)


@dataclass
class Machine:
    """One backend with one model, its weights and state; `step` runs a batch and copies what it gives."""

    backend: Backend
    file: MemoryFile
    write: Callable[[Ops, ModelBatch], Any]
    layout: Layout = field(default_factory=dict)
    slots: int = 8

    def __post_init__(self) -> None:
        model = TinyModel(self.write, frozenset(self.file.tensors), self.layout)
        groups = dict.fromkeys(block_groups(self.layout), 64)
        self.state = self.backend.state(self.layout, StateSizes(32, groups, 4, self.slots, 2))
        self.weights = self.backend.load(self.file, model.weights())
        self.runner = self.backend.compile(model, self.weights, self.state)

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        found = self.runner.step(batch, taps)
        return StepResult(found.logits.copy(), {k: v.copy() for k, v in found.taps.items()}, dict(found.fallbacks))

    def close(self) -> None:
        self.runner.close()
        self.weights.close()
        self.state.free()


@pytest.fixture
def machine() -> Iterator[Callable[..., Machine]]:
    """Makes machines and closes them."""
    made: list[Machine] = []

    def make(*args: Any, **named: Any) -> Machine:
        made.append(Machine(*args, **named))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def memory_file() -> type[MemoryFile]:
    return MemoryFile


@pytest.fixture
def float_tensors() -> Callable[..., dict[str, tuple[str, tuple[int, ...], npt.NDArray[Any]]]]:
    return floats


@pytest.fixture(params=["native", "off"])
def any_backend(request: pytest.FixtureRequest) -> GgmlBackend:
    """The backend with our kernels, and without them."""
    if request.param == "off":
        return GgmlBackend(BackendOptions(threads=1, extra={"kernels": "off"}))
    return _native_backend(1)


@pytest.fixture
def native_backend() -> Callable[[int], GgmlBackend]:
    """threads -> the backend with our kernels."""
    return _native_backend


@pytest.fixture(params=["native", "off"])
def backend_for(request: pytest.FixtureRequest) -> Callable[[int], GgmlBackend]:
    """threads -> the backend with our kernels, and without them."""
    if request.param == "native":
        return _native_backend
    return lambda threads: GgmlBackend(BackendOptions(threads=threads, extra={"kernels": "off"}))


def _native_backend(threads: int) -> GgmlBackend:
    absent = native.why_not()
    if absent is not None:
        pytest.skip(absent)
    return GgmlBackend(BackendOptions(threads=threads))


@dataclass(frozen=True)
class Rows:
    """One sequence's part of a batch. blocks: its physical blocks in order. tail, slot_in, slots: its other state."""

    tokens: Sequence[int]
    start: int = 0
    blocks: Sequence[int] = tuple(range(16))
    tail: int = 0
    slot_in: int = -1
    slots: Sequence[int] | None = None


def ragged(*parts: Rows, wanted: Sequence[int] | None = None, groups: Sequence[int | None] = (None,), **named: Any) -> Batch:
    """A batch of sequences; all rows are wanted unless said otherwise. Every block group uses the same blocks."""
    lengths = [len(p.tokens) for p in parts]
    first = [sum(lengths[:i]) for i in range(len(parts))]
    table = np.full((len(parts), 32), -1, np.int32)
    for i, part in enumerate(parts):
        table[i, : len(part.blocks)] = part.blocks

    def ints(values: Sequence[int]) -> npt.NDArray[np.int32]:
        return np.array(values, np.int32)

    total = sum(lengths)
    return Batch(
        tokens=ints([t for p in parts for t in p.tokens]),
        pos=ints([p.start + i for p in parts for i in range(len(p.tokens))]),
        seq=ints([i for i, n in enumerate(lengths) for _ in range(n)]),
        first_row=ints(first),
        start=ints([p.start for p in parts]),
        length=ints(lengths),
        tables=dict.fromkeys(groups, table),
        tail_slot=ints([p.tail for p in parts]),
        slot_in=ints([p.slot_in for p in parts]),
        slot_out=ints([s for p in parts for s in (p.slots or [-1] * len(p.tokens))]),
        wanted=ints(range(total) if wanted is None else wanted),
        **named,
    )


@pytest.fixture
def rows() -> type[Rows]:
    return Rows


@pytest.fixture
def ragged_batch() -> Callable[..., Batch]:
    return ragged


def given(batch: ModelBatch, name: str, value: npt.NDArray[Any]) -> Any:
    """An array [R, ...] as an input of the graph, by batch row (position)."""
    kind: Literal["i32", "f32"] = "i32" if np.issubdtype(value.dtype, np.integer) else "f32"
    return batch.host(
        name, lambda tokens, previous, pos: value[np.minimum(pos, len(value) - 1)], width=value.shape[1:], dtype=kind
    )


@pytest.fixture
def give() -> Callable[[ModelBatch, str, npt.NDArray[Any]], Any]:
    return given


def flat(ops: Ops, x: Any) -> Any:
    """[R, ...] as [R, n], what a model's logits are."""
    return ops.reshape(x, (-1, math.prod(x.shape[1:]))) if len(x.shape) != 2 else x
