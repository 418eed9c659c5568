"""Which tokens lie where in the text that they were made from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Final

from tensorsharp.protocols.tokenizer import Tokenizer

_UNSHOWN: Final = 8
"""Bytes of a text that no token shows: white space that is dropped behind control tokens, or what no token stands for."""


def shown(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes that a token stands for, or the text of a control token."""
    return tokenizer.bytes_of(token) or tokenizer.piece(token).encode()


def tokens_before(tokenizer: Tokenizer, text: str, ids: Sequence[int], marks: Sequence[int]) -> list[int]:
    """How many tokens end at or before each of these characters of the text, ascending: one that goes across is not counted.

    0 for the beginning of the text, and for characters up to which the tokens cannot be followed. One pass, nothing is tokenized.
    """
    ends = _ends(tokenizer, _bytes(text), ids)
    places = accumulate(len(_bytes(text[a:b])) for a, b in pairwise([0, *marks]))
    return [bisect_right(ends, place) if 0 < place <= ends[-1] else 0 for place in places] if ends else [0] * len(marks)


def _ends(tokenizer: Tokenizer, data: bytes, ids: Sequence[int]) -> list[int]:
    """Behind how many bytes of the text each token ends. One that cannot be seen there is taken as empty."""
    bytes_of = cache(lambda token: shown(tokenizer, token))
    at, ends = 0, []
    for number, token in enumerate(ids):
        seen = bytes_of(token)
        if not data.startswith(seen, at):
            seen = seen.removeprefix(b" ")  # a space that the tokenizer puts in front is not in the text
            # a control token is in the text, unless the tokenizer begins with it, so what was lost is found again there
            anchor = number > 0 and not tokenizer.bytes_of(token)
            found = data.find(seen, at, len(data) if anchor else at + len(seen) + _UNSHOWN)
            at, seen = (at, b"") if found < 0 else (found, seen)
        at += len(seen)
        ends.append(at)
    return ends


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
