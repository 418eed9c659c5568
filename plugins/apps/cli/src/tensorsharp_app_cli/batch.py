"""`tensorsharp batch`: answer a file of requests, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorsharp import options
from tensorsharp.errors import TensorSharpError
from tensorsharp_app_cli.batchlines import Asked, read_lines
from tensorsharp_app_cli.batchresults import Results, chat_body, completion_body
from tensorsharp_app_cli.device import DEVICE
from tensorsharp_app_cli.modelpath import MODEL, model_path
from tensorsharp_app_cli.run import loaded
from tensorsharp_app_cli.status import Status

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.llm import LLM

FILE = click.Path(path_type=Path)
DEFAULTS = {"parallel": 8}
AHEAD = 2
"""Requests that are handed over beside those that run, so that a seat never waits for its next one."""
Tell = Callable[[bool], None]
"""Told of every result: whether it is an answer."""


@click.command()
@click.argument("requests", type=FILE)
@click.argument("results", type=FILE)
@MODEL
@options.flags(*options.NAMES, *DEVICE, options.CONTEXT, *options.STEPS, *options.SHARING, *options.SAMPLING, options.LOG_FORMAT)
@options.VERBOSE
@click.pass_context
def batch(ctx: click.Context, /, requests: Path, results: Path, model: str, verbose: int, **given: Any) -> None:
    """Answer every line of the file REQUESTS with MODEL, and append the results to the file RESULTS.

    A line is a request of OpenAI's batch format (custom_id, url, body), or a body alone: {"messages": [...]} or
    {"prompt": "..."}. Flags are the defaults of what a line does not say. Results come in the order in which they are
    ready, 8 at a time unless --parallel says otherwise. Run again, it skips what is answered and tries the rest.

    The exit code is 1 if a line has no answer, else 0.
    """
    settings = options.settle(ctx, given, DEFAULTS)
    path = model_path(model, settings)
    status = Status(always=options.verbosity(ctx, verbose, settings) > 0)
    asked = list(read_lines(requests))
    with Results(results) as found:
        left = [line for line in asked if line.key not in found.answered]
        failed = 0
        if left:
            try:
                with loaded(ctx, path, settings, status, alone=False) as llm, _progress(status, len(asked), len(left)) as tell:
                    failed = asyncio.run(_answer_all(llm, left, settings, found, tell))
            except KeyboardInterrupt:
                click.echo("interrupted; the same command answers what is left", err=True, nl=False)  # the program ends the line
                raise
    if status.shown or failed:
        click.echo(f"{len(left) - failed} answered, {failed} failed, {len(asked) - len(left)} were answered before", err=True)
    ctx.exit(failed > 0)


async def _answer_all(llm: LLM, lines: Sequence[Asked], settings: Settings, results: Results, tell: Tell) -> int:
    """Run all lines, `parallel` at a time. How many have no answer."""
    failed = 0
    seats = asyncio.Semaphore(settings.parallel + (AHEAD if settings.queue is None else min(AHEAD, settings.queue)))

    async def one(line: Asked) -> None:
        nonlocal failed
        try:
            body, error = await _answer(llm, line, settings), None
        except TensorSharpError as caught:
            body, error = None, caught
        finally:
            seats.release()
        failed += error is not None
        results.add(line, body, error)
        tell(error is None)

    try:
        async with asyncio.TaskGroup() as group:
            for line in lines:
                await seats.acquire()
                group.create_task(one(line))
    except ExceptionGroup as failures:  # a result could not be written: the first one says why
        raise failures.exceptions[0] from None
    return failed


async def _answer(llm: LLM, asked: Asked, settings: Settings) -> dict[str, Any]:
    if asked.error is not None:
        raise asked.error
    params = options.sampling(settings) | dict(asked.params)
    model = Path(llm.file.path).name
    if asked.kind == "chat":
        return chat_body(asked, model, await llm.start_chat(asked.messages, **params).wait())
    if asked.kind == "completion":
        return completion_body(asked, model, await llm.agenerate(asked.prompt, raw=True, **params))
    from tensorsharp_app_cli.facts import as_data

    system = asked.system if asked.system is not None else settings.system
    return as_data(llm, await llm.agenerate(asked.prompt, system=system, raw=settings.raw, **params))


@contextmanager
def _progress(status: Status, total: int, left: int) -> Iterator[Tell]:
    """A bar on a terminal, else nothing."""
    status.clear()
    if not status.terminal:
        yield lambda answered: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[failed]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=total - left, failed="")
        failed = 0

        def tell(answered: bool) -> None:
            nonlocal failed
            failed += not answered
            bar.update(task, advance=1, failed=f"{failed} failed" if failed else "")

        yield tell
