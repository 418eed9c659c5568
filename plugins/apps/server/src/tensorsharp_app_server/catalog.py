"""Which models a server may serve. Names of requests are looked up here and never become a path."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tensorsharp.errors import CapacityError, DownloadError, ModelNotFoundError, RequestError, did_you_mean
from tensorsharp.weights.entry import Entry, entry
from tensorsharp.weights.hubcache import HubName, hub_name

if TYPE_CHECKING:
    from tensorsharp.weights.aliases import Aliases
    from tensorsharp.weights.hub import Hub, Progress

LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""


class Catalog(Protocol):
    """The models that are there now; every call looks again. :class:`tensorsharp.weights.folder.ModelsFolder` is one."""

    def entries(self) -> list[Entry]:
        """Sorted by name."""
        ...

    def find(self, name: str) -> Entry:
        """The model of this name. ModelNotFoundError if there is none."""
        ...


@runtime_checkable
class Remover(Protocol):
    """A catalog whose models clients may delete."""

    def remove(self, name: str) -> int:
        """Delete a model's files; the bytes that were freed. ModelNotFoundError if there is none of this name."""
        ...


@runtime_checkable
class Puller(Protocol):
    """A catalog that gets models which are not there yet."""

    def pull(self, name: str, progress: Progress) -> Entry:
        """Download a model; errors are those of :meth:`tensorsharp.weights.hub.Hub.pull`."""
        ...


class OneModel:
    """A single model, which is all there is to choose from."""

    def __init__(self, name: str, path: Path, projector: Path | None = None) -> None:
        self._entry = entry(name, None, [path], projector)

    def entries(self) -> list[Entry]:
        return [self._entry]

    def find(self, name: str) -> Entry:
        """Also by the file's name."""
        if name in (self._entry.name, self._entry.path.name, self._entry.path.stem):
            return self._entry
        raise ModelNotFoundError(f"There is no model '{name:.100}'.", hint=f"The server has {self._entry.name}.")


class HubModels:
    """The models in the cache of the Hugging Face hub, by `user/repo[:QUANT]` or by an alias of it."""

    def __init__(self, hub: Hub, aliases: Aliases) -> None:
        self.hub = hub
        self._aliases = aliases

    def entries(self) -> list[Entry]:
        return self.hub.entries()

    def find(self, name: str) -> Entry:
        meant = self.name(name)
        if meant is None:
            raise ModelNotFoundError(f"There is no model '{name:.100}'.", hint=did_you_mean(name, _names(self.entries())))
        return self.hub.find(meant)

    def pull(self, name: str, progress: Progress) -> Entry:
        """Download what the hub has now, as far as it is not here."""
        meant = self.name(plain(name))
        if meant is None:
            raise ModelNotFoundError(f"'{name}' is no model of the hub; expected user/repo[:QUANT] or an alias of one.")
        try:
            return self.hub.pull(meant, progress)
        except (CapacityError, DownloadError) as error:
            error.args = (str(error).replace(str(self.hub.cache.folder), "the server's cache"),)
            raise

    def remove(self, name: str) -> int:
        """Also by an alias, which stays. RequestError for a repository of several models without the one that is meant."""
        found, meant = self.find(name), self.name(name)
        kinds = [] if meant is None or meant.quant else [one.name for one in self.hub.cache.models(meant.repo)]
        if len(kinds) > 1:
            raise RequestError(
                f"{meant} is {len(kinds)} models; expected one of {', '.join(kinds)}.", param="model", code="invalid_value"
            )
        exact = hub_name(found.name)
        assert exact is not None, "an entry of the hub's cache has a name of the hub"
        return self.hub.remove(exact)

    def name(self, text: str) -> HubName | None:
        """What a text names on the hub, without looking whether it is there."""
        return hub_name(self._aliases.resolve(text))


def plain(name: str) -> str:
    """A name without the tag that stands for none."""
    return name.removesuffix(LATEST)


def find(catalog: Catalog, name: str) -> Entry:
    """The model that a client calls `name`: as it is, without the tag `latest`, or in other letters of the same case.

    ModelNotFoundError if there is none.
    """
    exact = plain(name)
    try:
        return catalog.find(exact)
    except ModelNotFoundError:
        same = [one for one in catalog.entries() if one.name.casefold() == exact.casefold()]
        if not same:
            raise
        return same[0]


def without_folders(text: str, entry: Entry) -> str:
    """A text that may name files of the model, without the folders that they lie in."""
    for folder in {file.parent for file in entry.files}:
        if folder != folder.parent:  # what lies at the root, or where the program runs, has no other
            text = text.replace(os.path.join(folder, ""), "")
    return text


def _names(entries: Iterable[Entry]) -> list[str]:
    return [one.name for one in entries]
