"""Operations 18 to 23: our kernels over the state in host memory, or the reference where there is none.

Every one is a root of the graph, so that stores are written and read in program order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError
from tensorsharp.inputs import Tensor
from tensorsharp.ops import Source
from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.protocols.layout import Slot, Tail
from tensorsharp.reference import attention, paging, recurrence, select
from tensorsharp.state import HostStateStore
from tensorsharp_backend_ggml.activations import Activations
from tensorsharp_backend_ggml.builder import Builder
from tensorsharp_backend_ggml.composed import Composed
from tensorsharp_backend_ggml.fields import Fields
from tensorsharp_backend_ggml.native import MAX_HEAD_DIM, MAX_KEY_DIM, MAX_TAPS, Kernels, TsAttend, TsConv, TsScan, TsStore
from tensorsharp_backend_ggml.tensors import Node
from tensorsharp_backend_ggml.written import node, require

MAX_SOURCES = 4
"""Sources that our attention takes."""


class Current:
    """The batch of the replay under way, for operations on the host."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


class Stateful(Activations):
    """`store`, `attend`, `select`, `conv`, `pool` and `scan`. `current` is kept up to date by the graph."""

    def __init__(self, builder: Builder, weights: Mapping[str, Node], kernels: Kernels | None, store: HostStateStore) -> None:
        super().__init__(builder, weights, kernels)
        self.state = store
        self.current = Current(builder.batch)
        self.fields = Fields(builder.batch, store)
        self.composed = Composed(builder, store) if kernels is None else None
        self._descriptor = None if kernels is None else self.fields.descriptor()
        builder.keep.append((self.fields, self._descriptor))

    # 18 store --------------------------------------------------------------------------------------------------

    def store(self, name: str, x: Tensor, *, at: Tensor | None = None) -> None:
        kind, rows = self._paged(name), node(x)
        windows = None if at is None else node(at)
        require(rows.shape[1:] == (kind.width,), f"store {name}", rows.shape, (kind.width,))
        if self.composed is not None and windows is None and self.composed.can_store(kind):
            self.b.root(self.composed.store(name, self.b.contiguous(rows)))
        elif self.kernels is None:
            self._host_store(name, rows, windows)
        else:
            args = TsStore(batch=self._batch(), paged=self._pointer(name), at=None if windows is None else _address(windows))
            self.b.root(self.kernel("store", args, [rows], (1,)))

    def _host_store(self, name: str, rows: Node, windows: Node | None) -> None:
        def write(x: F32, *at: I32) -> F32:
            paging.write_rows(self.state, self.current.batch, name, x, *at)
            return np.zeros(1, np.float32)

        self.b.root(self.b.host("store", write, [rows] if windows is None else [rows, windows], (1,)))

    # 19 attend -------------------------------------------------------------------------------------------------

    def attend(
        self, q: Tensor, sources: Sequence[Source], scale: float, *, sinks: Tensor | None = None, softcap: float = 0.0
    ) -> Node:
        query = self.b.contiguous(node(q))
        width = self._value_dim(sources[0])
        for source in sources:
            self._check_source(query, source, width)
        sink = None if sinks is None else self.f32(node(sinks))
        if self.composed is not None and self.composed.can_attend(sources):
            return self.b.root(self.composed.attend(query, sources[0], width, scale, sink, softcap))
        if self.kernels is None or len(sources) > MAX_SOURCES or max(query.shape[2], width) > MAX_HEAD_DIM:
            return self._host_attend(query, sources, scale, sink, softcap, width)
        return self._native_attend(query, sources, scale, sink, softcap, width)

    def _native_attend(
        self, query: Node, sources: Sequence[Source], scale: float, sinks: Node | None, softcap: float, width: int
    ) -> Node:
        rows, heads, depth = query.shape
        args = [query]

        def place(x: Tensor | None) -> int:
            if x is None:
                return -1
            args.append(node(x))
            return len(args) - 1

        out = TsAttend(batch=self._batch(), heads=heads, head_dim=depth, value_dim=width, sources=len(sources))
        out.scale, out.softcap, out.sinks_src = scale, softcap, place(sinks)
        for source, slot in zip(sources, out.source, strict=False):
            key, value, seen = source.key, source.value, node(source.range)
            slot.key, slot.key_src = (self._pointer(key), -1) if isinstance(key, str) else (None, place(key))
            slot.value, slot.value_src = (self._pointer(value), -1) if isinstance(value, str) else (None, place(value))
            slot.kv_heads, slot.value_dim, slot.group = source.kv_heads, width, source.group
            slot.range, slot.range_src = (_address(seen), -1) if seen.array is not None else (None, place(seen))
            slot.select_src = place(source.select)
            slot.select_k = 0 if source.select is None else source.select.shape[-1]
        return self.b.root(self.kernel("attend", out, args, (rows, heads, width)))

    def _host_attend(
        self, query: Node, sources: Sequence[Source], scale: float, sinks: Node | None, softcap: float, width: int
    ) -> Node:
        args = [query]

        def place(x: Any) -> Any:
            """A tensor's place among the arguments; anything else as it is."""
            if not isinstance(x, Node):
                return x
            args.append(x)
            return len(args) - 1

        plan = [(place(s.key), place(s.range), place(s.value), place(s.select), s) for s in sources]
        sink = place(sinks)

        def attend(*values: npt.NDArray[Any]) -> F32:
            def at(x: Any) -> Any:
                return values[x] if isinstance(x, int) else x

            found = [
                attention.HostSource(at(key), at(seen), at(value), s.kv_heads, at(chosen), s.group, s.value_dim)
                for key, seen, value, chosen, s in plan
            ]
            return attention.attend(values[0], found, self.current.batch, self.state, scale, sinks=at(sink), softcap=softcap)

        return self.b.root(self.b.host("attend", attend, args, (*query.shape[:2], width)))

    def _check_source(self, query: Node, source: Source, width: int) -> None:
        key = self._width(source.key)
        fits = key == source.kv_heads * query.shape[2] and query.shape[1] % source.kv_heads == 0
        require(fits and self._value_dim(source) == width, "attend", query.shape, (key, source.kv_heads, width))

    def _width(self, where: str | Tensor) -> int:
        return self._paged(where).width if isinstance(where, str) else where.shape[-1]

    def _value_dim(self, source: Source) -> int:
        if source.value is not None:
            return self._width(source.value) // source.kv_heads
        return source.value_dim or self._width(source.key) // source.kv_heads

    # 20 select -------------------------------------------------------------------------------------------------

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
    ) -> Node:
        self._paged(keys)
        extra = [None if x is None else node(x) for x in (w, within)]

        def choose(query: F32, seen: I32, *others: npt.NDArray[Any]) -> I32:
            rest = iter(others)
            weight, among = (None if x is None else next(rest) for x in extra)
            return select.select(
                query,
                weight,
                keys,
                seen,
                k,
                self.current.batch,
                self.state,
                group=group,
                pin_last=pin_last,
                within=among,
                within_group=within_group,
            )

        args = [node(q), node(range), *(x for x in extra if x is not None)]
        found = self.b.root(self.b.host("select", choose, args, (q.shape[0], k), "i32"))
        return Node(found.ptr, found.shape, "i32", found.type, sparse=True)

    # 21-23 conv, pool, scan ------------------------------------------------------------------------------------

    def conv(self, x: Tensor, tail: str, weight: Tensor, bias: Tensor | None = None, *, dilation: int = 1) -> Node:
        rows, taps = node(x), self.f32(node(weight))
        ring = self._float_state(tail, Tail)
        require(rows.shape[1] == taps.shape[0] == ring.shape[2], f"conv {tail}", rows.shape, taps.shape, ring.shape)
        args = [rows, taps] if bias is None else [rows, taps, self.f32(node(bias))]
        if self.kernels is None or taps.shape[1] > MAX_TAPS:

            def convolve(a: F32, w: F32, b: F32 | None = None) -> F32:
                return recurrence.conv(a, ring, w, b, dilation, self.current.batch)

            return self.b.root(self.b.host("conv", convolve, args, rows.shape))
        out = TsConv(batch=self._batch(), ring=ring.ctypes.data, ring_rows=ring.shape[1], taps=taps.shape[1])
        out.dilation, out.has_bias = dilation, int(bias is not None)
        return self.b.root(self.kernel("conv", out, args, rows.shape))

    def pool(self, x: Tensor, tail: str, windows: Tensor, ratio: int, *, overlap: bool = False, gated: bool = True) -> Node:
        rows, at = node(x), node(windows)
        ring = self._float_state(tail, Tail)
        require(rows.shape[1] == ring.shape[2], f"pool {tail}", rows.shape, ring.shape)

        def gather(a: F32, where: I32) -> F32:
            return recurrence.pool(a, ring, where, ratio, self.current.batch, overlap=overlap, gated=gated)

        depth = rows.shape[1] // (2 if gated else 1) // (2 if overlap else 1)
        return self.b.root(self.b.host("pool", gather, [rows, at], (at.shape[0], depth)))

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
    ) -> Node:
        args = [node(x) for x in (q, k, v, g, beta)]
        state = self._float_state(slot, Slot)
        rows, value_heads, value_dim = args[2].shape
        _, key_heads, key_dim = args[0].shape
        fits = args[1].shape == args[0].shape and state.shape[1:] == (value_heads, key_dim, value_dim)
        require(fits and value_heads % key_heads == 0, f"scan {slot}", args[0].shape, args[2].shape, state.shape)
        if self.kernels is None or key_dim > MAX_KEY_DIM:

            def advance(*values: F32) -> F32:
                a, b, c, d, e = values
                return recurrence.scan(a, b, c, d, e, state, self.current.batch, delta=delta, heads=heads)

            return self.b.root(self.b.host("scan", advance, args, (rows, value_heads, value_dim)))
        out = TsScan(batch=self._batch(), state=state.ctypes.data, heads=value_heads, key_heads=key_heads)
        out.key_dim, out.value_dim, out.delta = key_dim, value_dim, int(delta)
        out.tile, out.gate_per_channel = int(heads == "tile"), int(len(args[3].shape) == 3)
        return self.b.root(self.kernel("scan", out, args, (rows, value_heads, value_dim)))

    # state -----------------------------------------------------------------------------------------------------

    def _paged(self, name: str) -> Any:
        try:
            return self.state.paged(name)
        except KeyError:
            raise ModelError(f"the model names the paged store {name!r}, which its layout does not declare.") from None

    def _float_state(self, name: str, kind: type[Tail] | type[Slot]) -> F32:
        if not isinstance(self.state.layout.get(name), kind):
            raise ModelError(f"the model names the {kind.__name__} state {name!r}, which its layout does not declare.")
        return self.state.arrays[name].view(np.float32)

    def _batch(self) -> Any:
        assert self._descriptor is not None
        return ctypes.addressof(self._descriptor)

    def _pointer(self, name: str) -> Any:
        self._paged(name)
        return ctypes.addressof(self.fields.paged(name))


def _address(x: Node) -> int:
    """Where an input's host array lies."""
    if x.array is None:
        raise ModelError("windows and ranges must be inputs of the batch, not computed tensors.")
    return int(x.array.ctypes.data)
