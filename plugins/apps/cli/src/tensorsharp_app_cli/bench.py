"""`tensorsharp bench`: how fast a model reads and writes, over a ladder of context lengths or numbers of requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tensorsharp import options
from tensorsharp.cli import Program
from tensorsharp.errors import ConfigError
from tensorsharp_app_cli.device import DEVICE
from tensorsharp_app_cli.ladder import Ladder, Row
from tensorsharp_app_cli.modelpath import MODEL, model_path
from tensorsharp_app_cli.output import emit, emit_json
from tensorsharp_app_cli.status import Status
from tensorsharp_app_cli.streams import StreamRow, Streams, measure_streams, read_counts

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.opening import Opened
    from tensorsharp.protocols.backend import Backend
    from tensorsharp.protocols.file import ModelFile

COUNT = click.IntRange(min=1)
ANY = click.IntRange(min=0)
AnyRow = TypeVar("AnyRow", "Row", "StreamRow")
TOGETHER_ONLY = ("shared_prefix", "prompt_tokens")
LADDER_ONLY = ("ctx_start", "ctx_max", "step_incr", "step_mul", "plot")
FILE = click.Path(path_type=Path)


@click.command()
@MODEL
@click.option("--ctx-start", metavar="N", type=COUNT, default=2048, show_default=True, help="The first context length.")
@click.option("--ctx-max", metavar="N", type=COUNT, help="The last one.  [default: what the model allows, at most 32768]")
@click.option("--step-incr", metavar="N", type=COUNT, default=2048, show_default=True, help="Tokens from one length to the next.")
@click.option(
    "--step-mul", metavar="F", type=click.FloatRange(min=1), default=1.0, show_default=True, help="Multiply instead, if above 1."
)
@click.option("--gen-tokens", metavar="N", type=COUNT, default=128, show_default=True, help="Tokens to write.")
@click.option("--concurrency", metavar="N,N…", help="Measure requests that arrive together instead, so many at a time.")
@click.option(
    "--shared-prefix", metavar="N", type=ANY, default=0, show_default=True, help="With it: tokens that their prompts share."
)
@click.option(
    "--prompt-tokens", metavar="N", type=COUNT, default=128, show_default=True, help="With it: tokens of each prompt after those."
)
@click.option("--prompt-file", metavar="FILE", type=FILE, help="The text to read, UTF-8.  [default: a generated one]")
@click.option("--csv", "csv_file", metavar="FILE", type=FILE, help="Write the rows to this file instead of stdout.")
@click.option("--plot", metavar="FILE", type=FILE, help="Also draw the speeds, as .svg or .png (needs matplotlib).")
@options.flags(*DEVICE, *options.NAMES, *options.STEPS, options.LOG_FORMAT)
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
    concurrency: str | None,
    shared_prefix: int,
    prompt_tokens: int,
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

    With --concurrency it measures many requests at once instead, through the whole engine: how much they write together,
    how fast each one is, how long it waits for its first token, and how much of the prompts was shared.
    """
    settings = options.settle(ctx, given)
    path = model_path(model, settings)
    text = None if prompt_file is None else _text(prompt_file)
    status = Status(always=options.verbosity(ctx, verbose, settings) > 0)
    status.say("loading the model")
    try:
        if concurrency is not None:
            asked = Streams(read_counts(concurrency), shared_prefix, prompt_tokens, gen_tokens, text)
            _streams(ctx, path, settings, asked, csv_file, status, as_json=as_json)
        else:
            _refuse(ctx, TOGETHER_ONLY, "requests that arrive together; expected --concurrency too")
            ladder = Ladder(ctx_start, ctx_max, step_incr, step_mul, gen_tokens, text)
            _ladder(ctx, path, settings, ladder, csv_file, plot, status, as_json=as_json)
    finally:
        status.clear()


def _refuse(ctx: click.Context, names: Sequence[str], purpose: str) -> None:
    """Flags that would change nothing are an error."""
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ConfigError(f"--{name.replace('_', '-')} is for {purpose}.")


def _ladder(
    ctx: click.Context,
    path: Path,
    settings: Settings,
    ladder: Ladder,
    csv_file: Path | None,
    plot: Path | None,
    status: Status,
    *,
    as_json: bool,
) -> None:
    from tensorsharp_app_cli.measure import measure
    from tensorsharp_app_cli.plot import check_plot, save_plot

    if plot is not None:
        check_plot(plot)
    with _csv(csv_file) as file, _opened(ctx, path, settings) as this:
        rows = list(_shown(measure(this, settings.kv_type, ladder, status.say), file, status, as_json=as_json))
        if as_json:
            emit_json(_data(this.file, this.backend, settings, rows))
        if plot is not None:
            save_plot(plot, rows, f"{path.name}, {this.backend.name} on {this.backend.device}")


def _streams(
    ctx: click.Context, path: Path, settings: Settings, asked: Streams, csv_file: Path | None, status: Status, *, as_json: bool
) -> None:
    from tensorsharp_app_cli.run import loaded

    _refuse(ctx, LADDER_ONLY, "growing contexts; --concurrency measures something else")
    most = max(asked.counts)
    chosen = replace(settings, ctx_size=asked.context, parallel=most, queue=None, step_tokens=max(settings.step_tokens, most))
    with _csv(csv_file) as file, loaded(ctx, path, chosen, status, alone=False) as llm:
        rows = list(_shown(measure_streams(llm, asked, status.say), file, status, as_json=as_json))
        if as_json:
            shape = {"shared_prefix": asked.shared, "prompt_tokens": asked.own, "gen_tokens": asked.written}
            emit_json(_data(llm.file, llm.backend, settings, rows) | shape)


def _shown(rows: Iterator[AnyRow], file: IO[str] | None, status: Status, *, as_json: bool) -> Iterator[AnyRow]:
    """The rows, each written as soon as it is measured: the next one may take long."""
    for number, row in enumerate(rows):
        status.clear()
        lines = ("" if number else ",".join(row.data()) + "\n") + f"{row.csv()}\n"
        if file is not None:
            print(lines, end="", file=file, flush=True)
        elif not as_json:
            emit(lines)
        yield row


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


def _data(file: ModelFile, backend: Backend, settings: Settings, rows: Sequence[Row | StreamRow]) -> dict[str, Any]:
    return {
        "model": file.path,
        "architecture": file.architecture,
        "backend": backend.name,
        "device": backend.device,
        "threads": backend.threads,
        "arithmetic_id": backend.arithmetic_id,
        "kv_type": settings.kv_type,
        "rows": [row.data() for row in rows],
    }
