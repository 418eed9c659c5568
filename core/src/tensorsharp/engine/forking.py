"""Where a prompt can begin inside a block: after what it has in common with a block that another sequence filled.

Full blocks are shared; one of which only the beginning is wanted is copied, as both sequences write on in it. Copying a block
costs a small part of what one row of a prompt costs (a thirtieth for a small model on a CPU, less for larger ones), so a single
token is worth it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorsharp.engine.prefix import common, common_tokens
from tensorsharp.engine.seats import Fork, Seats
from tensorsharp.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Owner:
    """A running sequence that has computed what another one begins with, up to `position`."""

    sequence: Sequence
    position: int


def parting(owner: Sequence, other: Sequence, block_tokens: int, *, inside: bool) -> int:
    """How many tokens both begin with, of those that `other` need not compute. inside: also inside a block."""
    if owner.chain is None or other.chain is None or owner.chain.root is not other.chain.root:
        return 0
    first = common(owner.links, other.reusable_links) * block_tokens
    if not inside:
        return first
    stop = min(first + block_tokens, owner.length)
    return first + common_tokens(owner.ids[first:stop], other.ids[first : min(stop, other.reusable)])


def find_fork(sequence: Sequence, blocks: int, running: Iterable[Sequence], seats: Seats) -> Fork | None:
    """What to copy so that the sequence begins as late as possible in the block after the `blocks` ones that were found.

    Looked for are labelled blocks, full or not, and those that running sequences are filling. None if there is nothing.
    """
    parent = None if sequence.chain is None else sequence.chain.before(blocks)
    size = seats.block_tokens
    first = blocks * size
    tokens = sequence.ids[first : min(first + size, sequence.reusable)]
    if not seats.forks or parent is None or not len(tokens):
        return None
    owners = [_Owner(o, min(o.computed, parting(o, sequence, size, inside=True))) for o in running]
    sources, rows = [], len(tokens)
    for number, pool in enumerate(seats.pools.values()):
        source, most = pool.closest(parent, tokens)
        for owner in owners:
            seat = owner.sequence.seat
            block = -1 if seat is None else int(seat.tables[number].row[blocks])
            if block >= 0 and owner.position - first > most:
                source, most = block, owner.position - first
        sources.append(source)
        rows = min(rows, most)
    rows -= rows % seats.stride
    return Fork(first + rows, tuple(sources)) if rows > 0 else None
