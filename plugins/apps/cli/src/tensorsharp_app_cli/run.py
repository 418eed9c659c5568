"""`tensorsharp run` and `tensorsharp chat`."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
    with loaded(ctx, str(path), settings, status) as llm:
        if text is None:
            from tensorsharp_app_cli.chat import converse

            converse(llm, settings, status)
        else:
            from tensorsharp_app_cli.answer import answer

            answer(llm, text, settings, status, as_json=as_json)
        _report(ctx, llm, verbose)


@click.command()
@MODEL
@options.flags(*SHARED)
@options.VERBOSE
@click.pass_context
def chat(ctx: click.Context, /, model: str, verbose: int, **given: Any) -> None:
    """Hold a conversation with MODEL: a .gguf file, user/repo[:QUANT] on the hub, or an alias.

    A line is a message. Ctrl-C stops an answer; /bye or Ctrl-D leaves. Without a terminal, messages are read from standard
    input, one a line.
    """
    from tensorsharp_app_cli.chat import converse

    settings = options.settle(ctx, given)
    status = Status(always=options.verbosity(ctx, verbose, settings, alone=True) > 0)
    with loaded(ctx, str(model_path(model, settings)), settings, status) as llm:
        converse(llm, settings, status)
        _report(ctx, llm, verbose)


@contextmanager
def loaded(ctx: click.Context, path: str, settings: Settings, status: Status, *, alone: bool = True) -> Iterator[LLM]:
    """The model, as the settings want it, for one request at a time or (not alone) for many; closed at the end.

    Closing waits for the step that is being computed. A second Ctrl-C does not: it ends the process at once.
    """
    from tensorsharp.llm import load

    status.say("starting")
    try:
        with load(path, progress=status.loading, **options.loading(ctx, settings, alone=alone)) as llm:
            try:
                yield llm
            except KeyboardInterrupt:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, signal.SIG_DFL)
                raise
    finally:
        status.clear()


def _report(ctx: click.Context, llm: LLM, verbose: int) -> None:
    if verbose + ctx.ensure_object(Program).verbosity:
        from tensorsharp_app_cli.facts import run_lines

        click.echo("\n".join(run_lines(llm.report())), err=True)
