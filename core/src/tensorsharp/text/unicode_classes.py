"""What kind of character each code point is, for splitting text into words: letters, numbers, marks and so on.

The kinds are those of Unicode 15.1 whatever the Python version, because token ids must not depend on it: Python 3.11
knows Unicode 14.0, 3.14 knows 16.0, and llama.cpp, whose ids are the reference, is built with 15.1. The table beside this
file lists where each run of equal kind starts, as hexadecimal code point and kind, from U+0080 on. It was made from
the `unicodedata2` 15.1.0 package: first letter of the general category for L, N, P, M and S, W for the non-ASCII code
points with the White_Space property, O for all others.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).with_name("unicode_classes.txt")

# What stands for a whole kind once a text is folded. They are no characters of a folded text themselves, as every code
# point from U+0080 on is replaced; white space becomes an ASCII one, so that one class of six covers all of it.
OTHER, NUMBER, LETTER, PUNCTUATION, MARK, SYMBOL = "\xd0", "\xd1", "\xd2", "\xd3", "\xd4", "\xd5"
HAN, HAN_OTHER = "\xd6", "\xd7"
SPACE = "\v"

_STAND_IN: Final = {"O": OTHER, "N": NUMBER, "L": LETTER, "P": PUNCTUATION, "M": MARK, "S": SYMBOL, "W": SPACE}

HAN_RANGES: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)
"""Blocks of Chinese characters: unified ideographs with extensions A to F, and the two compatibility blocks."""


class _Kinds(dict[int, str]):
    """Code point -> stand-in, each worked out when first met; ASCII stands for itself."""

    def __init__(self) -> None:
        super().__init__((code, chr(code)) for code in range(0x80))
        runs = TABLE.read_text("ascii").split()
        self.starts = [int(run[:-1], 16) for run in runs]
        self.kinds = [_STAND_IN[run[-1]] for run in runs]

    def __missing__(self, code: int) -> str:
        kind = self[code] = self.kinds[bisect_right(self.starts, code) - 1]
        return kind


class _HanKinds(dict[int, str]):
    """The same, with Chinese characters as a kind of their own."""

    def __missing__(self, code: int) -> str:
        kind = _kinds()[code]
        if any(low <= code <= high for low, high in HAN_RANGES):
            kind = HAN if kind == LETTER else HAN_OTHER
        self[code] = kind
        return kind


class _Spaces(dict[int, str]):
    """Only white space is folded."""

    def __missing__(self, code: int) -> str:
        kind = self[code] = SPACE if _kinds()[code] == SPACE and code >= 0x80 else chr(code)
        return kind


@cache
def _kinds() -> _Kinds:
    return _Kinds()


@cache
def _han_kinds() -> _HanKinds:
    return _HanKinds()


@cache
def _spaces() -> _Spaces:
    return _Spaces()


def fold(text: str) -> str:
    """`text`, as long, with every non-ASCII character replaced by the stand-in of its kind."""
    return text if text.isascii() else text.translate(_kinds())


def fold_han(text: str) -> str:
    """As :func:`fold`, with Chinese letters as HAN and the rest of their blocks as HAN_OTHER."""
    return text if text.isascii() else text.translate(_han_kinds())


def fold_spaces(text: str) -> str:
    """`text`, as long, with every non-ASCII white space as SPACE and all else as it is."""
    return text if text.isascii() else text.translate(_spaces())
