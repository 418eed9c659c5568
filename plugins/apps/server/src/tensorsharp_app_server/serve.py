"""`tensorsharp serve`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tensorsharp import options
from tensorsharp.errors import ConfigError, ModelError, ModelNotFoundError

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.hooks import Hooks
    from tensorsharp.registry import Registry
    from tensorsharp_app_server.catalog import Catalog
    from tensorsharp_app_server.host import ModelHost
    from tensorsharp_app_server.settings import ServerSettings

PROGRESS_S = 5.0
DEFAULTS = {"parallel": 4, "queue": 128}
"""A server is for several clients, and does not let an endless number of them wait."""
SERVING = (
    click.option("--host", metavar="NAME", help="Listen on this name or address.  [default: 127.0.0.1]"),
    click.option("--port", metavar="N", help="Listen on this port; 0 takes a free one.  [default: 8080]"),
    click.option("--api-key", metavar="KEY", multiple=True, help="Ask for this key; may be repeated.  [default: none]"),
    click.option("--api-key-file", metavar="FILE", help="Ask for one of the keys in this file, one a line."),
    click.option("--cors", metavar="ORIGIN", multiple=True, help="Let pages of this origin use the server; * for all."),
    click.option("--models-dir", metavar="FOLDER", help="Serve the .gguf files in this folder, loaded when asked for."),
    click.option("--max-models", metavar="N", help="Most models in memory at a time.  [default: 1]"),
    click.option("--keep-alive", metavar="TIME", help="How long an unused model stays in memory.  [default: 5m]"),
    click.option("--timeout", metavar="TIME", help="The longest that a request may take.  [default: 1h]"),
    click.option("--grace", metavar="TIME", help="How long running requests may go on at the end.  [default: 10s]"),
    click.option("--max-body", metavar="SIZE", help="The largest body of a request.  [default: 32M]"),
)


@click.command()
@click.argument("model", required=False)
@options.flags(
    *SERVING,
    *options.NAMES,
    *options.DEVICE,
    options.CONTEXT,
    *options.STEPS,
    *options.CACHE,
    *options.SHARING,
    options.LOG_FORMAT,
)
@options.VERBOSE
@click.pass_context
def serve(ctx: click.Context, /, model: str | None, verbose: int, **given: Any) -> None:
    """Serve MODEL over HTTP: the path of a .gguf file, user/repo[:QUANT] on the Hugging Face hub, or an alias.

    It is loaded at once and stays in memory. Without MODEL, those of --models-dir or of the hub's cache on this machine are
    served: loaded when a request names them, and closed when nobody has used them for a while. 4 requests run at a time
    and 128 wait, unless --parallel and --queue say otherwise.
    """
    settings = options.settle(ctx, given, DEFAULTS)
    options.verbosity(ctx, verbose, settings)
    if model is not None and ctx.get_parameter_source("models_dir") is ParameterSource.COMMANDLINE:
        raise ConfigError("Both MODEL and --models-dir are given; expected one of them.")
    catalog = _catalog(model, settings)
    asyncio.run(_serve(ctx, settings, catalog, at_once=model is not None))


async def _serve(ctx: click.Context, settings: Settings, catalog: Catalog, *, at_once: bool) -> None:
    from tensorsharp.loading import load
    from tensorsharp_app_server.app import create_app
    from tensorsharp_app_server.host import ModelHost
    from tensorsharp_app_server.program import Program, listen, run_program, url
    from tensorsharp_app_server.security import is_loopback

    how = options.loading(ctx, settings)
    host = ModelHost(
        catalog,
        lambda path: load(path, **how),
        keep_alive_s=math.inf if at_once else settings.keep_alive,
        room=settings.max_models,
    )
    rules = server_settings(settings)
    if not (rules.api_keys or is_loopback(rules.host)):
        click.echo("warning: no key is asked for; whoever reaches this machine may use the server. --api-key sets one.", err=True)
    app = create_app(host, rules, _hooks(how["registry"]))
    listening = listen(settings.host, settings.port)

    async def start() -> None:
        if at_once:
            await _started(host)
        click.echo(f"Serving {', '.join(entry.name for entry in catalog.entries()[:5]) or 'no model yet'} at {url(listening)}")

    await run_program(Program(app, grace_s=settings.grace), listening, start, host.close)


async def _started(host: ModelHost) -> None:
    """Here a model that cannot be loaded ends the program, with the exit code of the reason."""
    from tensorsharp_app_server.errors import RefusedError

    try:
        await host.start()
    except RefusedError as error:
        raise error.__cause__ or error from None


def server_settings(settings: Settings) -> ServerSettings:
    """The part of the settings that the application looks at; reads the file of keys."""
    from tensorsharp_app_server.security import read_keys
    from tensorsharp_app_server.settings import ServerSettings

    file = settings.api_key_file
    return ServerSettings(
        host=settings.host,
        api_keys=(*settings.api_key, *(read_keys(Path(file).expanduser()) if file else ())),
        origins=settings.cors,
        max_body=settings.max_body,
        timeout_s=None if math.isinf(settings.timeout) else settings.timeout,
    )


def _catalog(model: str | None, settings: Settings) -> Catalog:
    from tensorsharp.weights.aliases import Aliases
    from tensorsharp.weights.folder import ModelsFolder
    from tensorsharp.weights.hub import Hub
    from tensorsharp.weights.names import locate
    from tensorsharp_app_server.catalog import HubModels, OneModel

    if model is None:
        if settings.models_dir is not None:
            return ModelsFolder(settings.models_dir)
        return HubModels(Hub(offline=settings.offline), Aliases())
    try:
        found = locate(model, progress=_progress(), projector=not settings.no_mmproj, offline=settings.offline)
    except ModelError as error:
        if not Path(model).is_dir():
            raise
        raise ModelError(str(error), hint=f"All models of a folder: tensorsharp serve --models-dir {model}") from None
    if not found.path.is_file():
        raise ModelNotFoundError(f"{found.path} is no file; expected the path of a .gguf file, user/repo[:QUANT] or an alias.")
    return OneModel(found.path.stem if found.name == model and found.path.exists() else found.name, found.path, found.projector)


def _progress() -> Callable[[str, int, int], None]:
    """Tells on stderr how far a download is, every few seconds."""
    told = 0.0

    def tell(file: str, done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            click.echo(f"downloading {file}: {done * 100 // max(total, 1)} %", err=True)

    return tell


def _hooks(registry: Registry) -> Hooks:
    from tensorsharp.hooks import Hooks

    return Hooks(registry)
