"""A thread that does what may wait, in order, while no more is queued than allowed."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

QUEUED_BYTES = 1 << 26
"""64 MiB."""

Job = Callable[[], object]


class Background:
    """Jobs that hold memory, at most `limit` bytes of it. One that is larger is taken while nothing else is queued.

    The thread starts with the first one. dropped: jobs that were not taken. A job that raises is logged, and the next one is
    done. Thread-safe.
    """

    def __init__(self, limit: int = QUEUED_BYTES) -> None:
        self.limit = limit
        self.queued = 0
        self.dropped = 0
        self._jobs: deque[tuple[int, Job]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, nbytes: int, job: Job, *, wait: bool = False) -> bool:
        """Queue a job that holds `nbytes`. False, at once, if the queue has no room for it; with `wait`, when it has."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._has_room(nbytes))
            if self._closed or not self._has_room(nbytes):
                self.dropped += 1
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tensorsharp-background", daemon=True)
                self._thread.start()
            self._jobs.append((nbytes, job))
            self.queued += nbytes
            self._changed.notify_all()
            return True

    def flush(self) -> None:
        """Wait until everything queued is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs)

    def close(self) -> None:
        """Do what is queued, take no more, and end the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """RuntimeError if the books do not balance."""
        with self._changed:
            held = sum(nbytes for nbytes, _ in self._jobs)
            if held != self.queued or (held > self.limit and len(self._jobs) > 1):
                raise RuntimeError(f"{held} bytes are queued, {self.queued} are counted, {self.limit} are allowed")

    def _has_room(self, nbytes: int) -> bool:
        return not self._jobs or self.queued + nbytes <= self.limit

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                nbytes, job = self._jobs[0]
            try:
                job()
            except Exception:  # what cannot be kept is computed again
                logger.exception("A background job failed.")
            with self._changed:
                self._jobs.popleft()
                self.queued -= nbytes
                self._changed.notify_all()
