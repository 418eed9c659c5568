"""Inputs that a model names while it is written and that core computes from the batch, once per step, on the host.

Each request is a frozen, hashable value: equal requests share one input. ``request.compute(batch)`` is the definition;
its shape depends only on the number of rows R, sequences S and rows wanted W of the (padded) batch, so a compiled
graph can be replayed with other positions and lengths. Padding rows get empty ranges and index -1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from tensorsharp.protocols.batch import F32, I32, Batch

HostFunction = Callable[[I32, I32, I32], npt.NDArray[np.generic]]
"""(tokens [R], previous [R, k], pos [R]) -> [R, ...] int32 or float32; pure."""


class Tensor(Protocol):
    """An opaque handle of a backend. `shape` is row-major; the row dimension is that of the (padded) batch."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Literal["f32", "i32"]: ...


class Request(Protocol):
    """One input of a compiled graph."""

    def compute(self, batch: Batch) -> npt.NDArray[np.generic]: ...


def _row_start(batch: Batch) -> I32:
    """[R] `start` of each row's sequence (0 for padding rows)."""
    return np.where(batch.seq >= 0, batch.start[batch.seq], 0).astype(np.int32)


def _ranges(batch: Batch, lo: npt.NDArray[np.integer] | int, hi: npt.NDArray[np.integer]) -> I32:
    out = np.empty((batch.rows, 2), np.int32)
    out[:, 0] = lo
    out[:, 1] = hi
    out[batch.seq < 0] = 0
    return out


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the batch as it is: tokens, pos, wanted, tail_slot, slot_in, slot_out, rows_in."""

    name: Literal["tokens", "pos", "wanted", "tail_slot", "slot_in", "slot_out", "rows_in"]

    def compute(self, batch: Batch) -> npt.NDArray[np.generic]:
        value: npt.NDArray[np.generic] | None = getattr(batch, self.name)
        if value is None:
            raise ValueError(f"the batch carries no {self.name}")
        return value


@dataclass(frozen=True, slots=True)
class Visible:
    """[R, 2] lo, hi. lo = 0 or max(0, p+1-window); hi = p+1, or with `until="block"` the end of the sequence's rows."""

    window: int | None = None
    until: Literal["row", "block"] = "row"

    def compute(self, batch: Batch) -> I32:
        end = batch.pos + 1
        lo = 0 if self.window is None else np.maximum(0, end - self.window)
        if self.until == "block":
            end = _row_start(batch) + np.where(batch.seq >= 0, batch.length[batch.seq], 0)
        return _ranges(batch, lo, end)


@dataclass(frozen=True, slots=True)
class Before:
    """[R, 2] lo, hi with hi = `start` of the sequence, lo = 0 or max(0, start-(window-1)): the prefix a canvas sees."""

    window: int | None = None

    def compute(self, batch: Batch) -> I32:
        hi = _row_start(batch)
        lo = 0 if self.window is None else np.maximum(0, hi - (self.window - 1))
        return _ranges(batch, lo, hi)


@dataclass(frozen=True, slots=True)
class Local:
    """[R, 2] batch-row range of the row's own sequence, for batch-local sources."""

    def compute(self, batch: Batch) -> I32:
        first = batch.first_row[batch.seq]
        return _ranges(batch, first, first + batch.length[batch.seq])


