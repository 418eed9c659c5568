"""The blocks of one block group: who uses which, and which still hold state that a later request can use.

A block group is a window (None: everything is kept); all paged stores with that window share its blocks. Block ids
say nothing about memory: the state store owns that, this module only keeps the books.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from operator import attrgetter
from typing import Protocol

import numpy as np

from tensorsharp.engine.prefix import Link, common_tokens
from tensorsharp.errors import CapacityError
from tensorsharp.protocols.batch import I32

_TOKENS = attrgetter("tokens")


class Below(Protocol):
    """What keeps the contents of blocks that are taken for something else."""

    def __contains__(self, link: Link) -> bool: ...

    def keep(self, block: int, link: Link) -> None:
        """A block that holds this is about to be taken."""
        ...

    def fetch(self, link: Link) -> bool:
        """Get what is kept ready for `fill`, verified. False if it proves unusable; then it is kept no longer."""
        ...

    def fill(self, block: int, link: Link) -> None:
        """Write what was fetched into a block."""
        ...

    def settle(self, block: int) -> None:
        """A block has become full: nobody writes into it any more."""
        ...


class BlockPool:
    """The blocks of one group, with reference counts. free + used + cached = total, always.

    used: referenced. cached: referenced by nobody, but labelled with what it holds; taken again when no free block is
    left, the longest unused first. free: holds nothing.
    """

    def __init__(self, total: int, below: Below | None = None) -> None:
        self.total = total
        self.below = below
        self.evictions = 0
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total
        self._labels: list[Link | None] = [None] * total
        self._index: dict[Link, int] = {}
        self._after: dict[Link | None, list[Link]] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that can be taken: the free and the cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        return self.total - self.available

    def references(self, block: int) -> int:
        return self._references[block]

    def holds(self, block: int) -> Link | None:
        """What a block is labelled with."""
        return self._labels[block]

    def take(self, count: int) -> list[int]:
        """`count` blocks, referenced once. CapacityError, with nothing changed, if there are not as many."""
        if count > self.available:
            raise CapacityError(f"{count} blocks are wanted and {self.available} of {self.total} are free.")
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        link = self._labels[block]
        if self.below is not None and link is not None:
            self.below.keep(block, link)
        self._unlabel(block)
        self.evictions += 1
        return block

    def share(self, block: int) -> None:
        """One reference more to a block that is in use or cached."""
        if self._references[block] == 0:
            if block not in self._cached:
                raise ValueError(f"block {block} is free and cannot be shared")
            del self._cached[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; the last one makes the block cached if it is labelled, free if not."""
        if self._references[block] == 0:
            raise ValueError(f"block {block} is free and cannot be released")
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._labels[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def label(self, block: int, link: Link) -> None:
        """Say what a block in use holds. Nothing happens if another block holds the same.

        Who uses a block that is not full must not write into it any more.
        """
        if self._references[block] == 0:
            raise ValueError(f"block {block} is free and cannot be labelled")
        if self._labels[block] is None and link not in self._index:
            self._labels[block] = link
            self._index[link] = block
            insort(self._after.setdefault(link.parent, []), link, key=_TOKENS)

    def find(self, link: Link) -> int | None:
        """The block that holds this, or None."""
        return self._index.get(link)

    def closest(self, parent: Link, tokens: I32) -> tuple[int, int]:
        """The block after `parent` that begins with the most of `tokens`, and with how many; (-1, 0) if there is none."""
        after = self._after.get(parent, [])
        at = bisect_left(after, tokens.tobytes(), key=_TOKENS)
        best = (-1, 0)
        for link in after[max(0, at - 1) : at + 1]:  # of what is in order, those beside its place have the most in common
            shared = common_tokens(np.frombuffer(link.tokens, np.int32), tokens)
            if shared > best[1]:
                best = (self._index[link], shared)
        return best

    def touch(self, block: int) -> None:
        """It was of use: if it is cached, it is now the last one to be taken."""
        if block in self._cached:
            self._cached.move_to_end(block)

    def reaches(self, link: Link) -> bool:
        """Whether a block holds this, or can be made to."""
        return link in self._index or (self.below is not None and link in self.below)

    def fetch(self, link: Link) -> bool:
        """Get ready what no block holds. False if it is not to be had; then nobody `reaches` it any more."""
        return link in self._index or (self.below is not None and self.below.fetch(link))

    def bring(self, link: Link) -> int:
        """A block, referenced once, that holds what was fetched. CapacityError if there is none to be taken; what `fill` raises
        goes on, with nothing taken."""
        if self.below is None:
            raise ValueError("a block of a prefix is not there")
        (block,) = self.take(1)
        try:
            self.below.fill(block, link)
        except Exception:
            self.release(block)
            raise
        self.label(block, link)
        return block

    def settle(self, block: int) -> None:
        """A block has become full: nobody writes into it any more."""
        if self.below is not None:
            self.below.settle(block)

    def held(self) -> list[tuple[int, Link]]:
        """The cached blocks and what they hold, the longest unused first."""
        return [(block, link) for block in self._cached if (link := self._labels[block]) is not None]

    def forget(self, link: Link) -> None:
        """Let nobody find this any more."""
        block = self._index.get(link)
        if block is not None:
            self._unlabel(block)
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)

    def _unlabel(self, block: int) -> None:
        link, self._labels[block] = self._labels[block], None
        if link is not None:
            del self._index[link]
            after = self._after[link.parent]
            del after[bisect_left(after, link.tokens, key=_TOKENS)]
            if not after:
                del self._after[link.parent]

    def check(self) -> None:
        """RuntimeError if the books do not balance."""
        referenced = {b for b, n in enumerate(self._references) if n > 0}
        parts = [*referenced, *self._free, *self._cached]
        if len(parts) != self.total or len(set(parts)) != self.total:
            raise RuntimeError(
                f"{len(referenced)} blocks are referenced, {self.free} free and {self.cached} cached, of {self.total}"
            )
        labelled = {link: b for b, link in enumerate(self._labels) if link is not None}
        if labelled != self._index or any(self._labels[b] is not None for b in self._free):
            raise RuntimeError(f"{len(labelled)} blocks are labelled and {len(self._index)} can be found")
        after = [link for links in self._after.values() for link in links]
        if any(links != sorted(links, key=_TOKENS) for links in self._after.values()) or set(after) != set(labelled):
            raise RuntimeError(f"{len(labelled)} blocks are labelled and {len(after)} stand after another one")
        if any(self._labels[b] is None for b in self._cached):
            raise RuntimeError("a cached block has no label")
