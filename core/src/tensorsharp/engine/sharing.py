"""Whether a request should wait for the beginning of its prompt, which a running one is computing.

While it waits it holds nothing. The owner is never told: if it ends or is preempted, the request simply finds in the pools
what was finished and computes the rest itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorsharp.engine.forking import parting
from tensorsharp.engine.sequence import Sequence

STEP_COST = 16
"""What a step costs besides its rows, in rows: the weights are read once however few the rows are."""


@dataclass(frozen=True, slots=True)
class Shared:
    """`owner` computes all positions below `parting` of another sequence too."""

    owner: Sequence
    parting: int


def worth_waiting(
    waiter: Sequence, begin: int, running: Iterable[Sequence], block_tokens: int, budget: int, *, inside: bool
) -> Shared | None:
    """The running sequence to wait for; None if `waiter`, computed from position `begin` on, should start now.

    budget: prompt rows of a step. inside: whether a sequence can begin inside a block. Waiting has to give more than is there,
    and not to take longer than computing everything alone.
    """
    found = None
    for owner in running:
        part = parting(owner, waiter, block_tokens, inside=inside)
        if part > max(begin, owner.computed) and (found is None or part > found.parting):
            found = Shared(owner, part)  # of several the oldest, which is served first
    if found is None:
        return None
    owner, part = found.owner, found.parting
    rest = waiter.length - part
    alone = cost(waiter.length - begin, waiter.rows, owner.pending, owner.rows, budget, first=waiter.rank < owner.rank)
    ahead = cost(part - owner.computed, owner.rows, 0, 1, budget, first=True)
    after = cost(rest, waiter.rows, owner.length - part, owner.rows, budget, first=waiter.rank < owner.rank)
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
