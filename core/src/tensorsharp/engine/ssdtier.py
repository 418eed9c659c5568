"""Cached state in files: written in the background, read at once."""

from __future__ import annotations

import threading
from functools import partial

from tensorsharp.engine.background import Background
from tensorsharp.storage.entry import Entry, Head
from tensorsharp.storage.folder import EntryFolder


class SsdTier:
    """A folder of entries, whose names are their keys, and those on their way into it, which are found too.

    hits: entries that were found. dropped: entries that were not taken, as the queue was full.
    """

    def __init__(self, folder: EntryFolder, background: Background) -> None:
        self.folder = folder
        self.hits = self.dropped = 0
        self._background = background
        self._lock = threading.Lock()
        self._pending: dict[str, Entry] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._pending or key in self.folder

    def put(self, entry: Entry, *, wait: bool = False) -> None:
        """Write an entry soon. It is dropped if too much is waiting already; with `wait`, this waits instead."""
        key = entry.head.key
        with self._lock:
            self._pending[key] = entry
        if not self._background.submit(entry.nbytes, partial(self._write, entry), wait=wait):
            self.dropped += 1
            self._done(entry)

    def get(self, head: Head) -> bytes | None:
        """The payload of the entry for `head`, which counts as just used."""
        with self._lock:
            entry = self._pending.get(head.key)
        if entry is not None:
            payload = entry.payload if entry.head == head else None
        else:
            payload = self.folder.read(head.key, head) if head.key in self.folder else None
        if payload is not None:
            self.hits += 1
        return payload

    def touch(self, key: str) -> None:
        """Count an entry that is there as just used."""
        self.folder.touch(key)

    def drop(self, key: str) -> None:
        """Keep the entry of that key no longer, if it is there or on its way."""
        with self._lock:
            self._pending.pop(key, None)
            self.folder.drop(key)

    def check(self) -> None:
        """RuntimeError if the books of the folder or of the queue do not balance."""
        self.folder.check()
        self._background.check()

    def _write(self, entry: Entry) -> None:
        key = entry.head.key
        if self._pending.get(key) is entry:
            self.folder.write(key, entry)
        with self._lock:
            if key not in self._pending:  # dropped while it was written
                self.folder.drop(key)
        self._done(entry)

    def _done(self, entry: Entry) -> None:
        with self._lock:
            if self._pending.get(entry.head.key) is entry:
                del self._pending[entry.head.key]
