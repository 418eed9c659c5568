"""`tensorsharp pull`, `list`, `rm` and `alias`: the models that are known by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorsharp import options
from tensorsharp.errors import ConfigError, ModelError
from tensorsharp.weights.aliases import Aliases
from tensorsharp.weights.names import read_name
from tensorsharp_app_cli.downloads import Downloads
from tensorsharp_app_cli.modelpath import MODEL
from tensorsharp_app_cli.output import emit, emit_json
from tensorsharp_app_cli.tables import printable, size, table

if TYPE_CHECKING:
    from tensorsharp.weights.entry import Entry
    from tensorsharp.weights.hubcache import HubName


@click.command()
@MODEL
@options.flags(*options.NAMES)
@options.JSON
@click.pass_context
def pull(ctx: click.Context, /, model: str, as_json: bool, **given: Any) -> None:
    """Download MODEL, or what is new of it, into the Hugging Face cache.

    MODEL is user/repo, user/repo:QUANT, or an alias of one. All parts of a split model come along, and its file for
    images. A download that was interrupted goes on where it ended.
    """
    from tensorsharp.weights.hub import Hub

    settings = options.settle(ctx, given)
    name = _on_hub(model)
    with Downloads() as downloads:
        found = Hub(offline=settings.offline).pull(name, downloads.tell, projector=not settings.no_mmproj)
    if as_json:
        emit_json(_data(found))
    else:
        emit(f"{found.name}  {size(found.size)}  {found.path}", end="\n")


@click.command(name="list")
@options.JSON
def list_(as_json: bool) -> None:
    """List the models in the Hugging Face cache, and the aliases."""
    from tensorsharp.weights.hub import Hub

    found, aliases = Hub().entries(), Aliases().all()
    if as_json:
        emit_json({"models": [_data(one) for one in found], "aliases": aliases})
        return
    named = {target: name for name, target in sorted(aliases.items(), reverse=True)}
    rows = [
        (printable(one.name), size(one.size), f"{one.modified.astimezone():%Y-%m-%d %H:%M}", named.get(one.name, ""))
        for one in found
    ]
    if not found:
        click.echo("No model was downloaded yet; 'tensorsharp pull user/repo' does it.", err=True)
    lines = list(table(("NAME", "SIZE", "MODIFIED", "ALIAS"), rows, right=(1,)))
    shown = {one.name for one in found}
    others = {name: target for name, target in aliases.items() if target not in shown}
    if others:
        lines += ["", *_alias_lines(others)]
    emit("\n".join(lines), end="\n")


@click.command()
@MODEL
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(model: str, yes: bool) -> None:
    """Delete MODEL from the Hugging Face cache, after asking. Other programs that use it will download it again."""
    from tensorsharp.weights.hub import Hub
    from tensorsharp.weights.hubcache import HubName

    name, hub = _on_hub(model), Hub()
    found = hub.find(name)
    kinds = [one.name for one in hub.cache.models(name.repo)]
    if name.quant is None and len(kinds) > 1:
        raise ConfigError(f"{name} is {len(kinds)} models; expected one of {', '.join(kinds)}.")
    if not yes and not _agreed(f"Delete {printable(found.name)} ({size(found.size)})?"):
        return
    freed = hub.remove(HubName(name.repo, name.quant or found.name.partition(":")[2]))
    click.echo(f"deleted {printable(found.name)}, {size(freed)} freed", err=True)


def _terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _agreed(question: str) -> bool:
    if not _terminal():
        raise ConfigError("There is no terminal to ask on; expected --yes.")
    return click.confirm(question, err=True)


@click.group()
def alias() -> None:
    """Give models short names."""


@alias.command(name="set")
@click.argument("name")
@MODEL
def set_(name: str, model: str) -> None:
    """Let NAME stand for MODEL.

    MODEL is a file, user/repo[:QUANT], or another alias.
    """
    found = read_name(model)
    if not isinstance(found, Path):
        Aliases().set(name, model)
        return
    if not found.exists():
        raise ModelError(f"{found} does not exist; expected a .gguf file, user/repo[:QUANT] or another alias.")
    known = model in Aliases().all()
    Aliases().set(name, model if known else str(found.absolute()))


@alias.command(name="list")
@options.JSON
def list_aliases(as_json: bool) -> None:
    """List the aliases and what they stand for."""
    names = Aliases().all()
    if as_json:
        emit_json({"aliases": names})
    else:
        emit("\n".join(_alias_lines(names)), end="\n")


@alias.command(name="rm")
@click.argument("name")
def remove(name: str) -> None:
    """Forget the alias NAME. The model stays."""
    Aliases().remove(name)


def _on_hub(model: str) -> HubName:
    found = read_name(model)
    if isinstance(found, Path):
        raise ModelError(f"{found} is a file, not a model of the hub; expected user/repo[:QUANT] or an alias of one.")
    return found


def _alias_lines(names: Mapping[str, str]) -> list[str]:
    return list(table(("ALIAS", "MODEL"), [(name, printable(model)) for name, model in sorted(names.items())]))


def _data(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "quant": entry.quant,
        "size": entry.size,
        "modified": entry.modified.isoformat(),
        "path": str(entry.path),
        "projector": None if entry.projector is None else str(entry.projector),
        "digest": entry.digest,
    }
