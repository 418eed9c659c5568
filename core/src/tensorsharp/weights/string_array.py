"""An array of strings that stays in the file until somebody reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt


class StringArray(Sequence[str]):
    """A vocabulary's worth of strings as one buffer and two offset arrays.

    raw: uint8 [bytes], a view of the file. starts, ends: int64 [n]; string i is `raw[starts[i]:ends[i]]`, UTF-8.
    Bytes that are not UTF-8 become U+FFFD in the `str`; `raw` keeps them.
    """

    __slots__ = ("ends", "raw", "starts")

    def __init__(self, raw: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        self.raw = raw
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> StringArray: ...

    def __getitem__(self, index: int | slice) -> str | StringArray:
        """String `index`, or for a slice a StringArray over the same buffer. IndexError out of range."""
        if isinstance(index, slice):
            return StringArray(self.raw, self.starts[index], self.ends[index])
        return str(self.raw[self.starts[index] : self.ends[index]].tobytes(), "utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All strings; several times faster than indexing one by one."""
        if not len(self.starts):
            return []
        # One copy of the span these strings lie in: slicing bytes is far cheaper than slicing an array.
        low, high = int(self.starts.min()), int(self.ends.max())
        data = self.raw[low:high].tobytes()
        spans = zip((self.starts - low).tolist(), (self.ends - low).tolist(), strict=True)
        return [str(data[start:end], "utf-8", "replace") for start, end in spans]

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:3])
        return f"StringArray({len(self)}: [{shown}{', …' if len(self) > 3 else ''}])"
