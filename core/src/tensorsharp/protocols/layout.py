"""The three kinds of state a model can declare, as data.

A model's ``layout()`` maps a name to one of these. Nothing here names a family, and no kind depends on a context
length: how many blocks and slots exist is the engine's decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Format = Literal["f16", "bf16", "f32"]
"""Element type of a paged row as it is stored. Rows are converted once, when they are written."""

FORMAT_BYTES: Mapping[str, int] = {"f16": 2, "bf16": 2, "f32": 4}


@dataclass(frozen=True, slots=True)
class Paged:
    """Append-only rows in blocks. Row i covers stream positions i*stride .. i*stride+stride-1.

    width: elements of one row. window: only the last `window` positions are ever read (None: all).
    """

    width: int
    format: Format = "f16"
    stride: int = 1
    window: int | None = None

    @property
    def row_bytes(self) -> int:
        return self.width * FORMAT_BYTES[self.format]


@dataclass(frozen=True, slots=True)
class Tail:
    """Ring of the newest rows of a sequence, float32. `need`: how many rows back a later row can reach."""

    width: int
    need: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Recurrent state of a sequence, float32, not rewindable; one array of `shape` per copy."""

    shape: tuple[int, ...]


State = Paged | Tail | Slot
Layout = Mapping[str, State]


def block_groups(layout: Layout) -> tuple[int | None, ...]:
    """The block groups of a layout: every distinct `window` of its paged stores, None (full retention) first.

    All paged stores of a group share one block table and one pool of block ids.
    """
    windows = {s.window for s in layout.values() if isinstance(s, Paged)}
    return tuple(sorted(windows, key=lambda w: -1 if w is None else w))
