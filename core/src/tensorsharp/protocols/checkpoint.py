"""Where the state of prompts' beginnings outlives the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from tensorsharp.protocols.batch import I32

KEPT = 4
"""How many checkpoints are kept unless said otherwise."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """folder: where they are kept. kept: how many; those that were never opened are given up first, of these or else of all the
    longest unused."""

    folder: Path
    kept: int = KEPT


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that was found. length: how many tokens it stands for. read: its payload, or None if it turns out unusable."""

    length: int
    read: Callable[[], bytes | None]


class IPrefixCheckpointStore(Protocol):
    """Keeps a bounded number of prefix checkpoints. Constructed with :class:`CheckpointOptions`, ConfigError if those
    cannot be used. Called from several threads.

    key: names everything besides tokens that decides the state: model, arithmetic, KV format, codec. tokens: int32.

    `open` and `save` never raise: an entry that is torn, changed or not of this store is no entry. What `save` has begun
    and not finished, whatever ends the process, is never found by `open`. Several processes may use one folder.
    """

    def open(self, key: str, tokens: I32) -> Checkpoint | None:
        """The longest entry of this key whose tokens are a proper prefix of `tokens`, if there is one. It counts as just used."""
        ...

    def save(self, key: str, tokens: I32, write: Callable[[BinaryIO], object]) -> bool:
        """Keep what `write` writes, in the place of an entry with this key and these tokens. Whether that worked."""
        ...
