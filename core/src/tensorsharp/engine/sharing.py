"""Whether a request should wait for the beginning of its prompt, which a running one is computing.

While it waits it holds nothing. The owner is never told: if it ends or is preempted, the request simply finds in the pools
what was finished and computes the rest itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorsharp.engine.prefix import common
from tensorsharp.engine.sequence import Sequence

STEP_COST = 16
"""What a step costs besides its rows, in rows: the weights are read once however few the rows are."""


@dataclass(frozen=True, slots=True)
class Shared:
    """`owner` computes all positions below `parting` of another sequence too."""

    owner: Sequence
    parting: int


def worth_waiting(waiter: Sequence, begin: int, running: Iterable[Sequence], block_tokens: int, budget: int) -> Shared | None:
    """The running sequence to wait for; None if `waiter`, computed from position `begin` on, should start now.

    budget: prompt rows of a step. Waiting has to fill at least one block more, and not to take longer than
    computing everything alone.
    """
    found = None
    for owner in running:
        parting = common(owner.links, waiter.reusable_links) * block_tokens
        if parting > max(begin, owner.computed) and (found is None or parting > found.parting):
            found = Shared(owner, parting)  # of several the oldest, which is served first
    if found is None:
        return None
    owner, parting = found.owner, found.parting
    rest = waiter.length - parting
    alone = cost(waiter.length - begin, waiter.rows, owner.pending, owner.rows, budget, first=waiter.rank < owner.rank)
    ahead = cost(parting - owner.computed, owner.rows, 0, 1, budget, first=True)
    after = cost(rest, waiter.rows, owner.length - parting, owner.rows, budget, first=waiter.rank < owner.rank)
    return found if ahead + after <= alone else None


def cost(rows: int, chunk: int, other: int, other_chunk: int, budget: int, *, first: bool) -> int:
    """What it costs, in rows, until `rows` are computed besides `other` rows of somebody else. first: who is served first.

    At most `chunk` and `other_chunk` rows of each in a step, together at most `budget`.
    """
    total = 0
    while rows > 0:
        if first:
            mine = min(rows, chunk, budget)
            theirs = min(other, other_chunk, budget - mine)
        else:
            theirs = min(other, other_chunk, budget)
            mine = min(rows, chunk, budget - theirs)
        rows -= mine
        other -= theirs
        total += mine + theirs + STEP_COST
    return total
