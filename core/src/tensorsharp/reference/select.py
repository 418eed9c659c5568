"""Choice of the store rows that are worth attending to, by a small scoring attention."""

from __future__ import annotations

import numpy as np

from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.reference.arrays import ascending_sum, dots
from tensorsharp.reference.paging import Index, read_rows
from tensorsharp.state import HostStateStore


def select(
    q: F32,
    w: F32 | None,
    keys: str,
    visible: I32,
    k: int,
    batch: Batch,
    store: HostStateStore,
    *,
    group: int = 1,
    pin_last: bool = False,
    within: I32 | None = None,
    within_group: int = 1,
) -> I32:
    """q [R, Hi, Di], w [R, Hi] or None (ones), visible [R, 2] -> int [R, k], ascending, padded with -1.

    score_i = sum over h, ascending, of w_h * max(0, <q_h, key_i>) for visible i, and i // within_group in `within`
    [R, j] when given. Units are i // group, scored by the maximum of their visible members; `pin_last` gives the newest
    unit +inf. The k best by (score descending, unit ascending).
    """
    out = np.full((len(q), k), -1, np.int32)
    for r in np.flatnonzero(batch.seq >= 0).tolist():
        rows: Index = np.arange(visible[r, 0], visible[r, 1])
        if within is not None:
            rows = rows[np.isin(rows // within_group, within[r][within[r] >= 0])]
        if len(rows) == 0:
            continue
        found = read_rows(store, batch, keys, int(batch.seq[r]), rows)
        chosen = _best(_scores(q[r], None if w is None else w[r], found), rows // group, k, pin_last)
        out[r, : len(chosen)] = chosen
    return out


def _scores(q: F32, w: F32 | None, keys: F32) -> F32:
    """q [Hi, Di], keys [n, Di] -> [n]."""
    x = np.maximum(dots(keys[:, None, :], q), np.float32(0.0))
    return ascending_sum(x if w is None else w * x, 1)


def _best(scores: F32, units: Index, k: int, pin_last: bool) -> Index:
    """The k best units, ascending; equal scores by the lower unit."""
    distinct, first = np.unique(units, return_index=True)
    best = np.maximum.reduceat(scores, first)
    if pin_last:
        best[-1] = np.inf
    return np.sort(distinct[np.lexsort((distinct, -best))[:k]])
