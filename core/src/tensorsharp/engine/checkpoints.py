"""Prefix checkpoints: the complete state at the end of a prompt's beginning that others share, kept beyond the process.

A checkpoint's payload is the entries that tiers would hold of it: every block that a later row can see, and the recurrent
state. Each stands after its size (u64, little-endian).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from tensorsharp.engine.background import Background
from tensorsharp.engine.content import Content
from tensorsharp.protocols.batch import I32
from tensorsharp.protocols.checkpoint import IPrefixCheckpointStore
from tensorsharp.storage.entry import Entry, pack, unpack

logger = logging.getLogger(__name__)

_SIZE = 8


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """Counters since the start. unusable: found, but not to be read. dropped: not saved, as others were being saved."""

    saved: int
    restored: int
    unusable: int
    dropped: int


class Checkpoints:
    """Saves in the background, restores at once; raises nothing. Belongs to one thread."""

    def __init__(self, store: IPrefixCheckpointStore) -> None:
        self._store = store
        self._background = Background()
        self._saved = self._restored = self._unusable = 0

    def save(self, key: str, tokens: I32, contents: Sequence[Content]) -> None:
        """Keep the state after `tokens`, soon."""
        kept = tokens.copy()
        self._background.submit(sum(content.nbytes for content in contents), lambda: self._save(key, kept, contents))

    def restore(self, key: str, tokens: I32, longer: int) -> list[Entry]:
        """The entries of the longest checkpoint of which `tokens` are a continuation, if it has more than `longer` tokens."""
        try:
            found = self._store.open(key, tokens)
            if found is None or found.length <= longer:
                return []
            payload = found.read()
            entries = [] if payload is None else parse(payload)
        except Exception as error:  # whatever a store raises or gives, the prefix can be computed
            logger.warning("A checkpoint cannot be read: %s", error)
            entries = []
        if entries:
            self._restored += 1
        else:
            self._unusable += 1
        return entries

    def stats(self) -> CheckpointStats:
        return CheckpointStats(self._saved, self._restored, self._unusable, self._background.dropped)

    def check(self) -> None:
        """RuntimeError if the books of the queue do not balance."""
        self._background.check()

    def close(self) -> None:
        """Save what is waiting. Idempotent."""
        self._background.close()

    def _save(self, key: str, tokens: I32, contents: Sequence[Content]) -> None:
        def write(file: BinaryIO) -> None:
            for content in contents:
                data = pack(content.entry())
                file.write(len(data).to_bytes(_SIZE, "little"))
                file.write(data)

        if self._store.save(key, tokens, write):
            self._saved += 1


def parse(payload: bytes) -> list[Entry]:
    """The entries of a payload. ValueError if it is none."""
    entries, start = [], 0
    while start < len(payload):
        stop = start + _SIZE + int.from_bytes(payload[start : start + _SIZE], "little")
        if stop > len(payload):
            raise ValueError("the payload ends inside an entry")
        entries.append(unpack(payload[start + _SIZE : stop]))
        start = stop
    return entries
