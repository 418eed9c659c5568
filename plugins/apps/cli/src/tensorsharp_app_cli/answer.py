"""One prompt, one answer: streamed to stdout, or as one JSON object."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tensorsharp import options
from tensorsharp_app_cli import facts
from tensorsharp_app_cli.output import emit, emit_json

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.generation import Generation, Reply
    from tensorsharp.llm import LLM
    from tensorsharp_app_cli.status import Status


def answer(llm: LLM, prompt: str, settings: Settings, status: Status, *, as_json: bool) -> None:
    """Print the reply to a prompt, and nothing else, on stdout."""
    status.say("reading the prompt")
    params = options.sampling(settings) | ({"logprobs": settings.logprobs} if as_json else {})
    generation = llm.stream(prompt, system=settings.system, raw=settings.raw, **params)
    if as_json:
        reply = generation.result()
        status.clear()
        emit_json(facts.as_data(llm, reply))
    else:
        reply = print_stream(generation, status)
    if status.shown:
        click.echo(facts.speeds(reply), err=True)


def print_stream(generation: Generation, status: Status) -> Reply:
    """Print a reply as it comes, and a line end. What was printed stays, however the reply ends."""
    try:
        for piece in generation:
            status.clear()
            emit(piece)
    except Exception:
        if sys.stdout.isatty():
            emit("\n")  # so that the error begins a line
        raise
    status.clear()
    emit("\n")
    return generation.result()
