"""`tensorsharp run` and `tensorsharp chat`."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorsharp import options
from tensorsharp.cli import Program
from tensorsharp.errors import ConfigError
from tensorsharp_app_cli.device import DEVICE
from tensorsharp_app_cli.modelpath import MODEL, model_path
from tensorsharp_app_cli.prompt import one_shot
from tensorsharp_app_cli.status import Status

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.llm import LLM

_LOADING = (*options.NAMES, *DEVICE, options.CONTEXT, *options.STEPS, *options.CACHE)
SHARED = (*_LOADING, *options.SAMPLING, options.LOG_FORMAT)


@click.command()
@MODEL
@click.argument("prompt", required=False)
@options.flags(*SHARED)
@click.option("--logprobs", metavar="N", help="With --json: log-probabilities, with N alternatives for each token.")
@options.JSON
@options.VERBOSE
@click.pass_context
def run(ctx: click.Context, /, model: str, prompt: str | None, as_json: bool, verbose: int, **given: Any) -> None:
    """Answer a prompt with MODEL: a .gguf file, user/repo[:QUANT] on the hub, or an alias.

    The prompt is PROMPT, or what comes through a pipe. With both, PROMPT comes first and the pipe's text follows it after
    a blank line. Without either, on a terminal, it is a conversation.

    Only the answer goes to stdout. Every flag can also be set in the environment, as TENSORSHARP_TOP_K for --top-k, and
    in the configuration file.
    """
    if given["logprobs"] is not None and not as_json:
        raise ConfigError("--logprobs needs --json, which is where they are printed.")
    settings = options.settle(ctx, given)
    path = model_path(model, settings)
    status = Status(always=options.verbosity(ctx, verbose, settings, alone=True) > 0)
    text = one_shot(prompt, status)
    if text is None and (as_json or not sys.stdout.isatty()):
        raise ConfigError("There is no prompt; expected a text as PROMPT or from a pipe.")
    if text is None:
        _converse(ctx, model, settings, status, verbose)
        return
    from tensorsharp_app_cli.answer import answer

    with loaded(ctx, path, settings, status) as llm:
        answer(llm, text, settings, status, as_json=as_json)
        _report(ctx, llm, verbose)


@click.command()
@MODEL
@options.flags(*SHARED)
@options.VERBOSE
@click.pass_context
def chat(ctx: click.Context, /, model: str, verbose: int, **given: Any) -> None:
    """Hold a conversation with MODEL: a .gguf file, user/repo[:QUANT] on the hub, or an alias.

    A line is a message, and "/help" tells the rest: commands begin with "/", and Ctrl-C stops an answer. Without a
    terminal, messages and commands are read from standard input, one a line.
    """
    settings = options.settle(ctx, given)
    status = Status(always=options.verbosity(ctx, verbose, settings, alone=True) > 0)
    _converse(ctx, model, settings, status, verbose)


def _converse(ctx: click.Context, model: str, settings: Settings, status: Status, verbose: int) -> None:
    from tensorsharp_app_cli.repl.loop import converse
    from tensorsharp_app_cli.repl.session import Session

    def opened(name: str, wanted: Settings) -> LLM:
        return _open(ctx, model_path(name, wanted), wanted, status)

    with status, closing(Session(opened, model, settings, status)) as session, second_interrupt_ends():
        converse(session)
        _report(ctx, session.llm, verbose)


@contextmanager
def loaded(ctx: click.Context, path: Path, settings: Settings, status: Status, *, alone: bool = True) -> Iterator[LLM]:
    """The model, as the settings want it, for one request at a time or (not alone) for many; closed at the end."""
    with status, _open(ctx, path, settings, status, alone=alone) as llm, second_interrupt_ends():
        yield llm


def _open(ctx: click.Context, path: Path, settings: Settings, status: Status, *, alone: bool = True) -> LLM:
    from tensorsharp.loading import load

    status.say("starting")
    return load(path, progress=status.loading, **options.loading(ctx, settings, alone=alone))


@contextmanager
def second_interrupt_ends() -> Iterator[None]:
    """After Ctrl-C a model that is closed waits for the step that is being computed; the next Ctrl-C ends the process."""
    try:
        yield
    except KeyboardInterrupt:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise


def _report(ctx: click.Context, llm: LLM, verbose: int) -> None:
    if verbose + ctx.ensure_object(Program).verbosity:
        from tensorsharp_app_cli.facts import run_lines

        click.echo("\n".join(run_lines(llm.report())), err=True)
