"""Wakes those who wait for what a step made, all together when it is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


class Awaited(Protocol):
    """Something that threads and tasks wait for."""

    def wake(self) -> list[asyncio.Future[None]]:
        """Wake the threads. The futures of the tasks that wait, of any event loop; each is given once."""
        ...


class Waking:
    """What happened to whom since the last time. Belongs to one thread.

    A call into an event loop of another thread writes to a socket: with one for each loop instead of one for each request, steps
    of many replies are over sooner, and so are the loops' turns.
    """

    def __init__(self) -> None:
        self._changed: dict[Awaited, None] = {}

    def add(self, changed: Awaited) -> None:
        """There is something for those who wait for it."""
        self._changed[changed] = None

    def wake(self) -> None:
        """Wake all of them."""
        changed, self._changed = self._changed, {}
        woken: defaultdict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
        for one in changed:
            for future in one.wake():
                woken[future.get_loop()].append(future)
        for loop, futures in woken.items():
            try:
                loop.call_soon_threadsafe(_settle, futures)
            except RuntimeError:  # that loop was closed while its tasks waited: nobody is left to tell
                continue


def _settle(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