@dataclass(frozen=True, slots=True)
class Strided:
    """[R, 2] = 0, (p+1)//ratio: the complete groups of `ratio` rows."""

    ratio: int

    def compute(self, batch: Batch) -> I32:
        return _ranges(batch, 0, (batch.pos + 1) // self.ratio)


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """[R, 2] = ratio*((p+1)//ratio), p+1: the incomplete group at the end."""

    ratio: int

    def compute(self, batch: Batch) -> I32:
        end = batch.pos + 1
        return _ranges(batch, self.ratio * (end // self.ratio), end)


@dataclass(frozen=True, slots=True)
class Windows:
    """[C, 2] rows and indices of the windows that this batch completes, C = R//ratio + S; the rest is -1.

    A batch row at position p with (p+1) % ratio == 0 completes window (p+1)//ratio - 1.
    """

    ratio: int

    def count(self, rows: int, sequences: int) -> int:
        return rows // self.ratio + sequences

    def compute(self, batch: Batch) -> I32:
        end = batch.pos + 1
        rows = np.flatnonzero((batch.seq >= 0) & (end % self.ratio == 0)).astype(np.int32)
        out = np.full((self.count(batch.rows, batch.sequences), 2), -1, np.int32)
        out[: len(rows), 0] = rows
        out[: len(rows), 1] = end[rows] // self.ratio - 1
        return out


@dataclass(frozen=True, slots=True)
class Phase:
    """[R] p % ratio."""

    ratio: int

    def compute(self, batch: Batch) -> I32:
        return np.where(batch.seq >= 0, batch.pos % self.ratio, 0).astype(np.int32)


@dataclass(frozen=True, slots=True)
class HostInput:
    """A model's own pure function of (tokens, the k previous tokens of each row, pos). `width` is its trailing shape."""

    name: str
    fn: HostFunction
    history: int = 0
    width: tuple[int, ...] = ()
    dtype: Literal["i32", "f32"] = "i32"

    def compute(self, batch: Batch) -> npt.NDArray[np.generic]:
        previous = batch.previous[:, batch.previous.shape[1] - self.history :] if self.history else batch.previous[:, :0]
        out = self.fn(batch.tokens, previous, batch.pos)
        return np.ascontiguousarray(out, np.int32 if self.dtype == "i32" else np.float32)


class Rope:
    """Constant rotary data: which elements are rotated, how fast, and in which pairs.

    frequencies [d/2] float64: inverse frequencies with base, scaling and factors folded in. style: ``"norm"`` rotates
    pairs (2i, 2i+1), ``"neox"`` pairs (i, i+d/2), both on elements offset .. offset+d-1 of a head. magnitude multiplies
    cos and sin. axes [d/2]: rotary coordinate of each frequency (all 0 for text). Equal contents compare equal.
    """

    __slots__ = ("_many", "axes", "frequencies", "key", "magnitude", "offset", "style")

    def __init__(
        self,
        frequencies: npt.ArrayLike,
        *,
        style: Literal["norm", "neox"],
        magnitude: float = 1.0,
        offset: int = 0,
        axes: npt.ArrayLike | None = None,
    ) -> None:
        self.frequencies = np.asarray(frequencies, np.float64)
        self.style: Literal["norm", "neox"] = style
        self.magnitude = float(magnitude)
        self.offset = offset
        self.axes = np.zeros(len(self.frequencies), np.int64) if axes is None else np.asarray(axes, np.int64)
        self._many = bool(self.axes.any())
        self.key = (self.frequencies.tobytes(), style, self.magnitude, offset, self.axes.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rope) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def dims(self) -> int:
        """Number of rotated elements of a head."""
        return 2 * len(self.frequencies)

    def table(self, coordinates: npt.NDArray[np.integer]) -> F32:
        """[N, A] coordinates -> [N, d/2, 2] cos, sin; the angle is exact float64, rounded to float32 once."""
        angle = (coordinates[:, self.axes] if self._many else coordinates[:, :1]) * self.frequencies
        out = np.empty((*angle.shape, 2), np.float32)
        out[..., 0] = np.cos(angle) * self.magnitude
        out[..., 1] = np.sin(angle) * self.magnitude
        return out


@dataclass(frozen=True, slots=True)
class Angles:
    """[R, d/2, 2] (or [C, d/2, 2] at the first row of each completed window): cos and sin of a :class:`Rope`."""

    rope: Rope
    windows: Windows | None = None

    def compute(self, batch: Batch) -> F32:
        if self.windows is None:
            at = batch.pos[:, None] if batch.rope_pos is None else batch.rope_pos
            return self.rope.table(at)
        found = self.windows.compute(batch)
        first = np.maximum(found[:, 1], 0) * self.windows.ratio
        if batch.rope_pos is None:
            return self.rope.table(first[:, None])
        rows = found[:, 0] - (self.windows.ratio - 1)
        if np.any((found[:, 0] >= 0) & (rows < 0)):
            raise ValueError("a window that began in an earlier step has no rotary coordinate in this batch")
        return self.rope.table(batch.rope_pos[np.maximum(rows, 0)])


class ModelBatch:
    """The batch as a model sees it while it is written: names of inputs, no values.

    declare: given by the backend; turns a request into the backend's handle, the same handle for equal requests.
    mode: which of the model's graphs is being written.
    """

    def __init__(self, declare: Callable[[Request], Tensor], mode: str = "causal") -> None:
        self._declare = declare
        self.mode = mode

    @property
    def tokens(self) -> Tensor:
        """[R] int32."""
        return self._declare(Field("tokens"))

    @property
    def wanted(self) -> Tensor:
        """[W] int32 rows whose logits are wanted."""
        return self._declare(Field("wanted"))

    @property
    def rows_in(self) -> Tensor:
        """[R, m] float32 rows that come with the batch."""
        return self._declare(Field("rows_in"))

    def visible(self, window: int | None = None, until: Literal["row", "block"] = "row") -> Tensor:
        return self._declare(Visible(window, until))

    def before(self, window: int | None = None) -> Tensor:
        return self._declare(Before(window))

    def local(self) -> Tensor:
        return self._declare(Local())

    def strided(self, ratio: int) -> Tensor:
        return self._declare(Strided(ratio))

    def open_group(self, ratio: int) -> Tensor:
        return self._declare(OpenGroup(ratio))

    def windows(self, ratio: int) -> Tensor:
        """[C, 2]; hand it to `store(at=...)` and `pool`."""
        return self._declare(Windows(ratio))

    def phase(self, ratio: int) -> Tensor:
        return self._declare(Phase(ratio))

    def angles(self, rope: Rope, *, windows: int | None = None) -> Tensor:
        """[R, d/2, 2], or with `windows` = ratio the angles at each completed window's first row."""
        return self._declare(Angles(rope, None if windows is None else Windows(windows)))

    def host(
        self,
        name: str,
        fn: HostFunction,
        *,
        history: int = 0,
        width: tuple[int, ...] = (),
        dtype: Literal["i32", "f32"] = "i32",
    ) -> Tensor:
        return self._declare(HostInput(name, fn, history, width, dtype))
