"""MODEL of a command: a file, an alias, or a repository on the hub, whose files come into the cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorsharp.errors import TensorSharpError
from tensorsharp.weights.names import locate, read_name
from tensorsharp_app_cli.downloads import Downloads

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tensorsharp.config import Settings


def model_path(text: str, settings: Settings) -> Path:
    """The file that MODEL names, downloaded if need be, with progress on stderr."""
    with Downloads() as downloads:
        return locate(text, progress=downloads.tell, projector=not settings.no_mmproj, offline=settings.offline).path


def cached_path(text: str) -> Path:
    """The file that MODEL names, if it is on this machine. ModelNotFoundError tells how to download it."""
    found = read_name(text)
    if isinstance(found, Path):
        return found
    from tensorsharp.weights.hub import Hub

    return Hub().find(found).path


def known_names() -> list[str]:
    """Aliases, and what the cache holds: what MODEL may be besides a file. Empty where that cannot be told."""
    from tensorsharp.weights.aliases import Aliases
    from tensorsharp.weights.hubcache import HubCache, cache_folder

    try:
        return [*sorted(Aliases().all()), *(one.name for one in HubCache(cache_folder()).entries())]
    except TensorSharpError:
        return []


def _complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names that begin so, and the shell's own completion of files."""
    from click.shell_completion import CompletionItem

    names = [CompletionItem(name) for name in known_names() if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="file")]


MODEL = click.argument("model", shell_complete=_complete)
