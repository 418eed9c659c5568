"""Binds a model file's tensors as ggml tensors over the file's own mapping, without a copy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from tensorsharp.errors import BackendError, ModelError
from tensorsharp.protocols.file import ModelFile, TensorInfo
from tensorsharp_backend_ggml.binding import ALIGNMENT, BF16, F16, F32, I32, I64, TYPES, InitParams
from tensorsharp_backend_ggml.library import Library
from tensorsharp_backend_ggml.tensors import Bytes, Node, reversed_shape, zeros

WIDE = frozenset({F16, BF16, I64})
"""Types whose vectors are kept as f32 or i32 copies: ggml's elementwise operations take nothing else."""


class GgmlWeights:
    """The named tensors of one file; implements :class:`tensorsharp.protocols.backend.Weights`.

    ModelError names a tensor that is missing, whose type this ggml does not know, or whose data has another size than
    its shape says.
    """

    def __init__(self, library: Library, file: ModelFile, names: Iterable[str]) -> None:
        self._library = library
        self._buffers: list[int] = []
        self._memory: dict[int, Bytes] = {}
        self._shards: dict[int, int] = {}
        self.nodes: dict[str, Node] = {}
        self.types: dict[str, str] = {}
        self.nbytes = 0
        chosen = sorted(set(names))
        self._context = library.ggml.init(InitParams((len(chosen) + 1) * library.ggml.tensor_overhead(), None, True))
        try:
            for name in chosen:
                info = file.tensors.get(name)
                if info is None:
                    raise ModelError(f"{file.path}: tensor {name} is missing.")
                self._bind(file, info)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the tensors back; the mapping belongs to the file. Idempotent."""
        ggml = self._library.ggml
        self.nodes = {}
        for buffer in self._buffers:
            ggml.backend_buffer_free(buffer)
        self._buffers = []
        self._memory = {}
        if self._context:
            ggml.free(self._context)
            self._context = None

    def _bind(self, file: ModelFile, info: TensorInfo) -> None:
        self._check(file, info)
        self.types[info.name] = info.type_name
        self.nbytes += info.nbytes
        if len(info.shape) == 1 and info.type_id in WIDE:
            data, type_id = _widened(file.raw(info.name), info.type_id)
            self._place(info, type_id, self._own(data), data.ctypes.data)
            return
        raw = file.raw(info.name)
        if raw.ctypes.data % ALIGNMENT:
            data = zeros(raw.shape, np.uint8)
            data[:] = raw
            self._place(info, info.type_id, self._own(data), data.ctypes.data)
        else:
            self._place(info, info.type_id, self._shard(file, info.shard), raw.ctypes.data)

    def _check(self, file: ModelFile, info: TensorInfo) -> None:
        ggml = self._library.ggml
        where = f"{file.path}: tensor {info.name}"
        # ggml reads its table of types without a check; removed types have blocks of 0.
        block = ggml.blck_size(info.type_id) if 0 <= info.type_id < TYPES else 0
        if not block:
            raise ModelError(
                f"{where} has type {info.type_name} ({info.type_id}), which ggml {self._library.version} does not know."
            )
        vector = len(info.shape) == 1 and info.type_id in WIDE
        if info.type_id != I32 and not vector and not ggml.traits(info.type_id).vec_dot:
            raise ModelError(f"{where} has type {info.type_name}, which ggml cannot compute with.")
        if not 1 <= len(info.shape) <= 4 or min(info.shape) < 1 or info.shape[-1] % block:
            raise ModelError(f"{where} has shape {list(info.shape)}; expected 1 to 4 axes, the last a multiple of {block}.")
        expected = math.prod(info.shape) // block * ggml.type_size(info.type_id)
        if info.nbytes != expected:
            raise ModelError(f"{where} of type {info.type_name} has {info.nbytes} bytes of data; its shape needs {expected}.")

    def _shard(self, file: ModelFile, index: int) -> int:
        if index not in self._shards:
            self._shards[index] = self._own(file.shard(index))
        return self._shards[index]

    def _own(self, memory: Bytes) -> int:
        """A ggml buffer over host memory, which is kept alive as long as the buffer."""
        buffer = self._library.ggml.backend_cpu_buffer_from_ptr(memory.ctypes.data, memory.nbytes)
        if not buffer:
            raise BackendError(f"ggml could not take {memory.nbytes:,} bytes of host memory as a buffer.")
        self._buffers.append(buffer)
        self._memory[buffer] = memory
        return int(buffer)

    def _place(self, info: TensorInfo, type_id: int, buffer: int, address: int) -> None:
        ggml = self._library.ggml
        tensor = ggml.new_tensor_4d(self._context, type_id, *reversed_shape(info.shape))
        ggml.backend_tensor_alloc(buffer, tensor, address)
        kind: Literal["f32", "i32"] = "i32" if type_id == I32 else "f32"
        self.nodes[info.name] = Node(tensor, info.shape, kind, type_id)


def _widened(raw: Bytes, type_id: int) -> tuple[Bytes, int]:
    """A vector of a narrow or 64-bit type as aligned f32 or i32 bytes, with the ggml type they have now."""
    if type_id == I64:
        values, result = raw.view(np.int64).astype(np.int32), I32
    elif type_id == F16:
        values, result = raw.view(np.float16).astype(np.float32), F32
    else:
        values, result = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32), F32
    out = zeros((values.nbytes,), np.uint8)
    out[:] = values.view(np.uint8)
    return out, result
