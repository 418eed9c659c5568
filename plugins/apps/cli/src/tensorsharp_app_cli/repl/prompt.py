"""Typing on a terminal: lines, history, completion, an editor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from tensorsharp.config import state_folder
from tensorsharp_app_cli.repl.commands import candidates
from tensorsharp_app_cli.repl.messages import is_open

if TYPE_CHECKING:
    from tensorsharp_app_cli.repl.session import Session


def prompter(session: Session) -> Callable[[], str | None]:
    """A function that asks for a message or command. None: Ctrl-D. KeyboardInterrupt: Ctrl-C at an empty prompt; at
    another one it takes away what was typed."""
    typing: PromptSession[str] = PromptSession(
        history=_history(),
        completer=CommandCompleter(session),
        complete_while_typing=Condition(lambda: typing.default_buffer.text.startswith("/")),
        key_bindings=_keys(),
        multiline=True,
        prompt_continuation=lambda width, line, wrapped: "  " if wrapped else ". ",
    )

    def ask() -> str | None:
        while True:
            try:
                return typing.prompt("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not typing.default_buffer.text:
                    raise

    return ask


def _keys() -> KeyBindings:
    """Enter sends, unless a message in three quotation marks is open; Alt-Enter begins a line; Ctrl-G opens the editor."""
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-g")
    def edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    return keys


def _history() -> History:
    """What was typed in earlier runs too, where the folder can be written."""
    folder = state_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "history").touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(folder / "history"))


class CommandCompleter(Completer):
    """Commands, and what may follow them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            last = text.rpartition(" ")[2]
            for word in candidates(self._session, text):
                yield Completion(word, start_position=-len(last))
