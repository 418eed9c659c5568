"""Writes a copy of a GGUF file with every tensor in float32: the same model without quantisation error in its products.

    python -m tests.oracle.dequantised MODEL.gguf COPY.gguf

Metadata is copied byte for byte; values come from the public `gguf` package, so that the copy checks our dequantisation
instead of repeating it. Layout of the file: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
import numpy.typing as npt

from tests.realmodels import copies

_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_F32 = 0
_PIECE = 1 << 22
"""Elements that are converted at a time, so that a large embedding needs no second copy in memory."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: bytes
    dims: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    offset: int

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        return int(self.elements // per_block * block_bytes)


class _Header:
    """The parts of a header: `kv`, the bytes of all metadata entries, and the tensors."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self._data = data
        self._at = 4
        self.version, tensors, self.kv_count = self._take("<IQQ")
        begin = self._at
        self.alignment = 32
        for _ in range(self.kv_count):
            self._entry()
        self.kv = bytes(data[begin : self._at])
        self.tensors = [self._tensor() for _ in range(tensors)]
        self.data_start = _aligned(self._at, self.alignment)

    def _take(self, form: str) -> tuple[int, ...]:
        size = struct.calcsize(form)
        values = struct.unpack(form, bytes(self._data[self._at : self._at + size]))
        self._at += size
        return values

    def _string(self) -> bytes:
        (size,) = self._take("<Q")
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def _skip(self, kind: int) -> None:
        if kind == _STRING:
            (size,) = self._take("<Q")
            self._at += size
        elif kind == _ARRAY:
            inner, count = self._take("<IQ")
            if inner in _SCALAR_BYTES:
                self._at += count * _SCALAR_BYTES[inner]
            else:
                for _ in range(count):
                    self._skip(inner)
        else:
            self._at += _SCALAR_BYTES[kind]

    def _entry(self) -> None:
        key = self._string()
        (kind,) = self._take("<I")
        if key == b"general.alignment":
            (self.alignment,) = self._take("<I")
        else:
            self._skip(kind)

    def _tensor(self) -> _Tensor:
        name = self._string()
        (n,) = self._take("<I")
        dims = self._take(f"<{n}Q")
        kind, offset = self._take("<IQ")
        return _Tensor(name, dims, gguf.GGMLQuantizationType(kind), offset)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _pieces(tensor: _Tensor, raw: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """The tensor's values as float32 bytes, a few million at a time."""
    row = tensor.dims[0]
    row_bytes = tensor.nbytes // (tensor.elements // row)
    rows = max(1, _PIECE // row)
    for at in range(0, tensor.elements // row, rows):
        block = raw[at * row_bytes : (at + rows) * row_bytes].reshape(-1, row_bytes)
        yield np.ascontiguousarray(gguf.quants.dequantize(block, tensor.kind), np.float32).tobytes()


def _write(out: BinaryIO, header: _Header, data: npt.NDArray[np.uint8]) -> None:
    out.write(b"GGUF" + struct.pack("<IQQ", header.version, len(header.tensors), header.kv_count) + header.kv)
    offset = 0
    for tensor in header.tensors:
        out.write(struct.pack("<Q", len(tensor.name)) + tensor.name)
        out.write(struct.pack(f"<I{len(tensor.dims)}QIQ", len(tensor.dims), *tensor.dims, _F32, offset))
        offset = _aligned(offset + 4 * tensor.elements, header.alignment)
    for tensor in header.tensors:
        out.write(bytes(-out.tell() % header.alignment))
        start = header.data_start + tensor.offset
        for piece in _pieces(tensor, data[start : start + tensor.nbytes]):
            out.write(piece)


def dequantise(source: Path, target: Path) -> Path:
    """Write the float32 copy of `source` to `target`, which appears only once it is whole. An existing copy is kept."""
    if target.exists():
        return target
    data: npt.NDArray[np.uint8] = np.memmap(source, np.uint8, "r")
    if bytes(data[:4]) != b"GGUF":
        raise ValueError(f"{source} is not a GGUF file: it does not begin with the four letters GGUF")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as out:
            _write(out, _Header(data), data)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def float32_copy(source: Path) -> Path:
    """The float32 copy of `source` in the tests' cache, made on first use."""
    name = f"{source.stem}-{source.stat().st_size}-float32.gguf"
    return dequantise(source, copies() / name)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tests.oracle.dequantised MODEL.gguf COPY.gguf")
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
