"""Cached state in host memory."""

from __future__ import annotations

from collections import OrderedDict

from tensorsharp.storage.entry import Entry, Head


class RamTier:
    """Entries by their key, at most `limit` bytes as the file format counts them; the longest unused is given up first.

    hits: entries that were found. refused: entries larger than `limit`. Belongs to one thread.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.hits = self.refused = self.evicted = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def put(self, entry: Entry) -> list[Entry]:
        """Keep an entry, in the place of one of its key. What was given up for it; the entry itself if it is too large."""
        self.drop(entry.head.key)
        if entry.nbytes > self.limit:
            self.refused += 1
            return [entry]
        given_up = []
        while self.nbytes + entry.nbytes > self.limit:
            _, oldest = self._entries.popitem(last=False)
            self.nbytes -= oldest.nbytes
            self.evicted += 1
            given_up.append(oldest)
        self._entries[entry.head.key] = entry
        self.nbytes += entry.nbytes
        return given_up

    def get(self, head: Head) -> bytes | None:
        """The payload of the entry for `head`, which counts as just used."""
        entry = self._entries.get(head.key)
        if entry is None or entry.head != head:
            return None
        self.hits += 1
        self._entries.move_to_end(head.key)
        return entry.payload

    def touch(self, key: str) -> None:
        """Count an entry that is there as just used."""
        self._entries.move_to_end(key)

    def drop(self, key: str) -> None:
        """Keep the entry of that key no longer, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.nbytes

    def entries(self) -> list[Entry]:
        """The longest unused first."""
        return list(self._entries.values())

    def check(self) -> None:
        """RuntimeError if the books do not balance, or the limit is broken."""
        kept = sum(entry.nbytes for entry in self._entries.values())
        if kept != self.nbytes or kept > self.limit:
            raise RuntimeError(f"{kept} bytes are kept, {self.nbytes} are counted, {self.limit} are allowed")
