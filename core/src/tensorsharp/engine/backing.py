"""Between the blocks of the pools and what lies below them: contents go through the codec and get a key.

key = link of the prefix, then the block group ("all" or its window) or "state", then the codec. The root of a link covers
model, arithmetic and KV format. Recurrent state never goes through a codec.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from tensorsharp.codecs.sealed import seal, unseal
from tensorsharp.engine.content import Content
from tensorsharp.engine.prefix import Link
from tensorsharp.engine.tiers import Tiers
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.codec import IKvBlockCodec, block_layout
from tensorsharp.protocols.layout import Layout, block_groups
from tensorsharp.storage.entry import Entry, Head

logger = logging.getLogger(__name__)

_EXACT = "raw"
"""What stands for the codec in the keys of recurrent state."""


class Blocks(Protocol):
    """The part of a state store that is used here."""

    @property
    def layout(self) -> Layout: ...

    @property
    def sizes(self) -> StateSizes: ...

    def slot_bytes(self) -> int: ...

    def read(self, group: int | None, block: int) -> bytes: ...

    def write(self, group: int | None, block: int, data: bytes) -> None: ...


class Backing:
    """Keeps contents in `tiers` and gets them back; what it got and verified waits here until a block is there for it.

    A codec that loses something is applied by `settle` as soon as a block is full. Its codes are kept until the block is
    taken for something else, so nothing is encoded twice.
    """

    def __init__(self, store: Blocks, tiers: Tiers, codec: IKvBlockCodec) -> None:
        self.tiers = tiers
        self.codec = codec
        self._store = store
        self._full = store.sizes.block_tokens * 4
        self._layouts = {g: block_layout(store.layout, g, store.sizes.block_tokens) for g in block_groups(store.layout)}
        self._codes: dict[tuple[int | None, int], bytes] = {}
        self._offered: dict[str, Entry] = {}
        self._ready: dict[tuple[int | None, Link], tuple[bytes, bytes]] = {}

    def settle(self, group: int | None, block: int) -> None:
        """A block is full: from now on it holds what every later reader sees. ValueError if it cannot be encoded."""
        if self.codec.lossless:
            return
        codes = self.codec.encode(self._store.read(group, block), self._layouts[group])
        self._store.write(group, block, self.codec.decode(codes, self._layouts[group]))
        self._codes[group, block] = codes

    def content(self, group: int | None, block: int, link: Link) -> Content:
        """What a full block holds now."""
        head = self._head(link, _part(group), self.codec.name)
        if not self.codec.lossless:
            return Content(head, self._codes[group, block], bytes)
        encode, layout = self.codec.encode, self._layouts[group]
        return Content(head, self._store.read(group, block), lambda data: encode(data, layout))

    def state(self, link: Link, data: bytes) -> Content:
        """Recurrent state after `link`."""
        return Content(self._head(link, "state", _EXACT), data, seal)

    def has(self, group: int | None, link: Link) -> bool:
        return self._has(_key(link, _part(group), self.codec.name))

    def has_state(self, link: Link) -> bool:
        return self._has(_key(link, "state", _EXACT))

    def keep(self, group: int | None, block: int, link: Link, *, wait: bool = False) -> None:
        """Keep what a block holds, if it is full. wait: until there is room to write it. Nothing is raised: it is lost then."""
        if len(link.tokens) != self._full or self.tiers.touch(_key(link, _part(group), self.codec.name)):
            return
        try:
            self.tiers.put(self.content(group, block, link).entry(), wait=wait)
        except Exception:  # whatever a codec raises must not end those who need the block
            logger.exception("A block could not be kept.")

    def keep_state(self, link: Link, data: bytes, *, wait: bool = False) -> None:
        """Keep recurrent state, as `keep` does a block."""
        try:
            if not self.tiers.touch(_key(link, "state", _EXACT)):
                self.tiers.put(self.state(link, data).entry(), wait=wait)
        except Exception:  # it is computed again
            logger.exception("Recurrent state could not be kept.")

    def fetch(self, group: int | None, link: Link) -> bool:
        """Get the content of a block and verify it, ready for `fill`. False, and it is there no longer, if it is unusable."""
        head = self._head(link, _part(group), self.codec.name)
        try:
            codes = self._get(head)
            if codes is not None:
                self._ready[group, link] = codes, self.codec.decode(codes, self._layouts[group])
                return True
        except Exception as error:  # whatever a codec raises, the block can be computed
            logger.warning("A block that was kept cannot be read: %s", error)
        self._drop(head.key)
        return False

    def fetch_state(self, link: Link) -> bytes | None:
        """The recurrent state after `link`. None, and it is there no longer, if it is unusable."""
        head = self._head(link, "state", _EXACT)
        try:
            sealed = self._get(head)
            data = None if sealed is None else unseal(sealed)
        except Exception as error:  # it can be computed
            logger.warning("Recurrent state that was kept cannot be read: %s", error)
            data = None
        if data is None or len(data) != self._store.slot_bytes():
            self._drop(head.key)
            return None
        return data

    def fill(self, group: int | None, block: int, link: Link) -> None:
        """Write what was fetched into a block."""
        codes, data = self._ready.pop((group, link))
        self._store.write(group, block, data)
        if not self.codec.lossless:
            self._codes[group, block] = codes

    def offer(self, entries: Iterable[Entry]) -> None:
        """Have these too until `clear`, as if a tier had them."""
        self._offered = {entry.head.key: entry for entry in entries}

    def clear(self) -> None:
        """A sequence has taken its seat, or has not: what was fetched or offered for it is needed no longer."""
        self._offered = {}
        self._ready = {}

    def forget(self, link: Link) -> None:
        """Keep nothing of what belongs to this link."""
        for group in self._layouts:
            self._drop(_key(link, _part(group), self.codec.name))
        self._drop(_key(link, "state", _EXACT))

    def check(self) -> None:
        """RuntimeError if something waits for a block though no sequence takes its seat, or codes are kept that need not be."""
        if self._offered or self._ready:
            raise RuntimeError(f"{len(self._offered) + len(self._ready)} contents wait for a block, and nobody takes one")
        wrong = [(g, b) for g, b in self._codes if self.codec.lossless or b >= self._store.sizes.blocks[g]]
        if wrong:
            raise RuntimeError(f"codes are kept of the blocks {wrong}")

    def _has(self, key: str) -> bool:
        return key in self._offered or key in self.tiers

    def _get(self, head: Head) -> bytes | None:
        offered = self._offered.get(head.key)
        if offered is not None and offered.head == head:
            return offered.payload
        return self.tiers.get(head)

    def _drop(self, key: str) -> None:
        self._offered.pop(key, None)
        self.tiers.drop(key)

    def _head(self, link: Link, part: str, codec: str) -> Head:
        return Head(_key(link, part, codec), b"" if link.parent is None else link.parent.key, link.tokens)


class Below:
    """The backing of one block group, as its pool sees it."""

    def __init__(self, backing: Backing, group: int | None) -> None:
        self._backing = backing
        self._group = group

    def __contains__(self, link: Link) -> bool:
        return self._backing.has(self._group, link)

    def keep(self, block: int, link: Link) -> None:
        self._backing.keep(self._group, block, link)

    def fetch(self, link: Link) -> bool:
        return self._backing.fetch(self._group, link)

    def fill(self, block: int, link: Link) -> None:
        self._backing.fill(self._group, block, link)

    def settle(self, block: int) -> None:
        self._backing.settle(self._group, block)


def _part(group: int | None) -> str:
    return "all" if group is None else f"w{group}"


def _key(link: Link, part: str, codec: str) -> str:
    return f"{link.key.hex()}-{part}-{codec}"
