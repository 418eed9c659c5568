"""Prefix checkpoints as files in a folder."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from tensorsharp.protocols.batch import I32
from tensorsharp.protocols.checkpoint import Checkpoint, CheckpointOptions
from tensorsharp.storage.entry import Entry, Head
from tensorsharp.storage.folder import EntryFolder

logger = logging.getLogger(__name__)

_FOUND = "-found"
"""Ends the name of an entry that a prompt began with."""


class FileCheckpointStore:
    """One file a checkpoint; implements :class:`tensorsharp.protocols.checkpoint.IPrefixCheckpointStore`.

    Their heads are read each time, as they are few and other processes may add some. The name of one that was found once says
    so, for later processes too: those that never were are given up first, so that prompts of which each is asked once cannot
    drive out the one that all others begin with.
    """

    def __init__(self, options: CheckpointOptions) -> None:
        self.folder = EntryFolder(options.folder, entries=options.kept, spared=_was_found)

    def open(self, key: str, tokens: I32) -> Checkpoint | None:
        wanted = _bytes(tokens)
        self.folder.refresh()
        found: tuple[str, Head] | None = None
        for name in self.folder.names():
            head = self.folder.head(name)
            if head is None or head.key != key or not _begins(wanted, head.tokens):
                continue
            if found is None or len(head.tokens) > len(found[1].tokens):
                found = name, head
        if found is None:
            return None
        name, head = found
        if not _was_found(name) and self.folder.rename(name, name + _FOUND):
            name += _FOUND
        self.folder.touch(name)
        return Checkpoint(len(head.tokens) // 4, partial(self.folder.read, name, head))

    def save(self, key: str, tokens: I32, write: Callable[[BinaryIO], object]) -> bool:
        head = Head(key, b"", _bytes(tokens))
        try:
            payload = io.BytesIO()
            write(payload)
            name = _name(head)
            return self.folder.write(name + _FOUND if name + _FOUND in self.folder else name, Entry(head, payload.getvalue()))
        except Exception:  # a checkpoint that cannot be saved must not end what is computed
            logger.warning("%s: a checkpoint cannot be saved", self.folder.folder, exc_info=True)
            return False


def _was_found(name: str) -> bool:
    return name.endswith(_FOUND)


def _begins(tokens: bytes, prefix: bytes) -> bool:
    """Whether `prefix` is whole tokens that `tokens` goes on after."""
    return len(prefix) < len(tokens) and len(prefix) % 4 == 0 and tokens.startswith(prefix)


def _bytes(tokens: I32) -> bytes:
    return tokens.astype("<i4", copy=False).tobytes()


def _name(head: Head) -> str:
    return hashlib.blake2b(head.key.encode() + b"\x00" + head.tokens, digest_size=16).hexdigest()
