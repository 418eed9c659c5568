"""What was replied to which prompt, as the ids that the model made: the same text may be cut into other tokens."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

MOST_TOKENS: Final = 1 << 18
"""Of all replies that are remembered: some hundreds, in about two megabytes."""
_BESIDES: Final = 64
"""What an entry counts besides its ids, in tokens."""


@dataclass(frozen=True, slots=True)
class Said:
    """A remembered reply in a text: characters start .. end-1, and its ids."""

    start: int
    end: int
    ids: list[int]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A reply: who may know it, the length and a digest of its prompt, and its text."""

    scope: str | None
    length: int
    prompt: bytes
    text: str


class Replies:
    """Remembers at most `most` tokens; what was not used for longest is forgotten first. Thread-safe.

    A reply is found again only behind the very text that it replied to: there it cannot be taken for something else that
    reads the same, and there its state may still be.
    """

    def __init__(self, most: int = MOST_TOKENS) -> None:
        self._most = most
        self._count = 0
        self._known: OrderedDict[_Entry, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, scope: str | None, prompt: str, text: str, ids: Sequence[int]) -> None:
        """A reply to `prompt`, whole. Only requests of the same scope find it."""
        entry = _Entry(scope, len(prompt), _digest(prompt), text)
        with self._lock:
            self._forget(entry)
            self._known[entry] = array("i", ids)
            self._count += len(ids) + _BESIDES
            while self._count > self._most:
                self._forget(next(iter(self._known)))

    def find(self, scope: str | None, text: str) -> list[Said]:
        """The remembered replies in a text, in order. Of several at one place the longest."""
        found: dict[int, _Entry] = {}
        with self._lock:
            for entry in self._known:
                if entry.scope != scope or not text.startswith(entry.text, entry.length):
                    continue
                best = found.get(entry.length)
                longer = best is None or len(best.text) < len(entry.text)
                if longer and entry.prompt == _digest(text[: entry.length]):
                    found[entry.length] = entry
            said: list[Said] = []
            for entry in sorted(found.values(), key=lambda e: e.length):
                self._known.move_to_end(entry)
                if not said or said[-1].end <= entry.length:
                    said.append(Said(entry.length, entry.length + len(entry.text), self._known[entry].tolist()))
        return said

    def _forget(self, entry: _Entry) -> None:
        ids = self._known.pop(entry, None)
        if ids is not None:
            self._count -= len(ids) + _BESIDES


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
