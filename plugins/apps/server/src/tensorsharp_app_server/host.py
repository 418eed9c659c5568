"""The models in memory: loaded when a request names them, closed when nobody has used them for a while.

All methods belong to the event loop's thread; files are opened and closed in threads beside it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tensorsharp.errors import ConfigError, TensorSharpError
from tensorsharp.llm import LLM
from tensorsharp.weights.entry import Entry
from tensorsharp_app_server.catalog import Catalog, find, without_folders
from tensorsharp_app_server.errors import LOADING_RETRY_S, RefusedError

KEEP_ALIVE_S = 300.0
FOREVER = float("inf")
logger = logging.getLogger("tensorsharp.server")

Loader = Callable[[Path], LLM]


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model, with facts that do not change while it is loaded."""

    name: str
    entry: Entry
    llm: LLM
    bitwise: bool
    arithmetic_id: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory. users: requests that hold it. expires: when it is closed, in seconds since 1970; None: open end."""

    served: Served
    users: int
    expires: float | None


@dataclass
class Place:
    """What is known of one model; see :class:`Loaded`.

    awaited: whether somebody waits for its load. used: when it was last asked for, on the monotonic clock. keep_s: how long it
    stays unused, as a request said last since it was loaded; None if none did.
    """

    entry: Entry
    served: Served | None = None
    keep_s: float | None = None
    users: int = 0
    awaited: bool = False
    used: float = 0.0
    expires: float | None = None
    loading: asyncio.Task[None] | None = None
    closing: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def occupied(self) -> bool:
        return bool(self.served or self.loading or self.closing)


class ModelHost:
    """load: opens a file; it is called in a thread. keep_alive_s: how long an unused model stays. room: models at a time."""

    def __init__(self, catalog: Catalog, load: Loader, *, keep_alive_s: float = KEEP_ALIVE_S, room: int = 1) -> None:
        self.catalog = catalog
        self.starting = False
        self._load = load
        self._keep_alive_s = keep_alive_s
        self._room = room
        self._places: dict[str, Place] = {}
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self._evicting = False

    @property
    def loaded(self) -> list[Loaded]:
        """The models in memory, sorted by name."""
        found = [Loaded(p.served, p.users, p.expires) for p in self._places.values() if p.served is not None]
        return sorted(found, key=lambda one: one.served.name)

    async def find(self, name: str | None) -> Entry:
        """The model that a request names; without a name, the only one.

        RefusedError (400) without a name where there are several, ModelNotFoundError if there is none of this name.
        """
        if name is not None:
            place = self._places.get(name)
            return place.entry if place and place.served else await asyncio.to_thread(find, self.catalog, name)
        entries = await asyncio.to_thread(self.catalog.entries)
        if len(entries) != 1:
            hint = f"There are {', '.join(one.name for one in entries[:5])}." if entries else "There is none yet."
            raise RefusedError(400, "model is missing; expected the name of a model.", code="missing", param="model", hint=hint)
        return entries[0]

    async def start(self) -> None:
        """Load the only model before any request is taken; requests are refused (503) meanwhile."""
        self.starting = True
        async with self._held(await self.find(None), None):
            self.starting = False

    @asynccontextmanager
    async def use(self, name: str | None, keep_alive_s: float | None = None) -> AsyncIterator[Served]:
        """Hold the model that a request names, loading it first if need be; several requests wait for one load.

        keep_alive_s: how long it stays once nobody uses it; the last request that says it counts (None: it does not, and as
        long as none does, the host's own time holds). ModelNotFoundError if there is no such model, RefusedError (503) if it
        cannot be loaded.
        """
        if self.starting:
            raise RefusedError(503, "The model is being loaded.", code="loading", retry_after=LOADING_RETRY_S)
        async with self._held(await self.find(name), keep_alive_s) as served:
            yield served

    async def unload(self, name: str | None) -> Entry:
        """Close a model as soon as nobody uses it; nothing happens if it is not in memory."""
        entry = await self.find(name)
        place = self._places.get(entry.name)
        if place is not None and place.served is not None:
            place.keep_s = 0.0
            self._rest(place)
        return entry

    async def close(self) -> None:
        """Close every model; running requests end as cancelled."""
        for place in self._places.values():
            if place.loading is not None:
                await asyncio.wait([place.loading])
            await self._close(place)

    @asynccontextmanager
    async def _held(self, entry: Entry, keep_alive_s: float | None) -> AsyncIterator[Served]:
        place = self._places.setdefault(entry.name, Place(entry))
        served = await self._enter(place)
        if keep_alive_s is not None:
            place.keep_s = keep_alive_s
        try:
            yield served
        except TensorSharpError as error:
            error.args = (without_folders(str(error), entry),)
            raise
        finally:
            place.users -= 1
            self._rest(place)

    async def _enter(self, place: Place) -> Served:
        """Whoever needs a model that is not there takes turns, so that nobody waits forever for a model's room."""
        if place.served is None or self._evicting:
            async with self._turn:
                place.awaited = True
                try:
                    while place.served is None:
                        await self._make_room(place)
                        await asyncio.shield(self._loading(place))
                    return self._take(place, place.served)
                finally:
                    place.awaited = False
                    self._rest(place)
        return self._take(place, place.served)

    def _take(self, place: Place, served: Served) -> Served:
        place.users += 1
        place.used = time.monotonic()
        place.expires = None
        if place.timer is not None:
            place.timer.cancel()
        return served

    async def _make_room(self, place: Place) -> None:
        """Close what nobody uses, the longest unused first, and wait for what is used."""
        while place.closing or (not place.loading and self._is_full()):
            idle = [other for other in self._places.values() if other.served and other.users == 0]
            if idle and not place.closing:
                await asyncio.shield(self._close(min(idle, key=lambda other: other.used)))
                continue
            self._freed.clear()
            self._evicting = True
            try:
                await self._freed.wait()
            finally:
                self._evicting = False

    def _is_full(self) -> bool:
        return sum(other.occupied for other in self._places.values()) >= self._room

    def _loading(self, place: Place) -> asyncio.Task[None]:
        """The one task that loads a model; it goes on when those who wait for it leave."""
        if place.loading is None:
            place.loading = asyncio.create_task(self._open(place))
            place.loading.add_done_callback(partial(self._noted, place.entry.name))
        return place.loading

    async def _open(self, place: Place) -> None:
        began = time.monotonic()
        try:
            place.served = await asyncio.to_thread(self._opened, place.entry)
            logger.info("loaded %s in %.1f s", place.entry.name, time.monotonic() - began)
        except TensorSharpError as error:
            raise _refusal(place.entry, error) from error
        finally:
            place.loading = None
            self._rest(place)

    def _opened(self, entry: Entry) -> Served:
        """In a thread; the first request, constrained or not, finds everything warm."""
        llm = self._load(entry.path)
        try:
            llm.warm_up()
            report = llm.report()
        except BaseException:
            llm.close()
            raise
        return Served(entry.name, entry, llm, report["bitwise"]["holds"], report["arithmetic_id"])

    def _rest(self, place: Place) -> None:
        """Start the time after which a model is closed, if nobody uses it."""
        keep_s = self._keep_alive_s if place.keep_s is None else place.keep_s
        if place.timer is not None:
            place.timer.cancel()
            place.timer = None
        if place.users == 0 and not place.awaited and place.served is not None and keep_s < FOREVER:
            place.expires = time.time() + keep_s
            place.timer = asyncio.get_running_loop().call_later(keep_s, self._expire, place)
        self._freed.set()

    def _expire(self, place: Place) -> None:
        if place.users == 0:
            self._close(place)

    def _close(self, place: Place) -> asyncio.Task[None]:
        """Give a model's memory back, in a thread: it waits for the step that is being computed."""
        if place.served is not None:
            place.closing = asyncio.create_task(asyncio.to_thread(place.served.llm.close))
            place.closing.add_done_callback(lambda _: self._closed(place))
            place.served = place.expires = place.keep_s = None
        return place.closing or asyncio.create_task(asyncio.sleep(0))

    def _noted(self, name: str, task: asyncio.Task[None]) -> None:
        """A load that failed is told even when whoever asked for it has left; at the start its error ends the program."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.starting:
            logger.warning("%s cannot be loaded: %s", name, error.__cause__ or error)

    def _closed(self, place: Place) -> None:
        place.closing = None
        self._freed.set()


def _refusal(entry: Entry, error: TensorSharpError) -> RefusedError:
    """What clients are told of a load that failed. Folders and settings of this machine are for its log."""
    reason, hint = f": {without_folders(str(error), entry)}", error.hint
    if isinstance(error, ConfigError):
        reason, hint = " with the settings of this server.", "Its log says more."
    return RefusedError(503, f"{entry.name} cannot be loaded{reason}", code="load_failed", hint=hint, final=True)
