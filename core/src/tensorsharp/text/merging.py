"""Byte-pair merging: the one loop that byte-level BPE and SentencePiece-style vocabularies share."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

Priority = Callable[[bytes, bytes], float | None]


def merge_pairs(parts: list[bytes], priority: Priority) -> list[bytes]:
    """Merge neighbours until none can be.

    parts: the pieces to start from, none empty. priority: what to merge first, lower first, or None for a pair that does
    not merge; of equal ones the leftmost. O(n log n) for n pieces.
    """
    count = len(parts)
    parts = parts.copy()
    after = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    queue: list[tuple[float, int, int]] = []
    for left in range(count - 1):
        rank = priority(parts[left], parts[left + 1])
        if rank is not None:
            queue.append((rank, left, len(parts[left]) + len(parts[left + 1])))
    heapify(queue)
    while queue:
        _, left, size = heappop(queue)
        right = after[left]
        # Pieces only grow or are emptied, so the size tells whether this pair is still the one that was queued.
        if right == count or not parts[left] or len(parts[left]) + len(parts[right]) != size:
            continue
        merged = parts[left] = parts[left] + parts[right]
        parts[right] = b""
        follower = after[left] = after[right]
        if follower < count:
            before[follower] = left
            rank = priority(merged, parts[follower])
            if rank is not None:
                heappush(queue, (rank, left, len(merged) + len(parts[follower])))
        leader = before[left]
        if leader >= 0:
            rank = priority(parts[leader], merged)
            if rank is not None:
                heappush(queue, (rank, leader, len(parts[leader]) + len(merged)))
    return [part for part in parts if part]
