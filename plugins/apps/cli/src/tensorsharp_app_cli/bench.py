"""`tensorsharp bench`: how fast a model reads and writes, over a ladder of context lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from tensorsharp import options
from tensorsharp.cli import Program
from tensorsharp.errors import ConfigError
from tensorsharp_app_cli.device import DEVICE
from tensorsharp_app_cli.modelpath import MODEL, model_path
from tensorsharp_app_cli.output import emit, emit_json
from tensorsharp_app_cli.status import Status

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.opening import Opened
    from tensorsharp_app_cli.ladder import Row

COUNT = click.IntRange(min=1)
FILE = click.Path(path_type=Path)


@click.command()
@MODEL
@click.option("--ctx-start", type=COUNT, default=2048, show_default=True, help="The first context length.")
@click.option("--ctx-max", type=COUNT, help="The last one.  [default: what the model allows, at most 32768]")
@click.option("--step-incr", type=COUNT, default=2048, show_default=True, help="Tokens from one length to the next.")
@click.option("--step-mul", type=click.FloatRange(min=1), default=1.0, show_default=True, help="Multiply instead, if above 1.")
@click.option("--gen-tokens", type=COUNT, default=128, show_default=True, help="Tokens to write at every length.")
@click.option("--prompt-file", type=FILE, help="The text to read, UTF-8.  [default: a generated one]")
@click.option("--csv", "csv_file", type=FILE, help="Write the rows to this file instead of stdout.")
@click.option("--plot", type=FILE, help="Also draw the speeds, as .svg or .png (needs matplotlib).")
@options.flags(*DEVICE, *options.NAMES)
@options.JSON
@options.VERBOSE
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    model: str,
    ctx_start: int,
    ctx_max: int | None,
    step_incr: int,
    step_mul: float,
    gen_tokens: int,
    prompt_file: Path | None,
    csv_file: Path | None,
    plot: Path | None,
    as_json: bool,
    verbose: int,
    **given: Any,
) -> None:
    """Measure how fast MODEL reads and writes, over growing contexts.

    At every length: read on to it (prefill_tps is the speed of the new tokens alone), then write the likeliest tokens
    except those that end a reply, and take back what was written. Weights and graphs are warmed up first; saving and
    restoring is not timed.
    """
    from tensorsharp_app_cli.plot import check_plot, save_plot

    settings = options.settle(ctx, given)
    path = model_path(model, settings)
    if plot is not None:
        check_plot(plot)
    text = None if prompt_file is None else _text(prompt_file)
    status = Status(always=options.verbosity(ctx, verbose, settings) > 0)
    status.say("loading the model")
    try:
        from tensorsharp_app_cli.ladder import HEADER
        from tensorsharp_app_cli.measure import Ladder, measure

        ladder = Ladder(ctx_start, ctx_max, step_incr, step_mul, gen_tokens, text)
        with _csv(csv_file) as file, _opened(ctx, path, settings) as this:
            rows: list[Row] = []
            for row in measure(this, settings.kv_type, ladder, status.say):
                status.clear()
                lines = ("" if rows else f"{HEADER}\n") + f"{row.csv()}\n"
                if file is not None:
                    print(lines, end="", file=file, flush=True)  # at once: the next row may take long
                elif not as_json:
                    emit(lines)
                rows.append(row)
            if as_json:
                emit_json(_data(this, settings, rows))
            if plot is not None:
                save_plot(plot, rows, f"{path.name}, {this.backend.name} on {this.backend.device}")
    finally:
        status.clear()


@contextmanager
def _opened(ctx: click.Context, path: Path, settings: Settings) -> Iterator[Opened]:
    from tensorsharp.opening import opened
    from tensorsharp.protocols.backend import BackendOptions

    name, own = options.backend(ctx, settings)
    registry = ctx.ensure_object(Program).registry
    with opened(path, registry, name, BackendOptions(settings.device, settings.threads, own)) as this:
        yield this


def _csv(path: Path | None) -> AbstractContextManager[IO[str] | None]:
    """The file for the rows, opened before minutes are spent on measuring."""
    if path is None:
        return nullcontext()
    try:
        return open(path, "w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"--csv {path} cannot be written: {error.strerror or error}.") from error


def _text(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--prompt-file {path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompt-file {path} is no UTF-8 text: {error.reason} at byte {error.start}.") from error


def _data(this: Opened, settings: Settings, rows: Sequence[Row]) -> dict[str, Any]:
    backend = this.backend
    return {
        "model": this.file.path,
        "architecture": this.file.architecture,
        "backend": backend.name,
        "device": backend.device,
        "threads": backend.threads,
        "arithmetic_id": backend.arithmetic_id,
        "kv_type": settings.kv_type,
        "rows": [row.data() for row in rows],
    }
