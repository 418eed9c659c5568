"""Writes the nodes of one graph: ggml's context, inputs, custom operations and everything they keep alive."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import BackendError, ModelError
from tensorsharp.inputs import Field, HostInput, Request, Windows
from tensorsharp.protocols.batch import Batch
from tensorsharp_backend_ggml.binding import (
    ALL_THREADS,
    CUSTOM_OP,
    F16,
    F32,
    I32,
    I64,
    MAX_ARGS,
    Ggml,
    InitParams,
    TensorHead,
    data_address,
)
from tensorsharp_backend_ggml.native import TsCall
from tensorsharp_backend_ggml.scratch import Scratch
from tensorsharp_backend_ggml.tensors import (
    Node,
    Shape,
    dense_strides,
    host_view,
    numpy_type,
    reversed_shape,
    reversed_strides,
    zeros,
)
from tensorsharp_backend_ggml.threads import Pool

CONTEXT_NODES = 1 << 10
"""Tensors of one context; a graph has as many as it needs. One that is large enough for any graph is mostly address space, but
graphs come and go, and the holes that they leave in the heap are touched by what comes next."""

SHARED_WORK = 1 << 14
"""Elements below which a kernel is not worth waking other threads for."""
PARTS = 4
"""Parts of a shared call for every thread: a slow thread takes fewer."""

HostFunction = Callable[..., npt.NDArray[Any]]
"""Numpy in, numpy out: one operation on the host."""

_GGML_TYPE = {np.dtype(np.float32): F32, np.dtype(np.int32): I32, np.dtype(np.int64): I64, np.dtype(np.float16): F16}


@dataclass(frozen=True, slots=True)
class Input:
    """A request and the host array that takes its value before every replay."""

    request: Request
    node: Node
    array: npt.NDArray[Any]


class Builder:
    """One graph while it is written. `batch` gives the inputs' shapes, never their values.

    Stateful operations are roots, in program order: ggml runs a graph's nodes one after the other, so that order is
    the order in which stores are written and read.
    """

    def __init__(self, ggml: Ggml, batch: Batch, pool: Pool | None, scratch: Scratch) -> None:
        self.ggml = ggml
        self.batch = batch
        self.pool = pool
        self._scratch = scratch
        self.inputs: dict[Request, Input] = {}
        self.roots: list[int] = []
        self.keep: list[object] = []
        self.fallbacks: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self.nodes = 0
        self._contexts: list[int] = []
        self._left = 0
        self._buffers: list[int] = []
        self._bindings: list[Callable[[], None]] = []

    def close(self) -> None:
        """Free the contexts and the inputs' buffers. Idempotent."""
        for buffer in self._buffers:
            self.ggml.backend_buffer_free(buffer)
        self._buffers = []
        for context in self._contexts:
            self.ggml.free(context)
        self._contexts = []

    # nodes -----------------------------------------------------------------------------------------------------

    def op(self, name: str, *args: Any, shape: Shape, dtype: Literal["f32", "i32"] = "f32", sparse: bool = False) -> Node:
        """A node of ggml's operation `name`; Node arguments are passed as their pointers. The result is contiguous f32 or i32."""
        pointer = getattr(self.ggml, name)(self._room(), *(a.ptr if isinstance(a, Node) else a for a in args))
        return Node(pointer, shape, dtype, I32 if dtype == "i32" else F32, sparse=sparse)

    def view(self, x: Node, shape: Shape, strides: Shape, offset: int = 0) -> Node:
        """Part of a tensor of 4-byte elements, without a copy; contiguous where the strides say so."""
        nb = reversed_strides(shape, strides)
        pointer = self.ggml.view_4d(self._room(), x.ptr, *reversed_shape(shape), *nb[1:], offset)
        packed = strides == dense_strides(shape)
        return Node(pointer, shape, x.dtype, x.type, None if packed else strides, x.sparse)

    def contiguous(self, x: Node) -> Node:
        if x.strides is None:
            return x
        return self.op("cont", x, shape=x.shape, dtype=x.dtype, sparse=x.sparse)

    def root(self, node: Node) -> Node:
        """Keep a node in the graph, after everything written so far."""
        self.roots.append(node.ptr)
        return node

    def _room(self) -> int:
        """A context with room for one operation."""
        made = 2  # it may make a view of its own
        if self._left < made:
            self._contexts.append(int(self.ggml.init(InitParams(CONTEXT_NODES * self.ggml.tensor_overhead(), None, True))))
            self._left = CONTEXT_NODES
        self._left -= made
        self.nodes += made
        return self._contexts[-1]

    # inputs ----------------------------------------------------------------------------------------------------

    def declare(self, request: Request) -> Node:
        """The input of a request; equal requests share one."""
        found = self.inputs.get(request)
        if found is None:
            node = self.host_array(np.asarray(request.compute(self.batch)), sparse=self._sparse(request))
            assert node.array is not None
            found = self.inputs[request] = Input(request, node, node.array)
        return found.node

    def host_array(self, value: npt.NDArray[Any], *, sparse: bool = False) -> Node:
        """A tensor over host memory of its own, which the graph's allocator cannot reuse, holding `value`."""
        array = zeros(value.shape, value.dtype)
        array[...] = value
        found = self.borrowed(array, _GGML_TYPE[value.dtype])
        return Node(found.ptr, found.shape, found.dtype, found.type, sparse=sparse, array=array)

    def borrowed(self, array: npt.NDArray[Any], type_id: int) -> Node:
        """A tensor over memory that exists already; `array` is aligned to 32 bytes."""
        pointer = self.ggml.new_tensor_4d(self._room(), type_id, *reversed_shape(array.shape))
        self._place(pointer, array)
        return Node(pointer, array.shape, "i32" if type_id in (I32, I64) else "f32", type_id)

    def _place(self, tensor: int, array: npt.NDArray[Any]) -> None:
        """Give a tensor the memory of an array, which lives as long as the graph."""
        buffer = self.ggml.backend_cpu_buffer_from_ptr(array.ctypes.data, array.nbytes)
        self.ggml.backend_tensor_alloc(buffer, tensor, array.ctypes.data)
        self._buffers.append(buffer)
        self.keep.append(array)

    def output(self, name: str, x: Node) -> Node:
        """A result [rows, width] in memory that no other node uses; computed there, or copied if it has a place already."""
        head = TensorHead.from_address(x.ptr)
        if x.strides is not None or head.view_src or head.data:
            x = self.op("cont", x, shape=x.shape)
        array = self._scratch.result(name, *x.shape)
        self._place(x.ptr, array)
        return self.root(Node(x.ptr, x.shape, array=array))

    def request_of(self, node: Node) -> Request | None:
        """What an input was declared with; None for anything else."""
        return next((i.request for i in self.inputs.values() if i.node is node), None)

    def _sparse(self, request: Request) -> bool:
        if request == Field("tokens"):
            return bool((self.batch.tokens < 0).any())
        return isinstance(request, Windows) or (isinstance(request, HostInput) and request.dtype == "i32")

    # custom operations -----------------------------------------------------------------------------------------

    def custom(
        self,
        function: int,
        descriptor: object,
        args: Sequence[Node],
        shape: Shape,
        dtype: Literal["f32", "i32"] = "f32",
        type_id: int | None = None,
    ) -> Node:
        """A node that calls a native kernel. args: the tensors it reads, in the order of its interface.

        type_id: ggml's type of the result where it is not that of `dtype`.
        """
        if len(args) > MAX_ARGS:
            raise ModelError(f"an operation reads {len(args)} tensors; a custom node of ggml takes {MAX_ARGS}.")
        pointers = (ctypes.c_void_p * max(len(args), 1))(*(a.ptr for a in args))
        userdata = None if descriptor is None else ctypes.addressof(descriptor)  # type: ignore[arg-type]
        self.keep.append(descriptor)
        if type_id is None:
            type_id = I32 if dtype == "i32" else F32
        ne = reversed_shape(shape)
        pointer = self.ggml.custom_4d(self._room(), type_id, *ne, pointers, len(args), function, ALL_THREADS, userdata)
        return Node(pointer, shape, dtype, type_id)

    def native(
        self,
        function: int,
        descriptor: ctypes.Structure,
        args: Sequence[Node],
        shape: Shape,
        dtype: Literal["f32", "i32"] = "f32",
        type_id: int | None = None,
        work: int | None = None,
    ) -> Node:
        """A node of one of our kernels, shared by the pool's threads where it is worth it.

        work: elements that the kernel reads and writes; None for one that is always worth sharing.
        """
        pool = self.pool
        if pool is None or pool.count == 1 or (work is not None and work < SHARED_WORK):
            return self.custom(function, descriptor, args, shape, dtype, type_id)
        assert pool.parallel is not None
        call = TsCall(function, ctypes.addressof(descriptor), pool.address, PARTS * pool.count)
        self.keep.append(descriptor)
        return self.custom(pool.parallel, call, args, shape, dtype, type_id)

    def host(
        self, name: str, function: HostFunction, args: Sequence[Node], shape: Shape, dtype: Literal["f32", "i32"] = "f32"
    ) -> Node:
        """A node that calls `function` with numpy views of `args` and takes what it returns; counted as a fallback.

        function returns an array of `shape`, or one that broadcasts to it. What it raises ends the step.
        """
        self.fallbacks[name] += 1
        bound: list[npt.NDArray[Any]] = []
        blank = -1 if dtype == "i32" else 0  # what later kernels of a failed step can read without harm

        def run(_tensor: int, thread: int, _threads: int, _userdata: int) -> None:
            if thread:
                return
            try:
                bound[0][...] = function(*bound[1:]) if not self.failures else blank
            except BaseException as error:  # an exception cannot pass through C; the runner raises it
                self.failures.append(error)
                bound[0][...] = blank

        callback = CUSTOM_OP(run)
        self.keep.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        read = [self.contiguous(a) for a in args]
        node = self.custom(address, None, read, shape, dtype)
        tensors = [node, *read]
        self._bindings.append(lambda: bound.extend(host_view(data_address(t.ptr), t.shape, numpy_type(t)) for t in tensors))
        return node

    def bind(self) -> None:
        """After allocation: give the host operations their views."""
        for binding in self._bindings:
            binding()

    def raise_failure(self) -> None:
        """Raise what a host operation raised in this replay, if one did."""
        if self.failures:
            cause = self.failures[0]
            self.failures.clear()
            raise BackendError(f"an operation on the host failed: {cause}.") from cause
