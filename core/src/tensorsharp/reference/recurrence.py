"""State that is carried from row to row: causal convolution, pooling over windows, linear recurrences.

Members of a window are named by position; whether they come from this batch or from the ring changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.reference.arrays import ascending_sum


def _sequences(batch: Batch) -> Iterator[tuple[int, slice]]:
    """(index, batch rows) of every sequence that has rows."""
    for s in range(batch.sequences):
        if batch.length[s] > 0:
            yield s, slice(int(batch.first_row[s]), int(batch.first_row[s] + batch.length[s]))


def _history(x: F32, ring: F32, start: int, back: int) -> F32:
    """[back + rows, w]: positions start-back .. start-1 from the ring, zeros before 0, then the rows themselves."""
    out = np.zeros((back + len(x), x.shape[1]), np.float32)
    for p in range(max(0, start - back), start):
        out[p - start + back] = ring[p % len(ring)]
    out[back:] = x
    return out


def _remember(x: F32, ring: F32, start: int) -> None:
    """The ring takes the newest rows, row p at place p mod its size."""
    for i in range(max(0, len(x) - len(ring)), len(x)):
        ring[(start + i) % len(ring)] = x[i]


def conv(x: F32, tail: F32, weight: F32, bias: F32 | None, dilation: int, batch: Batch) -> F32:
    """x [R, C], tail [sequences, ring, C], weight [C, K], bias [C] -> [R, C]: causal depthwise convolution.

    y(p) = bias + sum over t ascending of weight[:, t] * x(p - (K-1-t)*dilation), earlier rows from the ring, 0 before
    the start. Then the ring takes the rows. Padding rows give zeros.
    """
    taps = weight.shape[1]
    back = (taps - 1) * dilation
    out = np.zeros_like(x)
    for s, rows in _sequences(batch):
        start, ring = int(batch.start[s]), tail[batch.tail_slot[s]]
        line = _history(x[rows], ring, start, back)
        y = np.zeros_like(x[rows]) if bias is None else np.broadcast_to(bias, x[rows].shape)
        for t in range(taps):
            y = y + weight[:, t] * line[t * dilation : t * dilation + len(y)]
        out[rows] = y
        _remember(x[rows], ring, start)
    return out


def pool(x: F32, tail: F32, windows: I32, ratio: int, batch: Batch, *, overlap: bool = False, gated: bool = True) -> F32:
    """x [R, 2C] = [value | gate] (or [R, C] ungated), tail [sequences, ring, x's width], windows [C, 2] -> [windows, D].

    A window that ends at position p has the members p-ratio+1 .. p. Per channel the softmax of the gate over the
    members weights their values, ascending; ungated: the mean. Overlap: 2*ratio members, the older ratio use columns
    0..D-1, the newer D..2D-1, D = C/2; members before position 0 are left out. A missing window gives zeros. Then the
    ring takes the rows.
    """
    columns = x.shape[1] // 2 if gated else x.shape[1]
    depth = columns // 2 if overlap else columns
    back = (2 * ratio if overlap else ratio) - 1
    out = np.zeros((len(windows), depth), np.float32)
    for s, rows in _sequences(batch):
        start, ring = int(batch.start[s]), tail[batch.tail_slot[s]]
        line = _history(x[rows], ring, start, back)
        for c in np.flatnonzero((windows[:, 0] >= rows.start) & (windows[:, 0] < rows.stop)).tolist():
            end = int(windows[c, 0]) - rows.start + back + 1
            left_out = max(0, back - int(batch.pos[windows[c, 0]]))
            members = line[end - back - 1 + left_out : end]
            value, gate = members[:, :columns], members[:, columns:]
            if overlap:
                value = _halves(value, ratio, depth)
                gate = _halves(gate, ratio, depth) if gated else gate
            out[c] = _weighted(value, gate) if gated else ascending_sum(value, 0) / np.float32(len(value))
        _remember(x[rows], ring, start)
    return out


def _halves(members: F32, ratio: int, depth: int) -> F32:
    """The older members' first half of the columns, the newer ones' second half."""
    return np.concatenate([members[:-ratio, :depth], members[-ratio:, depth:]])


def _weighted(value: F32, gate: F32) -> F32:
    e = np.exp(gate - gate.max(axis=0))
    return ascending_sum(e / ascending_sum(e, 0) * value, 0)


def scan(
    q: F32,
    k: F32,
    v: F32,
    g: F32,
    beta: F32,
    slots: F32,
    batch: Batch,
    *,
    delta: bool,
    heads: Literal["tile", "group"],
) -> F32:
    """q, k [R, Hk, Dk], v [R, H, Dv], g [R, H] or [R, H, Dk], beta [R, H], slots [slots, H, Dk, Dv] -> [R, H, Dv].

    State S [H, Dk, Dv], zero at the start; per row in order: S = exp(g)*S; u = v - S'k if delta else v; S += k (x)
    (beta*u); out = S'q. Key head of h: h % Hk (tile) or h // (H/Hk) (group). Gated delta rule: Yang et al., arXiv
    2412.06464; without delta, Mamba-2: Dao and Gu, arXiv 2405.21060. Reads `slot_in` (-1: zero), writes the state
    after row r to `slot_out[r]` where that is >= 0.
    """
    value_heads, key_heads = v.shape[1], q.shape[1]
    h = np.arange(value_heads)
    key_head = h % key_heads if heads == "tile" else h // (value_heads // key_heads)
    decay = np.exp(g if g.ndim == 3 else g[:, :, None])
    out = np.zeros_like(v)
    for s, rows in _sequences(batch):
        read = int(batch.slot_in[s])
        state = slots[read].copy() if read >= 0 else np.zeros(slots.shape[1:], np.float32)
        for r in range(rows.start, rows.stop):
            key, query = k[r, key_head][:, :, None], q[r, key_head][:, :, None]
            state = decay[r][:, :, None] * state
            u = v[r] - ascending_sum(state * key, 1) if delta else v[r]
            state = state + key * (beta[r][:, None] * u)[:, None, :]
            out[r] = ascending_sum(state * query, 1)
            if batch.slot_out[r] >= 0:
                slots[batch.slot_out[r]] = state
    return out
