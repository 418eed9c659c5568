"""Which models a server may serve. Names of requests are looked up here and never become a path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tensorsharp.errors import ConfigError
from tensorsharp_app_server.errors import RefusedError

_LATER_SHARD = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")
_SHARD = re.compile(r"-00001-of-\d{5}$")
_LATEST = ":latest"
"""The tag that Ollama's clients add to a name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. size: bytes of its file. modified: seconds since 1970."""

    name: str
    path: Path
    size: int
    modified: float


class Catalog(Protocol):
    """What is there now; read again for every request that names a model, as files come and go."""

    def entries(self) -> list[Entry]:
        """Sorted by name."""
        ...


class OneFile:
    """The model of one file, under the file's name without `.gguf`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[Entry]:
        return [_entry(self._path, self._path.name)]


class Folder:
    """Every `.gguf` file in a folder and the folders in it. A split model is its first file."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ConfigError(f"--models-dir {path} is no folder.")
        self._path = path

    def entries(self) -> list[Entry]:
        found = (path for path in self._path.rglob("*.gguf") if path.is_file())
        models = [_entry(p, p.relative_to(self._path).as_posix()) for p in found if _is_model(p.stem)]
        return sorted(models, key=lambda entry: entry.name)


def find(catalog: Catalog, name: str | None) -> Entry:
    """The model that a request names; without a name, the only one. RefusedError (400, 404) if there is none."""
    entries = catalog.entries()
    if name is None:
        if len(entries) == 1:
            return entries[0]
        raise RefusedError(400, f"model is missing; expected {_names(entries)}.", code="missing", param="model")
    wanted = {form.casefold() for form in (name, name.removesuffix(_LATEST), name.removesuffix(".gguf"))}
    exact = next((entry for entry in entries if entry.name == name), None)
    found = exact or next((entry for entry in entries if entry.name.casefold() in wanted), None)
    if found is None:
        message = f"There is no model '{name[:120]}'; expected {_names(entries)}."
        raise RefusedError(404, message, code="model_not_found", param="model", final=True)
    return found


def _is_model(stem: str) -> bool:
    """Not a later part of a split model, and not the image encoder that belongs to one."""
    return not _LATER_SHARD.search(stem) and not stem.lower().startswith("mmproj")


def _entry(path: Path, name: str) -> Entry:
    facts = path.stat()
    return Entry(_SHARD.sub("", name.removesuffix(".gguf")), path, facts.st_size, facts.st_mtime)


def _names(entries: list[Entry]) -> str:
    if not entries:
        return "one that is installed, and none is"
    shown = ", ".join(entry.name for entry in entries[:5])
    return f"one of {shown} and {len(entries) - 5} more" if len(entries) > 5 else f"one of {shown}" if entries[1:] else shown
