"""A model that is on this machine, found by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """name: what to call it by. quant: its quantisation, if the file's name tells. paths: its parts in order.
    projector: the file for images, or None. size: bytes of all of them. modified: when the newest of them was written.
    digest: SHA-256 of the first part in hexadecimal, where it is known without reading the file."""

    name: str
    quant: str | None
    paths: tuple[Path, ...]
    projector: Path | None
    size: int
    modified: datetime
    digest: str | None

    @property
    def path(self) -> Path:
        """What to open: the first part."""
        return self.paths[0]

    @property
    def files(self) -> tuple[Path, ...]:
        """All parts, and the projector."""
        return self.paths if self.projector is None else (*self.paths, self.projector)


def entry(name: str, quant: str | None, paths: Sequence[Path], projector: Path | None = None, digest: str | None = None) -> Entry:
    """An entry with what the file system says of its files. OSError if one is not there."""
    facts = [path.stat() for path in (*paths, *([] if projector is None else [projector]))]
    newest = datetime.fromtimestamp(max(fact.st_mtime for fact in facts), UTC)
    return Entry(name, quant, tuple(paths), projector, sum(fact.st_size for fact in facts), newest, digest)
