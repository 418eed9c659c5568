"""The file format of a piece of cached state, for the SSD tier and for checkpoints.

Little-endian: magic (8 bytes), version (u32), sizes of key, parent and tokens (u32 each) and of the payload (u64); then key
(UTF-8), parent, tokens, payload; then a BLAKE2b checksum (16 bytes) of all before. Nothing may follow.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import BinaryIO

MAGIC = b"TSENTRY\x1a"
VERSION = 1
_HEADER = struct.Struct("<8sIIIIQ")
_CHECKSUM = 16


@dataclass(frozen=True, slots=True)
class Head:
    """What an entry is for. key: its name. parent: key of the prefix before. tokens: int32, little-endian.

    All three are compared on a hit, so what has the same key by chance is not taken for it.
    """

    key: str
    parent: bytes
    tokens: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    head: Head
    payload: bytes

    @property
    def nbytes(self) -> int:
        """Size of its file."""
        head = self.head
        return _HEADER.size + len(head.key.encode()) + len(head.parent) + len(head.tokens) + len(self.payload) + _CHECKSUM


def pack(entry: Entry) -> bytes:
    head, key = entry.head, entry.head.key.encode()
    sizes = (len(key), len(head.parent), len(head.tokens), len(entry.payload))
    data = b"".join((_HEADER.pack(MAGIC, VERSION, *sizes), key, head.parent, head.tokens, entry.payload))
    return data + _digest(data)


def unpack(data: bytes) -> Entry:
    """The inverse of `pack`. ValueError for anything else."""
    key, parent, tokens, payload = _sizes(data[: _HEADER.size], len(data))
    if _digest(memoryview(data)[:-_CHECKSUM]) != data[-_CHECKSUM:]:
        raise ValueError("the checksum does not match")
    start = _HEADER.size + key + parent + tokens
    return Entry(_head(data[_HEADER.size : start], key, parent), data[start : start + payload])


def read_head(file: BinaryIO, size: int) -> Head:
    """The head of an entry in a file of that many bytes; the checksum is not looked at. ValueError if it is none."""
    key, parent, tokens, _ = _sizes(file.read(_HEADER.size), size)
    data = file.read(key + parent + tokens)
    if len(data) != key + parent + tokens:
        raise ValueError("the file ends before the entry does")
    return _head(data, key, parent)


def _sizes(header: bytes, size: int) -> tuple[int, int, int, int]:
    """Sizes of key, parent, tokens and payload, which add up to a file of `size` bytes."""
    if len(header) < _HEADER.size:
        raise ValueError("the file is shorter than a header")
    magic, version, *sizes = _HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise ValueError(f"the file does not begin as an entry of version {VERSION}")
    if _HEADER.size + sum(sizes) + _CHECKSUM != size:
        raise ValueError(f"the file has {size} bytes, which is not what its header says")
    key, parent, tokens, payload = sizes
    return key, parent, tokens, payload


def _head(data: bytes, key: int, parent: int) -> Head:
    return Head(data[:key].decode(), data[key : key + parent], data[key + parent :])


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM).digest()
