"""What a conversation consists of: the model, the settings, the messages so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tensorsharp_app_cli import facts
from tensorsharp_app_cli.answer import Message, start, without_template
from tensorsharp_app_cli.output import emit
from tensorsharp_app_cli.printing import print_pieces

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.llm import LLM
    from tensorsharp_app_cli.status import Status

Open = Callable[[str, "Settings"], "LLM"]
"""Loads MODEL as the settings want it."""


class Session:
    """Where no chat template is used, each prompt stands alone and `messages` stays as it is.

    Opens the model; whoever makes a session closes it. RequestError for a system message without a template.
    """

    def __init__(self, opened: Open, model: str, settings: Settings, status: Status) -> None:
        self.model = model
        self.settings = settings
        self.status = status
        self.messages: list[Message] = []
        self.verbose = status.shown
        self.leaving = False
        self._open = opened
        self.llm = self._opened(model, settings)

    @property
    def plain(self) -> bool:
        """Whether prompts are given to the model as they are."""
        return without_template(self.llm, self.settings)

    def ask(self, text: str) -> None:
        """Print the answer and remember both. An answer that is stopped counts as far as it came."""
        self.status.say("reading the prompt")
        generation = start(self.llm, text, self.messages, self.settings)
        try:
            print_pieces(generation, self.status)
        except KeyboardInterrupt:
            self.status.clear()
            emit("\n")
            generation.cancel()
        finished = generation.result()
        content = facts.content_of(finished)
        if not self.plain and content:
            self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": content}]
        if self.verbose:
            self.say(facts.speeds(finished))

    def change(self, **settings: Any) -> None:
        """Let settings hold from the next answer on. An error changes nothing."""
        changed = replace(self.settings, **settings)
        without_template(self.llm, changed)
        self.settings = changed

    def load(self, model: str | None = None, **settings: Any) -> None:
        """Go on with another model, or the same one with other settings. An error or Ctrl-C keeps the one there is."""
        name, changed = model or self.model, replace(self.settings, **settings)
        llm = self._opened(name, changed)
        self.close()
        self.llm, self.model, self.settings = llm, name, changed

    def _opened(self, model: str, settings: Settings) -> LLM:
        with self.status:
            llm = self._open(model, settings)
        try:
            without_template(llm, settings)
        except BaseException:
            llm.close()
            raise
        return llm

    def say(self, text: str) -> None:
        """Tell the person something that is no answer."""
        self.status.clear()
        click.echo(text, err=True)

    def close(self) -> None:
        self.llm.close()
