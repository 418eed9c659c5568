"""A folder of entry files, within a number of bytes or of entries.

An entry is written under a temporary name and renamed, so a file under an entry's name is whole, unless the machine lost
power; then its checksum says so. Files are not forced to the disk: losing one costs a computation, never a wrong result.

Several processes may use one folder. Each sees what others added before it makes room, and what another one deleted is
a miss. A process that starts deletes temporary files, whoever left them; whose file is lost that way writes it again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tensorsharp.errors import ConfigError
from tensorsharp.storage.entry import Entry, Head, pack, read_head, unpack

logger = logging.getLogger(__name__)

SUFFIX = ".tskv"
TEMPORARY = ".tskv-part"
_ATTEMPTS = 3


def _none(name: str) -> bool:
    return False


class EntryFolder:
    """Entries by name, the longest unused given up first. Only files with an entry's suffix are ever touched.

    limit: most bytes of all files, those being written included. entries: most entries. spared: which names are given up only
    where there is no other. deleted: files that were no entry,
    torn or changed. leftovers: temporary files found at the start. evicted: entries given up to make room. refused: entries
    that `limit` has no room for. failed: writes that the system refused. ConfigError if the folder cannot be used. Thread-safe.
    """

    def __init__(
        self, folder: Path, *, limit: int | None = None, entries: int | None = None, spared: Callable[[str], bool] = _none
    ) -> None:
        self.folder = folder
        self.limit = limit
        self.entries = entries
        self.nbytes = 0
        self.deleted = self.leftovers = self.evicted = self.refused = self.failed = 0
        self._told: str | None = None
        self._spared = spared
        self._lock = threading.RLock()
        self._index: OrderedDict[str, int] = OrderedDict()
        self._reserved = 0
        self._seen = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._clean()
            self._scan()
        except OSError as error:
            raise ConfigError(
                f"{folder}: the folder for cached state cannot be used: {error.strerror or error}.",
                hint="Name a folder that can be created and written to.",
            ) from error
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"{folder}: the folder for cached state cannot be written to.")
        with self._lock:
            self._make_room(0, 0)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def names(self) -> list[str]:
        """The longest unused first."""
        with self._lock:
            return list(self._index)

    def write(self, name: str, entry: Entry) -> bool:
        """Keep an entry, in the place of one of that name. Whether it is kept; never raises for what the system refuses."""
        data = pack(entry)
        size = len(data)
        with self._lock:
            if self.limit is not None and self._reserved + size > self.limit:
                self.refused += 1
                return False
            self._refresh()
            self._make_room(size, 0 if name in self._index else 1)
            self._reserved += size
        if self._put(name, data):
            return True
        with self._lock:
            self._reserved -= size
            self.failed += 1
        return False

    def read(self, name: str, head: Head) -> bytes | None:
        """The payload of the entry of that name, if it is for `head`; then it counts as just used.

        A file that is no entry, or not the one of its key, is deleted; one of other tokens with the same key is left alone.
        """
        path = self._path(name)
        try:
            entry = unpack(path.read_bytes())
            if entry.head.key != head.key:
                raise ValueError("it is the entry of another key")
        except OSError:
            self.forget(name)
            return None
        except ValueError as error:
            self._delete(path, error)
            self.forget(name)
            return None
        if entry.head != head:
            return None
        self.touch(name)
        return entry.payload

    def head(self, name: str) -> Head | None:
        """What the entry of that name is for, as its file says. Its checksum is not looked at."""
        try:
            path = self._path(name)
            with path.open("rb") as file:
                return read_head(file, os.fstat(file.fileno()).st_size)
        except (OSError, ValueError):
            return None

    def touch(self, name: str) -> None:
        """Count an entry as just used, for later processes too."""
        with self._lock:
            if name in self._index:
                self._index.move_to_end(name)
        with suppress(OSError):
            os.utime(self._path(name))

    def rename(self, name: str, new: str) -> bool:
        """Keep an entry under another name from now on. Whether that worked."""
        with self._lock:
            try:
                os.replace(self._path(name), self._path(new))
            except OSError:
                return False
            size = self._index.pop(name, 0)
            self._forget(new)
            self._index[new] = size
            self._mark()
            return True

    def drop(self, name: str) -> None:
        """Delete an entry, if it is there."""
        with self._lock:
            self._unlink(self._path(name))
            self._forget(name)

    def forget(self, name: str) -> None:
        """Count an entry no longer, as its file is gone."""
        with self._lock:
            self._forget(name)

    def refresh(self) -> None:
        """See what other processes added and deleted."""
        with self._lock:
            self._refresh()

    def check(self) -> None:
        """RuntimeError if the books do not balance, or a limit is broken."""
        with self._lock:
            kept = sum(self._index.values())
            if kept != self.nbytes or (self.limit is not None and kept + self._reserved > self.limit):
                raise RuntimeError(f"{kept} bytes are kept, {self.nbytes} are counted, {self.limit} are allowed")
            if self.entries is not None and len(self._index) > self.entries:
                raise RuntimeError(f"{len(self._index)} entries are kept, {self.entries} are allowed")

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def _put(self, name: str, data: bytes) -> bool:
        """Write under a temporary name and rename. Another process may delete that file in between, as it starts."""
        for _ in range(_ATTEMPTS):
            part = self.folder / f"{uuid.uuid4().hex}{TEMPORARY}"
            try:
                part.write_bytes(data)
                with self._lock:
                    os.replace(part, self._path(name))
                    self._forget(name)
                    self._index[name] = len(data)
                    self.nbytes += len(data)
                    self._reserved -= len(data)
                    self._mark()
                    self._told = None
                return True
            except FileNotFoundError:
                continue
            except OSError as error:
                self._tell(error.strerror or str(error))
                self._unlink(part)
                break
        return False

    def _tell(self, reason: str) -> None:
        """Once: a full disk is full for every entry. Again after something could be written."""
        with self._lock:
            known, self._told = self._told == reason, reason
        if not known:
            logger.warning("%s: cached state cannot be written: %s", self.folder, reason)

    def _make_room(self, size: int, more: int) -> None:
        """Give entries up until a file of `size` bytes and `more` entries fit. What it replaces still takes its bytes."""
        before = self.evicted
        while self._index and not self._fits(size, more):
            victim = next((name for name in self._index if not self._spared(name)), next(iter(self._index)))
            self._unlink(self._path(victim))
            self._forget(victim)
            self.evicted += 1
        if self.evicted > before:
            self._mark()

    def _fits(self, size: int, more: int) -> bool:
        fits = self.limit is None or self.nbytes + self._reserved + size <= self.limit
        return fits and (self.entries is None or len(self._index) + more <= self.entries)

    def _forget(self, name: str) -> None:
        self.nbytes -= self._index.pop(name, 0)

    def _clean(self) -> None:
        for path in self.folder.glob(f"*{TEMPORARY}"):
            self._unlink(path)
            self.leftovers += 1

    def _changed(self) -> int:
        """Another number when a file of the folder was added, renamed or deleted."""
        try:
            return self.folder.stat().st_mtime_ns
        except OSError:
            return -1

    def _mark(self) -> None:
        """What the folder has is known. Its time becomes one that no change of another process gives it: systems whose clock of
        files goes in steps, of milliseconds or of seconds, would give two changes the same."""
        now = time.time_ns()
        with suppress(OSError):  # it may be somebody else's folder
            os.utime(self.folder, ns=(now, now))
        self._seen = self._changed()

    def _refresh(self) -> None:
        if self._changed() != self._seen:
            with suppress(OSError):
                self._scan()

    def _scan(self) -> None:
        """Index what is there, the longest unused first. What is indexed already is not looked into again."""
        self._seen = self._changed()
        found = sorted(self._files())
        self._index = OrderedDict((name, size) for _, name, size in found)
        self.nbytes = sum(self._index.values())

    def _files(self) -> Iterator[tuple[int, str, int]]:
        """(when it was used, name, size) of every entry."""
        with os.scandir(self.folder) as items:
            listed = list(items)
        for item in listed:
            name = item.name.removesuffix(SUFFIX)
            if name == item.name:
                continue
            try:
                facts = item.stat()
                if self._index.get(name) != facts.st_size:
                    with open(item.path, "rb") as file:
                        read_head(file, facts.st_size)
            except OSError:
                continue  # deleted by another process, or not a file
            except ValueError as error:
                self._delete(Path(item.path), error)
                continue
            yield facts.st_mtime_ns, name, facts.st_size

    def _delete(self, path: Path, why: ValueError) -> None:
        logger.warning("%s is deleted: %s", path, why)
        self.deleted += 1
        self._unlink(path)

    def _unlink(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink()
