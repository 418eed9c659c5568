"""Words that were tokenized before: most words of a text occur again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

CACHED_WORDS: Final = 1 << 16
"""Words kept at most; all are forgotten then."""


class Words:
    """Ids of words, each worked out once by `encode` and kept until there are too many."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, words: Iterable[str]) -> list[int]:
        """The words' ids, one behind the other."""
        known = self._known
        out: list[int] = []
        for word in words:
            ids = known.get(word)
            if ids is None:
                ids = tuple(self._encode(word))
                if len(known) >= CACHED_WORDS:
                    known.clear()
                known[word] = ids
            out += ids
        return out
