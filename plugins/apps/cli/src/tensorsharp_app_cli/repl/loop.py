"""Ask, answer, until the person leaves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tensorsharp.errors import RequestError, TensorSharpError
from tensorsharp_app_cli.repl.commands import command
from tensorsharp_app_cli.repl.messages import FENCE, read_lines, unfenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorsharp_app_cli.repl.session import Session


def converse(session: Session) -> None:
    """Until /bye, Ctrl-D or the end of the input. Ctrl-C at an empty prompt leaves too, as KeyboardInterrupt.

    A line that begins with "/" is a command, any other a message; a space before the "/" makes it one. An error is told,
    and the conversation goes on.
    """
    session.status.clear()
    read = _reader(session)
    while not session.leaving and (text := read()) is not None:
        if not text.strip():
            continue
        try:
            if text.startswith("/"):
                _obey(session, text)
            else:
                session.ask(unfenced(text) if text.lstrip().startswith(FENCE) else text.strip())
        except TensorSharpError as error:
            session.say(f"error: {error}")
            if hint := _hint(session, error):
                click.echo(f"hint: {hint}", err=True)


def _hint(session: Session, error: TensorSharpError) -> str | None:
    """What helps here: a context that is full is full of the conversation, and reasoning is a command's."""
    if isinstance(error, RequestError) and error.code == "context_length_exceeded" and session.messages:
        return "/clear forgets the conversation; --ctx-size makes room for a longer one."
    if isinstance(error, RequestError) and error.param == "reasoning":
        return "/think default leaves it to the model."
    return error.hint


def _obey(session: Session, text: str) -> None:
    try:
        command(session, text)
    except KeyboardInterrupt:
        session.say("stopped")


def _reader(session: Session) -> Callable[[], str | None]:
    """A function that gives the next message or command, or None at the end."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        from tensorsharp_app_cli.repl.prompt import prompter

        session.say(f"{session.model}, on {session.llm.backend.name}. /help tells what there is.")
        return prompter(session)
    return read_lines(sys.stdin)
