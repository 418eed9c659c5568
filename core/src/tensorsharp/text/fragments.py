"""Finds the special tokens in a text before anything else looks at it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

WHITE_SPACE: Final = frozenset(" \t\n\v\f\r")
Fragment = str | int
"""Text that is still to be tokenized, or a token."""


class SpecialTokens:
    """Cuts texts at the texts of special tokens, as llama.cpp does: not from left to right, but longest token first, each
    wherever it occurs in what the longer ones left; of equally long ones (in bytes) the lowest id.

    strips: tokens that swallow the white space after them.
    """

    def __init__(self, tokens: Iterable[tuple[str, int]], strips: frozenset[int] = frozenset()) -> None:
        self._ids = dict(tokens)
        self._strips = strips
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: tuple(sorted(found)) for first, found in lengths.items()}
        self._firsts = re.compile(f"[{re.escape(''.join(lengths))}]") if lengths else None

    def split(self, text: str) -> list[Fragment]:
        """Text and tokens in order; the texts are not empty."""
        fragments: list[Fragment] = [text] if text else []
        for special in sorted(self._present(text), key=lambda text: (-len(text.encode()), self._ids[text])):
            token = self._ids[special]
            fragments = [part for fragment in fragments for part in self._cut(fragment, special, token)]
        return fragments

    def _present(self, text: str) -> set[str]:
        """The special texts that occur: a vocabulary has thousands, a text few places where one could begin."""
        if self._firsts is None:
            return set()
        found = set()
        for match in self._firsts.finditer(text):
            start = match.start()
            for length in self._lengths[match.group()]:
                candidate = text[start : start + length]
                if candidate in self._ids:
                    found.add(candidate)
        return found

    def _cut(self, fragment: Fragment, special: str, token: int) -> Iterator[Fragment]:
        if isinstance(fragment, int):
            yield fragment
            return
        start = 0
        while (at := fragment.find(special, start)) >= 0:
            if at > start:
                yield fragment[start:at]
            yield token
            start = at + len(special)
            while token in self._strips and fragment[start : start + 1] in WHITE_SPACE:
                start += 1
        if start < len(fragment):
            yield fragment[start:]
