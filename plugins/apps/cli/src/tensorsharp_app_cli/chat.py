"""A conversation, line by line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tensorsharp import options
from tensorsharp.errors import RequestError, TensorSharpError
from tensorsharp_app_cli import facts
from tensorsharp_app_cli.answer import print_stream
from tensorsharp_app_cli.output import emit

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.generation import Generation
    from tensorsharp.llm import LLM
    from tensorsharp_app_cli.status import Status

LEAVE = "/bye"


class Conversation:
    """The messages so far. Without a chat template, or with --raw, every line is a prompt of its own."""

    def __init__(self, llm: LLM, settings: Settings) -> None:
        self._llm = llm
        self._params = options.sampling(settings)
        self._plain = settings.raw or not llm.has_template
        if self._plain and settings.system is not None:
            raise RequestError(
                "A system prompt needs a chat template, which --raw leaves out or the model lacks.", param="system"
            )
        self.messages = [] if settings.system is None else [{"role": "system", "content": settings.system}]

    def ask(self, text: str, status: Status) -> None:
        """Print the answer and remember both. An answer that is stopped counts as far as it came."""
        status.say("reading the prompt")
        asked = [*self.messages, {"role": "user", "content": text}]
        generation = self._start(text, asked)
        try:
            reply = print_stream(generation, status)
        except KeyboardInterrupt:
            status.clear()
            emit("\n")
            generation.cancel()
            reply = generation.result()
        if not self._plain:
            self.messages = [*asked, {"role": "assistant", "content": reply.text}]
        if status.shown:
            click.echo(facts.speeds(reply), err=True)

    def _start(self, text: str, asked: list[dict[str, str]]) -> Generation:
        if self._plain:
            return self._llm.stream(text, raw=True, **self._params)
        return self._llm.stream_chat(asked, **self._params)


def converse(llm: LLM, settings: Settings, status: Status) -> None:
    """Ask for a line, print the answer, until /bye, Ctrl-D or the end of the input; Ctrl-C at an empty prompt leaves too."""
    conversation = Conversation(llm, settings)
    status.clear()
    read = _reader()
    while (line := read()) is not None:
        text = line.strip()
        if text == LEAVE:
            return
        if not text:
            continue
        try:
            conversation.ask(text, status)
        except TensorSharpError as error:
            status.clear()
            click.echo(f"error: {error}", err=True)
            if error.hint:
                click.echo(f"hint: {error.hint}", err=True)


def _reader() -> Callable[[], str | None]:
    """A function that gives the next line, or None at the end."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda: sys.stdin.readline() or None
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession()

    def ask() -> str | None:
        while True:
            try:
                return session.prompt("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not session.default_buffer.text:
                    raise

    return ask
