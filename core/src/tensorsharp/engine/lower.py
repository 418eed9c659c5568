"""Everything below the pools of one engine, as its configuration asks for it."""

from __future__ import annotations

import logging

from tensorsharp.codecs.raw import RawCodec
from tensorsharp.engine.background import Background
from tensorsharp.engine.backing import Backing
from tensorsharp.engine.checkpoints import Checkpoints
from tensorsharp.engine.config import CacheConfig
from tensorsharp.engine.ramtier import RamTier
from tensorsharp.engine.seats import Seats
from tensorsharp.engine.ssdtier import SsdTier
from tensorsharp.engine.tiers import Tiers
from tensorsharp.protocols.backend import StateStore
from tensorsharp.storage.folder import EntryFolder

logger = logging.getLogger(__name__)


class Lower:
    """backing, checkpoints: None where nothing of that kind is configured. ConfigError if a folder cannot be used."""

    def __init__(self, store: StateStore, config: CacheConfig) -> None:
        folder = None if config.ssd is None else EntryFolder(config.ssd, limit=config.ssd_bytes)
        self._background = None if folder is None else Background()
        ssd = None if folder is None or self._background is None else SsdTier(folder, self._background)
        self.tiers = Tiers(RamTier(config.ram) if config.ram else None, ssd)
        self.backing = Backing(store, self.tiers, config.codec or RawCodec()) if config.used else None
        self.checkpoints = None if config.checkpoints is None else Checkpoints(config.checkpoints)

    def persist(self, seats: Seats) -> None:
        """Have what is cached outlive the process, if there is a tier that does. Nothing is raised: the engine is closing."""
        if self.tiers.ssd is None:
            return
        try:
            seats.persist()
        except Exception:
            logger.exception("Not everything that was cached could be kept.")

    def check(self) -> None:
        """RuntimeError if the books of a part do not balance."""
        for part in (self.tiers, self.backing, self.checkpoints):
            if part is not None:
                part.check()

    def close(self) -> None:
        """Write what is waiting to be written. Idempotent."""
        for part in (self._background, self.checkpoints):
            if part is not None:
                part.close()
