"""Finds the special tokens in a text before anything else looks at it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

WHITE_SPACE: Final = " \t\n\v\f\r"
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
        self._lengths: dict[str, dict[int, int]] = {}
        for text in self._ids:
            counts = self._lengths.setdefault(text[:2], {})
            counts[len(text)] = counts.get(len(text), 0) + 1
        firsts = "".join(sorted({text[0] for text in self._ids}))
        self._firsts = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    @property
    def texts(self) -> Collection[str]:
        return self._ids.keys()

    def split(self, text: str) -> list[Fragment]:
        """Text and tokens in order; the texts are not empty."""
        fragments: list[Fragment] = []
        end = 0
        for start, after, token in self._chosen(text):
            if start > end:
                fragments.append(text[end:start])
            fragments.append(token)
            end = after
        if end < len(text):
            fragments.append(text[end:])
        return fragments

    def _chosen(self, text: str) -> list[tuple[int, int, int]]:
        """Start, end with the white space it swallows, and token, in order of place."""
        taken = bytearray(len(text))
        chosen: list[tuple[int, int, int]] = []
        for special in sorted(self._present(text), key=lambda text: (-len(text.encode()), self._ids[text])):
            token = self._ids[special]
            end = 0
            while (start := text.find(special, end)) >= 0:
                end = start + len(special)
                clash = taken.find(1, start, end)
                if clash >= 0:
                    # Every other place before the end of what is taken would clash as well.
                    end = taken.find(0, clash)
                    if end < 0:
                        break
                    continue
                if token in self._strips:
                    while end < len(text) and not taken[end] and text[end] in WHITE_SPACE:
                        end += 1
                taken[start:end] = b"\1" * (end - start)
                chosen.append((start, end, token))
        return sorted(chosen)

    def _present(self, text: str) -> set[str]:
        """The special texts that occur: a vocabulary has thousands, a text few places where one could begin.

        Lengths of which all texts are found are not looked for any more: runs of white space may be special in every length.
        """
        found: set[str] = set()
        if self._firsts is None:
            return found
        sought: dict[str, dict[int, int]] = {}
        for match in self._firsts.finditer(text):
            start = match.start()
            for key in (text[start], text[start : start + 2]):
                if key not in self._lengths:
                    continue
                if key not in sought:
                    sought[key] = self._lengths[key].copy()
                counts = sought[key]
                for length in tuple(counts):
                    candidate = text[start : start + length]
                    if candidate in self._ids and candidate not in found:
                        found.add(candidate)
                        counts[len(candidate)] -= 1
                        if not counts[len(candidate)]:
                            del counts[len(candidate)]
        return found
