"""Reads the header of one GGUF file from a memory map, trusting nothing in it.

Layout (ggml's docs/gguf.md, versions 2 and 3, little-endian): magic, version u32, tensor count u64, key count u64; the
keys, each name, type u32, value; the tensors, each name, dimension count u32, dimensions u64 with the fastest first,
type u32, offset u64 from the data section; padding to `general.alignment`; the data section. A string is a u64 length
and its bytes; an array is element type u32, count u64, elements.

Every count and length is held against the bytes that are left before anything is allocated or looped over.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, repeat
from math import prod
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError
from tensorsharp.protocols.file import TensorInfo
from tensorsharp.weights.ggml_types import GGML_TYPES, WITHDRAWN_TYPES, GGMLType
from tensorsharp.weights.string_array import StringArray
from tensorsharp.weights.string_scan import string_starts

MetadataValue = bool | int | float | str | npt.NDArray[np.generic] | StringArray

MAX_DIMS = 4
MAX_NAME_BYTES = 65535
MAX_VALUES = 2**60 - 1
DEFAULT_ALIGNMENT = 32
DAMAGED = "The file is cut short or damaged: download it again."
_SMALLEST_KEY = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 4 + 8
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7


@dataclass(frozen=True, slots=True)
class _Scalar:
    name: str
    codec: struct.Struct
    dtype: np.dtype[np.generic]


_SCALARS: Mapping[int, _Scalar] = {
    number: _Scalar(name, struct.Struct(code), np.dtype(code))
    for number, name, code in (
        (0, "u8", "<B"),
        (1, "i8", "<b"),
        (2, "u16", "<H"),
        (3, "i16", "<h"),
        (4, "u32", "<I"),
        (5, "i32", "<i"),
        (6, "f32", "<f"),
        (_BOOL, "bool", "<B"),
        (10, "u64", "<Q"),
        (11, "i64", "<q"),
        (12, "f64", "<d"),
    )
}


@dataclass(frozen=True, slots=True)
class KVItem:
    """One metadata entry as a listing shows it. type_name: "u32", "str", "[f32]", …"""

    key: str
    type_name: str
    value: MetadataValue


@dataclass(frozen=True, slots=True)
class Shard:
    """One parsed file. data: uint8 [bytes], all of it, a view of the mapping. data_start: offset of the data section."""

    path: str
    version: int
    data: npt.NDArray[np.uint8]
    items: tuple[KVItem, ...]
    tensors: tuple[TensorInfo, ...]
    data_start: int

    def get(self, key: str) -> MetadataValue | None:
        return next((item.value for item in self.items if item.key == key), None)


def shown(value: object) -> str:
    """`value` as Python writes it, for a sentence; cut where a file makes it absurdly long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def read_shard(path: str, index: int) -> Shard:
    """Map the file and parse its header; `index` goes into each `TensorInfo.shard`. Raises ModelError."""
    return _Parser(path, _map(path)).parse(index)


