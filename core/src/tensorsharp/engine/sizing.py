"""How much state to allocate: as many blocks as every sequence could want, or as fit into memory if that is less."""

from __future__ import annotations

import math
from dataclasses import replace

from tensorsharp.engine.config import EngineConfig
from tensorsharp.engine.tables import window_blocks
from tensorsharp.errors import CapacityError
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.layout import Layout, Paged, Slot, block_groups
from tensorsharp.state import state_bytes

_TILE = 32
"""Attention visits keys in tiles of 32 absolute positions; a block is a multiple of it and of every stride."""


def plan_state(layout: Layout, *, context: int, sequences: int, rows: int, available: int, slack: int = 0) -> StateSizes:
    """Sizes for `sequences` of up to `context` positions, computed at most `rows` a step, within `available` bytes.

    Blocks that keep everything are taken as needed, so fewer than the worst case do: at least one whole context.
    CapacityError, with the numbers, if not even that fits.
    """
    block_tokens = math.lcm(_TILE, *(s.stride for s in layout.values() if isinstance(s, Paged)))
    whole = -(-context // block_tokens)

    def worst(group: int | None) -> int:
        return whole if group is None else min(whole, window_blocks(group, rows + slack, block_tokens))

    sizes = StateSizes(
        block_tokens=block_tokens,
        blocks={group: sequences * worst(group) for group in block_groups(layout)},
        sequences=sequences,
        slots=sequences if any(isinstance(s, Slot) for s in layout.values()) else 0,
        slack=slack,
    )
    if state_bytes(layout, sizes) <= available:
        return sizes
    least = _with_full(sizes, whole)
    needed = state_bytes(layout, least)
    if needed > available:
        raise CapacityError(
            f"The state of a context of {context:,} tokens needs {needed:,} bytes; {max(0, available):,} are available.",
            hint="Use a smaller context (--ctx-size), a narrower --kv-type, or a smaller --parallel or --kv-ram.",
        )
    block_bytes = (state_bytes(layout, sizes) - needed) // (sizes.blocks[None] - whole)
    return _with_full(sizes, whole + (available - needed) // block_bytes)


def left_for_state(layout: Layout, config: EngineConfig, available: int) -> int:
    """What is left of `available` bytes of host memory once all is taken that an engine may come to keep there besides.

    CapacityError, with the numbers, if that is more than there is.
    """
    saved = 0 if all(isinstance(s, Paged) for s in layout.values()) else config.scheduler.saved_bytes
    kept = config.cache.ram + saved
    if kept > available:
        raise CapacityError(
            f"What leaves the blocks may take {config.cache.ram:,} bytes of memory (kv_ram), and saved recurrent state {saved:,} "
            f"(saved_bytes); {max(0, available):,} are available.",
            hint="Use a smaller --kv-ram or --saved-bytes.",
        )
    return available - kept


def _with_full(sizes: StateSizes, blocks: int) -> StateSizes:
    """The same sizes with another number of blocks that keep everything, if there are such."""
    return replace(sizes, blocks={g: blocks if g is None else n for g, n in sizes.blocks.items()})
