"""Which prompts the matrix asks, and how."""

from __future__ import annotations

from tests.matrix.subjects import BLOCK, CHUNK, TOGETHER, WAYS

LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, CHUNK - 1, CHUNK + 1)
CELLS = [(length, way) for length in LENGTHS for way in WAYS]
NEIGHBOURS = range(1, TOGETHER - len(CELLS) + 1)
"""What fills the batch up, as numbers of their texts."""
EDGES = (BLOCK, 2 * BLOCK, 3 * BLOCK)
"""Where recurrent state is saved, so that each prompt finds all whole blocks before its last token."""
