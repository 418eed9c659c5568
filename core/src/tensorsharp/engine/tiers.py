"""What lies below the blocks of the pools: host memory, then files. Knows keys and bytes, no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsharp.engine.ramtier import RamTier
from tensorsharp.engine.ssdtier import SsdTier
from tensorsharp.storage.entry import Entry, Head


@dataclass(frozen=True, slots=True)
class TierStats:
    """What a tier holds now, and counters since the start.

    hits: entries that were found. evicted: entries given up to make room. refused: entries that were larger than the tier.
    dropped: entries that were not written, as too many waited. failed: writes that the system refused. deleted: files that
    were torn, changed or foreign. leftovers: unfinished files of a process that was ended.
    """

    entries: int
    nbytes: int
    limit: int
    hits: int
    evicted: int
    refused: int
    dropped: int = 0
    failed: int = 0
    deleted: int = 0
    leftovers: int = 0


class Tiers:
    """An entry is put into the first tier there is, and what that one gives up into the next.

    One that is found below is put into the first again. Nothing is written that a tier already holds. Belongs to one
    thread.
    """

    def __init__(self, ram: RamTier | None = None, ssd: SsdTier | None = None) -> None:
        self.ram = ram
        self.ssd = ssd

    def __contains__(self, key: str) -> bool:
        return (self.ram is not None and key in self.ram) or (self.ssd is not None and key in self.ssd)

    def put(self, entry: Entry, *, wait: bool = False) -> None:
        """Keep an entry. With `wait` it is written even if that takes its time."""
        for below in [entry] if self.ram is None else self.ram.put(entry):
            self._lower(below, wait=wait)

    def get(self, head: Head) -> bytes | None:
        """The payload of the entry for `head`. None if no tier has it, whole and with these tokens."""
        found = None if self.ram is None else self.ram.get(head)
        if found is None and self.ssd is not None:
            found = self.ssd.get(head)
            if found is not None and self.ram is not None:
                self.put(Entry(head, found))
        return found

    def touch(self, key: str) -> bool:
        """Count an entry as just used. Whether some tier has it."""
        if self.ram is not None and key in self.ram:
            self.ram.touch(key)
            return True
        if self.ssd is not None and key in self.ssd:
            self.ssd.touch(key)
            return True
        return False

    def drop(self, key: str) -> None:
        """Keep the entry of that key no longer, wherever it is."""
        for tier in (self.ram, self.ssd):
            if tier is not None:
                tier.drop(key)

    def persist(self) -> None:
        """Write down what only memory holds, the longest unused first."""
        for entry in [] if self.ram is None else self.ram.entries():
            self._lower(entry, wait=True)

    def stats(self) -> dict[str, TierStats]:
        """By name of the tier: "ram", "ssd"."""
        found = {}
        if self.ram is not None:
            ram = self.ram
            found["ram"] = TierStats(len(ram), ram.nbytes, ram.limit, ram.hits, ram.evicted, ram.refused)
        if self.ssd is not None:
            ssd, folder = self.ssd, self.ssd.folder
            found["ssd"] = TierStats(
                len(folder),
                folder.nbytes,
                folder.limit or 0,
                ssd.hits,
                folder.evicted,
                folder.refused,
                ssd.dropped,
                folder.failed,
                folder.deleted,
                folder.leftovers,
            )
        return found

    def check(self) -> None:
        """RuntimeError if the books of a tier do not balance."""
        for tier in (self.ram, self.ssd):
            if tier is not None:
                tier.check()

    def _lower(self, entry: Entry, *, wait: bool) -> None:
        if self.ssd is None:
            return
        if entry.head.key in self.ssd:
            self.ssd.touch(entry.head.key)
        else:
            self.ssd.put(entry, wait=wait)
