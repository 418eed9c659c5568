"""The operation vocabulary over arrays: each method unwraps handles and calls the function that defines it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensorsharp.errors import ModelError
from tensorsharp.inputs import Request, Rope, Tensor
from tensorsharp.ops import Activation, GatedKind, Source
from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.reference import attention, elementwise, linear, paging, recurrence, rotary, select
from tensorsharp.reference.arrays import Array, last_sum
from tensorsharp.reference.weights import ReferenceWeights
from tensorsharp.state import HostStateStore


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor handle: an array that was computed at once."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> Literal["f32", "i32"]:
        return "i32" if np.issubdtype(self.array.dtype, np.integer) else "f32"


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight handle: its shape is known at once, its numbers when they are used."""

    name: str
    weights: ReferenceWeights

    @property
    def array(self) -> Array:
        return self.weights.array(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weights.info(self.name).shape

    @property
    def dtype(self) -> Literal["f32", "i32"]:
        return "i32" if self.weights.info(self.name).type_name == "I32" else "f32"


def unwrap(x: Tensor) -> Array:
    """The array of a handle. TypeError if another backend made it."""
    if not isinstance(x, Value | Weight):
        raise TypeError(f"a {type(x).__name__} is not a tensor of the reference backend")
    return x.array


def f32(x: Tensor) -> F32:
    return unwrap(x).astype(np.float32, copy=False)


def i32(x: Tensor) -> I32:
    return unwrap(x).astype(np.int32, copy=False)


def optional(x: Tensor | None) -> F32 | None:
    return None if x is None else f32(x)


def operand(x: Tensor | float) -> Array | np.float32:
    return np.float32(x) if isinstance(x, int | float) else unwrap(x)


class ReferenceOps:
    """`tensorsharp.ops.Ops` for one batch, computed while the model is written. Shapes and formulas: see there."""

    def __init__(self, weights: ReferenceWeights, store: HostStateStore, batch: Batch, taps: Sequence[str]) -> None:
        self._weights, self._store, self._batch = weights, store, batch
        self._wanted_taps = frozenset(taps)
        self._inputs: dict[Request, Value] = {}
        self.taps: dict[str, F32] = {}

    def declare(self, request: Request) -> Value:
        """The value of an input; equal requests share one."""
        if request not in self._inputs:
            self._inputs[request] = Value(request.compute(self._batch))
        return self._inputs[request]

    def weight(self, name: str) -> Weight:
        if name not in self._weights.names:
            raise ModelError(f"{self._weights.file.path}: tensor {name} is not among those that the model asked to load.")
        return Weight(name, self._weights)

    def has(self, name: str) -> bool:
        return name in self._weights.file.tensors

    def take(self, table: Tensor, index: Tensor) -> Value:
        return Value(elementwise.take(unwrap(table), i32(index)))

    def pick(self, x: Tensor, index: Tensor) -> Value:
        return Value(elementwise.pick(unwrap(x), i32(index)))

    def top_k(self, x: Tensor, k: int) -> Value:
        return Value(elementwise.top_k(f32(x), k))

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Value:
        return Value(unwrap(x).reshape(shape))

    def split(self, x: Tensor, sizes: Sequence[int]) -> tuple[Value, ...]:
        if sum(sizes) != x.shape[-1]:
            raise ValueError(f"the sizes {list(sizes)} do not sum to the last axis of {list(x.shape)}")
        return tuple(Value(part) for part in np.split(unwrap(x), np.cumsum(sizes)[:-1], axis=-1))

    def concat(self, parts: Sequence[Tensor]) -> Value:
        return Value(np.concatenate([unwrap(part) for part in parts], axis=-1))

    def repeat(self, x: Tensor, n: int) -> Value:
        array = unwrap(x)
        return Value(np.repeat(array if array.ndim == 3 else array[:, None, :], n, axis=1))

    def add(self, a: Tensor, b: Tensor | float) -> Value:
        return Value(np.add(unwrap(a), operand(b)))

    def sub(self, a: Tensor, b: Tensor | float) -> Value:
        return Value(np.subtract(unwrap(a), operand(b)))

    def mul(self, a: Tensor, b: Tensor | float) -> Value:
        return Value(np.multiply(unwrap(a), operand(b)))

    def div(self, a: Tensor, b: Tensor | float) -> Value:
        return Value(np.divide(unwrap(a), operand(b)))

    def clamp(self, x: Tensor, lo: float, hi: float) -> Value:
        return Value(np.minimum(np.maximum(f32(x), np.float32(lo)), np.float32(hi)))

    def act(self, x: Tensor, kind: Activation) -> Value:
        return Value(elementwise.act(f32(x), kind))

    def glu(self, gate: Tensor, up: Tensor, kind: GatedKind, limit: float = 0.0) -> Value:
        return Value(elementwise.glu(f32(gate), f32(up), kind, limit))

    def softmax(self, x: Tensor) -> Value:
        return Value(elementwise.softmax(f32(x)))

    def total(self, x: Tensor) -> Value:
        return Value(last_sum(f32(x)))

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Value:
        return Value(elementwise.rms_norm(f32(x), optional(weight), eps))

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Value:
        return Value(elementwise.layer_norm(f32(x), optional(weight), optional(bias), eps))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False) -> Value:
        return Value(linear.linear(f32(x), f32(weight), optional(bias), transposed=transposed))

    def expert_linear(self, x: Tensor, weight: Tensor, index: Tensor, bias: Tensor | None = None) -> Value:
        return Value(linear.expert_linear(f32(x), f32(weight), i32(index), optional(bias)))

    def mix(self, x: Tensor, m: Tensor) -> Value:
        return Value(elementwise.mix(f32(x), f32(m)))

    def sinkhorn(self, x: Tensor, eps: float, iterations: int) -> Value:
        return Value(elementwise.sinkhorn(f32(x), eps, iterations))

    def rope(self, x: Tensor, angles: Tensor, rope: Rope, *, inverse: bool = False) -> Value:
        return Value(rotary.rope(f32(x), f32(angles), rope, inverse=inverse))

    def tap(self, name: str, x: Tensor) -> None:
        if name in self._wanted_taps:
            self.taps[name] = f32(x).reshape(x.shape[0], math.prod(x.shape[1:]))  # -1 cannot be told where there are no rows

    def store(self, name: str, x: Tensor, *, at: Tensor | None = None) -> None:
        paging.write_rows(self._store, self._batch, name, f32(x), None if at is None else i32(at))

    def attend(
        self, q: Tensor, sources: Sequence[Source], scale: float, *, sinks: Tensor | None = None, softcap: float = 0.0
    ) -> Value:
        found = [_host_source(source) for source in sources]
        return Value(attention.attend(f32(q), found, self._batch, self._store, scale, sinks=optional(sinks), softcap=softcap))

    def select(
        self,
        q: Tensor,
        w: Tensor | None,
        keys: str,
        range: Tensor,
        k: int,
        *,
        group: int = 1,
        pin_last: bool = False,
        within: Tensor | None = None,
        within_group: int = 1,
    ) -> Value:
        among = None if within is None else i32(within)
        return Value(
            select.select(
                f32(q),
                optional(w),
                keys,
                i32(range),
                k,
                self._batch,
                self._store,
                group=group,
                pin_last=pin_last,
                within=among,
                within_group=within_group,
            )
        )

    def conv(self, x: Tensor, tail: str, weight: Tensor, bias: Tensor | None = None, *, dilation: int = 1) -> Value:
        return Value(recurrence.conv(f32(x), self._float_state(tail), f32(weight), optional(bias), dilation, self._batch))

    def pool(self, x: Tensor, tail: str, windows: Tensor, ratio: int, *, overlap: bool = False, gated: bool = True) -> Value:
        ring = self._float_state(tail)
        return Value(recurrence.pool(f32(x), ring, i32(windows), ratio, self._batch, overlap=overlap, gated=gated))

    def scan(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        slot: str,
        *,
        delta: bool,
        heads: Literal["tile", "group"],
    ) -> Value:
        rows = (f32(q), f32(k), f32(v), f32(g), f32(beta))
        return Value(recurrence.scan(*rows, self._float_state(slot), self._batch, delta=delta, heads=heads))

    def _float_state(self, name: str) -> F32:
        return self._store.arrays[name].view(np.float32)


def _host_source(source: Source) -> attention.HostSource:
    def where(x: str | Tensor) -> str | F32:
        return x if isinstance(x, str) else f32(x)

    return attention.HostSource(
        key=where(source.key),
        range=i32(source.range),
        value=None if source.value is None else where(source.value),
        kv_heads=source.kv_heads,
        select=None if source.select is None else i32(source.select),
        group=source.group,
        value_dim=source.value_dim,
    )