def _map(path: str) -> mmap.mmap:
    try:
        mode = os.stat(path).st_mode
        # Opening a pipe would wait for a writer, and a device has no size.
        if not stat.S_ISREG(mode):
            raise ModelError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}; expected a .gguf file.")
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                raise ModelError(f"{path} is empty; expected a GGUF file.", hint=DAMAGED)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; expected a .gguf file.") from None
    except PermissionError:
        raise ModelError(f"{path} cannot be opened: no permission to read it.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error


class _Parser:
    """A cursor over one mapped file. Every method reads at `pos` and moves it, or raises ModelError."""

    def __init__(self, path: str, mapped: mmap.mmap) -> None:
        self.path = path
        self.mapped = mapped
        self.data = np.frombuffer(mapped, dtype=np.uint8)
        self.size = len(mapped)
        self.pos = 0

    def parse(self, index: int) -> Shard:
        version = self._version()
        tensor_count = self._count("tensors", _SMALLEST_TENSOR)
        key_count = self._count("metadata keys", _SMALLEST_KEY)
        items = self._items(key_count)
        alignment = self._alignment(items)
        tensors = self._tensors(tensor_count)
        data_start = -(-self.pos // alignment) * alignment
        placed = [self._place(info, data_start, alignment, index) for info in tensors]
        self._refuse_overlap(placed)
        return Shard(self.path, version, self.data, tuple(items.values()), tuple(placed), data_start)

    def _fail(self, sentence: str, hint: str | None = None) -> NoReturn:
        raise ModelError(f"{self.path}: {sentence}", hint=hint)

    def _need(self, count: int, what: str) -> None:
        if count > self.size - self.pos:
            self._fail(
                f"{what} at byte {self.pos} needs {count} bytes, but the file ends after {self.size - self.pos} more.",
                hint=DAMAGED,
            )

    def _u32(self, what: str) -> int:
        self._need(4, what)
        (value,) = _U32.unpack_from(self.mapped, self.pos)
        self.pos += 4
        return int(value)

    def _u64(self, what: str) -> int:
        self._need(8, what)
        (value,) = _U64.unpack_from(self.mapped, self.pos)
        self.pos += 8
        return int(value)

    def _bytes(self, what: str, limit: int | None = None) -> bytes:
        length = self._u64(f"the length of {what}")
        if limit is not None and length > limit:
            self._fail(f"{what} claims {length} bytes; at most {limit} are allowed.")
        self._need(length, what)
        start = self.pos
        self.pos += length
        return self.mapped[start : self.pos]

    def _name(self, what: str) -> str:
        raw = self._bytes(what, MAX_NAME_BYTES)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            self._fail(f"{what} is {raw[:64]!r}, which is not UTF-8.")
        if not name:
            self._fail(f"{what} is empty.")
        return name

    def _version(self) -> int:
        magic = self.mapped[:4]
        if magic != b"GGUF":
            pointer = self.mapped[:12] == b"version http"
            hint = "This is a Git LFS pointer, not the model: fetch it with `git lfs pull`." if pointer else None
            self._fail(f"starts with {magic!r}; a GGUF file starts with b'GGUF'.", hint)
        self.pos = 4
        version = self._u32("the version")
        if version and not version & 0xFFFF:
            self._fail("is big-endian; only little-endian GGUF files are read.", "Convert it with `gguf-convert-endian`.")
        if version not in (2, 3):
            self._fail(
                f"is GGUF version {version}; versions 2 and 3 are read.", "Convert the model again with a current converter."
            )
        return version

    def _count(self, what: str, smallest: int) -> int:
        count = self._u64(f"the number of {what}")
        if count * smallest > self.size - self.pos:
            self._fail(
                f"claims {count} {what}, which cannot fit in the {self.size - self.pos} bytes that follow.",
                hint=DAMAGED,
            )
        return count

    def _items(self, count: int) -> dict[str, KVItem]:
        items: dict[str, KVItem] = {}
        for number in range(count):
            key = self._name(f"the name of metadata key {number}")
            if key in items:
                self._fail(f"has the metadata key {shown(key)} twice.")
            items[key] = self._item(key)
        return items

    def _item(self, key: str) -> KVItem:
        what = f"the value of {shown(key)}"
        kind = self._u32(f"the type of {shown(key)}")
        if kind == _ARRAY:
            return self._array(key, what)
        if kind == _STRING:
            return KVItem(key, "str", self._bytes(what).decode("utf-8", "replace"))
        scalar = self._scalar(kind, key)
        self._need(scalar.codec.size, what)
        (value,) = scalar.codec.unpack_from(self.mapped, self.pos)
        self.pos += scalar.codec.size
        return KVItem(key, scalar.name, bool(value) if kind == _BOOL else value)

    def _scalar(self, kind: int, key: str) -> _Scalar:
        if kind not in _SCALARS:
            self._fail(f"the metadata key {shown(key)} has the unknown value type {kind}; expected 0 to 12.")
        return _SCALARS[kind]

    def _array(self, key: str, what: str) -> KVItem:
        kind = self._u32(f"the element type of {shown(key)}")
        count = self._u64(f"the element count of {shown(key)}")
        if kind == _ARRAY:
            self._fail(f"the metadata key {shown(key)} is an array of arrays; only arrays of scalars or strings are read.")
        if kind == _STRING:
            return KVItem(key, "[str]", self._strings(count, what))
        scalar = self._scalar(kind, key)
        self._need(count * scalar.dtype.itemsize, f"{what} ({count} elements)")
        values = self.data[self.pos : self.pos + count * scalar.dtype.itemsize].view(scalar.dtype)
        self.pos += count * scalar.dtype.itemsize
        if kind == _BOOL:
            values = values != 0
            values.setflags(write=False)
        return KVItem(key, f"[{scalar.name}]", values)

    def _strings(self, count: int, what: str) -> StringArray:
        self._need(count * 8, f"{what} ({count} strings)")
        first = pos = self.pos
        edges = string_starts(self.data[first:], count)
        if edges is not None:
            self.pos = first + int(edges[-1])
            return StringArray(self.data[first : self.pos], edges[:-1] + 8, edges[1:])
        starts: array[int] = array("q")
        # The loop that opening a 262k vocabulary spends its time in: no method of self, no check but the unpacking's own.
        unpack, data, append = _U64.unpack_from, self.mapped, starts.append
        try:
            for _ in repeat(None, count):
                (length,) = unpack(data, pos)
                pos += 8
                append(pos)
                pos += length
        except (struct.error, OverflowError):
            pass  # The position left the file; what was read so far tells where.
        if len(starts) < count or pos > self.size:
            self._fail(f"{what}: the file ends within string {len(starts) - (pos > self.size)} of {count}.", DAMAGED)
        self.pos = pos
        begin = np.frombuffer(starts, dtype=np.int64) - first
        end = np.append(begin[1:] - 8, pos - first) if count else begin
        return StringArray(self.data[first:pos], begin, end)

    def _alignment(self, items: Mapping[str, KVItem]) -> int:
        item = items.get("general.alignment")
        if item is None:
            return DEFAULT_ALIGNMENT
        value = item.value
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0 or value & (value - 1):
            self._fail(f"'general.alignment' is {shown(value)} ({item.type_name}); expected a power of two.")
        return value

    def _tensors(self, count: int) -> list[TensorInfo]:
        """Tensors as listed, `offset` still relative to the data section."""
        tensors: dict[str, TensorInfo] = {}
        for number in range(count):
            name = self._name(f"the name of tensor {number}")
            if name in tensors:
                self._fail(f"lists the tensor {shown(name)} twice.")
            tensors[name] = self._tensor(name)
        return list(tensors.values())

    def _tensor(self, name: str) -> TensorInfo:
        what = f"tensor {shown(name)}"
        dims = self._u32(f"the dimension count of {what}")
        if dims > MAX_DIMS:
            self._fail(f"{what} has {dims} dimensions; at most {MAX_DIMS} are allowed.")
        shape = tuple(self._u64(f"a dimension of {what}") for _ in range(dims))[::-1]
        kind = self._type(self._u32(f"the type of {what}"), what)
        offset = self._u64(f"the offset of {what}")
        # A zero among the dimensions does not excuse the others: numpy refuses such a shape too.
        if prod(max(dim, 1) for dim in shape) > MAX_VALUES:
            self._fail(f"{what} has the shape {list(shape)}; more than {MAX_VALUES} values cannot be addressed.")
        row = shape[-1] if shape else 1
        if row % kind.block_size:
            self._fail(f"{what} has rows of {row} values, which is not a multiple of {kind.name}'s block of {kind.block_size}.")
        nbytes = prod(shape) // kind.block_size * kind.block_bytes
        return TensorInfo(name, shape, kind.id, kind.name, nbytes, 0, offset)

    def _type(self, number: int, what: str) -> GGMLType:
        if number in WITHDRAWN_TYPES:
            self._fail(
                f"{what} has type {WITHDRAWN_TYPES[number]} ({number}), which ggml has withdrawn.", "Quantise the model again."
            )
        if number not in GGML_TYPES:
            self._fail(f"{what} has the unknown tensor type {number}; known are 0 to {max(GGML_TYPES)}.")
        return GGML_TYPES[number]

    def _place(self, info: TensorInfo, data_start: int, alignment: int, shard: int) -> TensorInfo:
        what = f"tensor {shown(info.name)}"
        if info.offset % alignment:
            self._fail(f"{what} lies at offset {info.offset}, which is not a multiple of the alignment {alignment}.")
        offset = data_start + info.offset
        if offset + info.nbytes > self.size:
            self._fail(
                f"{what} needs bytes {offset} to {offset + info.nbytes}, but the file has {self.size}.",
                hint=DAMAGED,
            )
        return TensorInfo(info.name, info.shape, info.type_id, info.type_name, info.nbytes, shard, offset)

    def _refuse_overlap(self, tensors: list[TensorInfo]) -> None:
        ordered = sorted((info for info in tensors if info.nbytes), key=lambda info: info.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                self._fail(f"the data of tensors {shown(before.name)} and {shown(after.name)} overlap.")
