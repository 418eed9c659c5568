"""MODEL as people write it: the path of a file, `user/repo[:QUANT]`, or an alias."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorsharp.errors import ModelError, ModelNotFoundError, did_you_mean
from tensorsharp.weights.aliases import Aliases, is_alias_name
from tensorsharp.weights.hubcache import HubName, hub_name

if TYPE_CHECKING:
    from tensorsharp.weights.hub import Hub, Progress

_MARKED = re.compile(r"[.~]|[A-Za-z]:\\")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What to open. name: what it is called. projector: the file for images, or None."""

    name: str
    path: Path
    projector: Path | None = None


def read_name(text: str, aliases: Aliases | None = None) -> Path | HubName:
    """The file or the repository that MODEL names; ~ is the home folder.

    An alias comes first, then what there is on the disk, then the hub. ModelError for an empty text and a folder,
    ModelNotFoundError for what can be neither. Nothing is asked of the network, and a path may lead to nothing.
    """
    if not text.strip():
        raise ModelError("MODEL is empty; expected the path of a .gguf file, user/repo[:QUANT] or an alias.")
    names = aliases or Aliases()
    meant = names.resolve(text) if is_alias_name(text) else text
    path = _expanded(meant)
    on_hub = None if _MARKED.match(meant) else hub_name(meant)
    if os.path.isdir(path):  # unlike a Path, false for names that no file can have
        raise ModelError(f"{path} is a folder; expected a .gguf file.", hint=_inside(path, on_hub))
    if os.path.exists(path):
        return path
    if on_hub is not None:
        return on_hub
    if is_alias_name(meant):
        hint = did_you_mean(meant, names.all()) or "'tensorsharp alias list' tells the aliases; a repository has a '/'."
        raise ModelNotFoundError(f"'{meant}' is no file and no alias.", hint=hint)
    return path


def locate(
    text: str,
    hub: Hub | None = None,
    progress: Progress | None = None,
    *,
    projector: bool = True,
    offline: bool = False,
) -> ModelFiles:
    """The files of MODEL on this machine, downloaded if the hub has them and the cache has not.

    hub: None makes one when it is needed; `offline` is for that one. Errors: those of :func:`read_name` and of
    :meth:`tensorsharp.weights.hub.Hub.get`.
    """
    found = read_name(text)
    if isinstance(found, Path):
        return ModelFiles(text, found)
    if hub is None:
        from tensorsharp.weights.hub import Hub

        hub = Hub(offline=offline)
    model = hub.get(found, progress, projector=projector)
    return ModelFiles(model.name, model.path, model.projector)


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ModelError(f"'{text}' names a home folder that is not known.") from error


def _inside(folder: Path, on_hub: HubName | None) -> str | None:
    """The folder's models, for the hint; else how to name the repository of the same name."""
    names: list[str] = []
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(".gguf"))
    except OSError:
        return None
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"It holds {', '.join(names[:3])}{more}."
    return f"For the repository on the hub write hf.co/{on_hub}." if on_hub else None
