"""Names for what a block holds: one link a block, chained over all the tokens before it.

key(link) = H(key(parent), tokens). The root covers whatever else decides the state (model, arithmetic, format) and the scope
that a request may set to keep its blocks to itself. Links are interned, so two sequences that begin with the same
tokens hold the very same objects: comparing them is comparing the whole prefix. Interning compares parent and tokens,
not only the key, so two prefixes with the same key are never taken for each other: the later one stays without a name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from weakref import WeakValueDictionary

import numpy as np

from tensorsharp.protocols.batch import I32

Hash = Callable[[bytes], bytes]


def blake(data: bytes) -> bytes:
    """BLAKE2b, 16 bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


class Link:
    """The tokens of one block (int32, as bytes), all or only the first ones, after those of `parent`, which is full.

    The root's tokens are its identity and scope.
    """

    __slots__ = ("__weakref__", "key", "parent", "tokens")

    def __init__(self, key: bytes, parent: Link | None, tokens: bytes) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens


class Prefixes:
    """All links that somebody holds: a block, a sequence, or a longer link."""

    def __init__(self, block_tokens: int, identity: str = "", hash: Hash = blake) -> None:
        self.block_tokens = block_tokens
        self._identity = identity.encode()
        self._hash = hash
        self._known: WeakValueDictionary[bytes, Link] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def chain(self, scope: str | None = None) -> Chain:
        """A chain without blocks. Chains of different scopes share nothing; None is the common scope."""
        named = b"" if scope is None else b"\x00" + scope.encode("utf-8", "surrogatepass")
        return Chain(self, self.link(None, self._identity + named))

    def link(self, parent: Link | None, tokens: bytes) -> Link | None:
        """The one link for these tokens after `parent`; None if another prefix has its key."""
        key = self._hash((b"" if parent is None else parent.key) + tokens)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Link(key, parent, tokens)
        return found if found.parent is parent and found.tokens == tokens else None

    def check(self) -> None:
        """RuntimeError if a link is not under its own key."""
        for key, link in list(self._known.items()):
            if not key == link.key == self._hash((b"" if link.parent is None else link.parent.key) + link.tokens):
                raise RuntimeError(f"the prefix {link.key.hex()} is found as {key.hex()}")


class Chain:
    """The links of a sequence's full blocks, in order. It ends early where a key is taken by another prefix."""

    def __init__(self, prefixes: Prefixes, root: Link | None) -> None:
        self.links: list[Link] = []
        self.root = root
        self._prefixes = prefixes
        self._end = root

    def whole(self, length: int) -> int:
        """How many blocks `length` tokens fill."""
        return length // self._prefixes.block_tokens

    def cover(self, ids: I32, length: int) -> None:
        """Have a link for every full block of the first `length` ids, of which earlier calls saw the beginning."""
        size = self._prefixes.block_tokens
        while self._end is not None and (len(self.links) + 1) * size <= length:
            first = len(self.links) * size
            self._end = self._prefixes.link(self._end, ids[first : first + size].tobytes())
            if self._end is not None:
                self.links.append(self._end)

    def before(self, block: int) -> Link | None:
        """What stands before that block; None if it has no name."""
        if block > len(self.links):
            return None
        return self.links[block - 1] if block else self.root

    def rest(self, ids: I32, length: int) -> Link | None:
        """The link for those of the first `length` ids that fill a block in part; None if there are none, or without a name."""
        full = self.whole(length)
        tokens = ids[full * self._prefixes.block_tokens : length]
        parent = self.before(full)
        return None if parent is None or not len(tokens) else self._prefixes.link(parent, tokens.tobytes())


def common_tokens(a: I32, b: I32) -> int:
    """How many ids both begin with in common."""
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length


def common(a: list[Link], b: list[Link]) -> int:
    """How many blocks two chains begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # a link stands for all before it, so it can be searched by halves
        middle = (low + high + 1) // 2
        if a[middle - 1] is b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
