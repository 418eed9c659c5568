"""How many tokens a text has at least, many times faster than tokenizing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorsharp.text.strings import Strings

_WINDOW: Final = 1 << 16
"""Characters that are looked at together."""
_HEAD: Final = 8
_SHORT_HEAD: Final = 4
_SHORT_MASK: Final = np.uint64((1 << 8 * _SHORT_HEAD) - 1)
_BITS: Final = 18
_FACTOR: Final = np.uint64(0x9E3779B185EBCA87)  # odd and without structure (from xxHash, as in strings.py)


class FewestTokens:
    """A lower bound on the tokens of any text, whatever the rules by which it is cut.

    A token that begins at some byte is no longer than the longest one of the vocabulary with the same first eight bytes (if
    shorter than eight: four, if shorter than four: than three), so each further token ends at the furthest of these ends at
    most. Lengths are kept by a hash of the first bytes: where two share a place, the bound is lower.

    texts: the tokens. spell: the bytes of a text as tokens write them, character by character. free: bytes of that which
    may belong to no token.
    """

    def __init__(self, texts: Iterable[Strings], spell: Callable[[str], bytes], free: bytes) -> None:
        self._spell = spell
        self._short = np.full(1 << _BITS, _SHORT_HEAD - 1, np.int32)
        self._long = np.zeros(1 << _BITS, np.int32)
        self._free = np.isin(np.arange(256), list(free))
        for strings in texts:
            self._add(strings)

    def _add(self, strings: Strings) -> None:
        lengths = (strings.ends - strings.starts).astype(np.int32)
        heads = _heads(strings.data)[strings.starts]
        long, short = lengths >= _HEAD, (lengths >= _SHORT_HEAD) & (lengths < _HEAD)
        np.maximum.at(self._long, _places(heads[long]), lengths[long])
        np.maximum.at(self._short, _places(heads[short] & _SHORT_MASK), lengths[short])

    def count(self, text: str, most: int) -> int:
        """How many tokens the text has at least; what is beyond `most` + 1 is not counted."""
        count = at = far = 0  # `count` tokens end at byte `at` of the window at most, those of earlier windows at `far`
        for start in range(0, len(text), _WINDOW):
            ahead = self._spell(text[start + _WINDOW : start + _WINDOW + _HEAD])
            data = self._spell(text[start : start + _WINDOW]) + ahead
            size = len(data) - len(ahead)
            at, ends = self._ends(data, size, at, far)
            far = ends[-1] - size
            while at < size:
                at = ends[at]
                count += 1
                if count > most:
                    return count
            at -= size
        return count

    def _ends(self, data: bytes, size: int, at: int, far: int) -> tuple[int, list[int]]:
        """(`at` behind free bytes, for each byte the furthest end of a token that begins there or before)."""
        heads = _heads(data)[:size]
        ends = np.arange(size) + np.maximum(self._short[_places(heads & _SHORT_MASK)], self._long[_places(heads)])
        ends[0] = max(ends[0], far)
        free = self._free[np.frombuffer(data, np.uint8, size)]
        if free.any():
            bound = np.append(np.where(free, size, np.arange(size)), size)
            behind = np.minimum.accumulate(bound[::-1])[::-1]
            ends = np.maximum(ends, behind[np.minimum(ends, size)])
            at = max(at, int(behind[min(at, size)]))
        return at, np.maximum.accumulate(ends).tolist()


def _heads(data: bytes) -> npt.NDArray[np.uint64]:
    """uint64 [len(data) + 1] the eight bytes from each place on, zeros behind the last."""
    padded = np.frombuffer(data + bytes(_HEAD), np.uint8)
    return np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))


def _places(heads: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    return (heads * _FACTOR) >> np.uint64(64 - _BITS)
