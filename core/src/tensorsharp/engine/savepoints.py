"""What a sequence needs besides blocks to begin after a prefix: its rings and recurrent state, saved at the end of a block.

They cannot be cut where one likes, as blocks can: a prefix is found only up to where they were saved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tensorsharp.engine.prefix import Link


class Saves(Protocol):
    """The part of a state store that is used here."""

    def slot_bytes(self) -> int: ...

    def snapshot(self, tail: int, slot: int) -> bytes: ...

    def restore(self, tail: int, slot: int, data: bytes) -> None: ...


class Savepoints:
    """Saved state by the prefix it belongs to, at most `limit` bytes; the longest unused goes first, to `below` if there is
    such."""

    def __init__(self, store: Saves, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.below: Callable[[Link, bytes], None] | None = None
        self._store = store
        self._saved: OrderedDict[Link, bytes] = OrderedDict()

    def __contains__(self, link: Link) -> bool:
        return link in self._saved

    def __len__(self) -> int:
        return len(self._saved)

    @property
    def fits(self) -> int:
        """How many states there is room for."""
        return self.limit // self._store.slot_bytes()

    def save(self, link: Link, tail: int, slot: int) -> None:
        """Keep the state of that ring and slot as the one after `link`. What is kept already is only used again."""
        if link in self._saved:
            self._saved.move_to_end(link)
            return
        self.put(link, self._store.snapshot(tail, slot))

    def put(self, link: Link, data: bytes) -> None:
        """Keep `data` as the state after `link`, of which none is kept."""
        while self._saved and self.nbytes + len(data) > self.limit:
            oldest, given_up = self._saved.popitem(last=False)
            self.nbytes -= len(given_up)
            if self.below is not None:
                self.below(oldest, given_up)
        if len(data) <= self.limit:
            self._saved[link] = data
            self.nbytes += len(data)

    def touch(self, link: Link) -> None:
        """It was of use, if it is kept."""
        if link in self._saved:
            self._saved.move_to_end(link)

    def load(self, link: Link, tail: int, slot: int) -> None:
        """Put the state after `link` into that ring and slot. KeyError if it is not kept."""
        self._store.restore(tail, slot, self._saved[link])
        self._saved.move_to_end(link)

    def current(self, tail: int, slot: int) -> bytes:
        """The state of that ring and slot."""
        return self._store.snapshot(tail, slot)

    def items(self) -> list[tuple[Link, bytes]]:
        """What is kept, the longest unused first."""
        return list(self._saved.items())

    def drop(self, link: Link) -> None:
        """Keep it no longer, if it is kept."""
        self.nbytes -= len(self._saved.pop(link, b""))

    def check(self) -> None:
        """RuntimeError if the books do not balance."""
        kept = sum(map(len, self._saved.values()))
        if kept != self.nbytes or kept > self.limit:
            raise RuntimeError(f"{kept} bytes are kept, {self.nbytes} are counted, {self.limit} are allowed")
