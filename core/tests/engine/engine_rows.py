"""Rows of logits that a shortcut could trip over."""

from __future__ import annotations

import numpy as np

from tensorsharp.protocols.batch import F32

LARGEST = float(np.finfo(np.float32).max)


def ragged(size: int, seed: int) -> F32:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def awkward(kind: str, size: int, seed: int) -> F32:
    row, rng = ragged(size, seed), np.random.default_rng(seed)
    match kind:
        case "flat":
            row[:] = 7.25
        case "levels":
            row = rng.integers(0, 3, size).astype(np.float32)
        case "ramp":
            row.sort()
        case "peaked":
            row[rng.integers(size)] = 60.0
        case "spikes":  # a high one in every piece, so that no piece can be left out
            row = np.where(np.arange(size) % 997 == 5, np.float32(9.0), row * np.float32(0.01))
        case "mostly impossible":
            row[rng.random(size) < 0.999] = -np.inf
            row[-1] = 0.0
        case "denormal":
            row *= np.float32(1e-41)
        case "huge":
            row = rng.choice(np.array([LARGEST, np.nextafter(np.float32(LARGEST), np.float32(0)), -LARGEST], np.float32), size)
        case "far below":
            row -= np.float32(1e30)
    return row


KINDS = ["ragged", "flat", "levels", "ramp", "peaked", "spikes", "mostly impossible", "denormal", "huge", "far below"]
