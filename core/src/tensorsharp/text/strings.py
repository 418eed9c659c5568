"""A vocabulary's worth of texts as they lie in the file, and finding one among them without building a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError
from tensorsharp.protocols.file import ModelFile

_PREFIX: Final = 8
_KNOWN: Final = 1 << 17
_CROWDED: Final = 64
_WORD: Final = (1 << 64) - 1
# Odd 64-bit constants without structure (from xxHash, https://github.com/Cyan4973/xxHash), one for each part of a text.
_LENGTH, _FIRST, _MIDDLE, _LAST = 0x165667B19E3779F9, 0x9E3779B185EBCA87, 0x27D4EB2F165667C5, 0xC2B2AE3D27D4EB4F
_SHIFT: Final = 29


class Strings:
    """An array of byte strings in one buffer: string i is `data[starts[i]:ends[i]]`.

    data has eight bytes in front of each string that belong to none, as in a GGUF file. starts, ends: int64 [n].
    """

    def __init__(self, data: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        self.data = data
        self.starts = starts
        self.ends = ends

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Strings:
        lengths = np.array([len(text) for text in texts], np.int64)
        ends = np.cumsum(lengths + _PREFIX)
        return cls(b"".join(bytes(_PREFIX) + text for text in texts), ends - lengths, ends)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    def tolist(self) -> list[bytes]:
        data = self.data
        return [data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


def read_strings(file: ModelFile, key: str) -> Strings | None:
    """The string array `key` without decoding it, or None if the file has none. ModelError if it is something else."""
    value: Any = file.metadata.get(key)
    if value is None:
        return None
    if hasattr(value, "raw"):
        return Strings(value.raw.tobytes(), value.starts, value.ends)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(text, str) for text in value):
        raise ModelError(f"{file.path}: '{key}' is {value!r:.100}; expected an array of strings.")
    return Strings.of([text.encode("utf-8", "surrogatepass") for text in value])


class Lookup:
    """Text -> index of the string, the lowest where several are equal.

    A dictionary of a large vocabulary takes longer to build than a prompt to tokenize. This is a hash table made by
    numpy in a fraction of the time: indices sorted by a hash of length and first, middle and last eight bytes. What was
    asked for once is remembered.
    """

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        hashes = _hash_all(strings)
        order = np.argsort(hashes)
        self._sorted = hashes[order]
        self._order = order
        self._shift = 64 - max(len(strings).bit_length(), 1)
        counts = np.bincount((self._sorted >> np.uint64(self._shift)).astype(np.int64), minlength=1 << (64 - self._shift))
        self._slots = np.concatenate([[0], np.cumsum(counts)])
        self._known: dict[bytes, int | None] = {}
        # Only a file made for it puts many texts into one slot.
        self._all = {text: i for i, text in reversed(list(enumerate(strings.tolist())))} if counts.max() > _CROWDED else None

    def get(self, text: bytes) -> int | None:
        """The index, or None if no string is `text`."""
        try:
            return self._known[text]
        except KeyError:
            pass
        found = self._find(text) if self._all is None else self._all.get(text)
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[text] = found
        return found

    def _find(self, text: bytes) -> int | None:
        slot = _hash(text) >> self._shift
        candidates = self._order[self._slots[slot] : self._slots[slot + 1]]
        return min((int(index) for index in candidates if self._strings[index] == text), default=None)

    def twins(self) -> tuple[int, int] | None:
        """Two indices of equal strings, or None if all differ."""
        same = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        seen: dict[bytes, int] = {}
        for place in sorted({*same.tolist(), *(same + 1).tolist()}):
            index = int(self._order[place])
            other = seen.setdefault(self._strings[index], index)
            if other != index:
                return min(index, other), max(index, other)
        return None


def _hash(text: bytes) -> int:
    length = len(text)
    mixed = length * _LENGTH ^ int.from_bytes(text[:8], "little") * _FIRST
    if length > 8:
        mixed ^= int.from_bytes(text[-8:], "little") * _LAST
    if length > 16:
        middle = length // 2 - 4
        mixed ^= int.from_bytes(text[middle : middle + 8], "little") * _MIDDLE
    mixed &= _WORD
    return ((mixed ^ mixed >> _SHIFT) * _LAST) & _WORD


def _hash_all(strings: Strings) -> npt.NDArray[np.uint64]:
    """uint64 [n] the same for all strings at once."""
    starts, ends = strings.starts, strings.ends
    lengths = ends - starts
    padded = np.frombuffer(strings.data + bytes(8), np.uint8)
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    masks = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
    mixed = lengths.astype(np.uint64) * np.uint64(_LENGTH)
    mixed ^= (words[starts] & masks[np.minimum(lengths, 8)]) * np.uint64(_FIRST)
    long = np.flatnonzero(lengths > 8)
    mixed[long] ^= words[ends[long] - 8] * np.uint64(_LAST)
    longer = np.flatnonzero(lengths > 16)
    mixed[longer] ^= words[starts[longer] + lengths[longer] // 2 - 4] * np.uint64(_MIDDLE)
    mixed ^= mixed >> np.uint64(_SHIFT)
    return mixed * np.uint64(_LAST)
