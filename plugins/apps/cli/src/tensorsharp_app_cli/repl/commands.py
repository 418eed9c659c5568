"""The commands of a conversation: one table, looked up by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorsharp.errors import ConfigError, did_you_mean
from tensorsharp_app_cli.repl import saved, tuning

if TYPE_CHECKING:
    from tensorsharp_app_cli.repl.session import Session


@dataclass(frozen=True, slots=True)
class Command:
    """names: without the "/"; the first is the usual one. words: what may follow, for completion, given what was typed
    of it so far."""

    names: tuple[str, ...]
    usage: str
    summary: str
    run: Callable[[Session, str], None]
    words: Callable[[Session, str], Sequence[str]] = lambda session, typed: ()


def command(session: Session, text: str) -> None:
    """Do what a line that begins with "/" says. ConfigError for an unknown command, and what the command raises."""
    name, _, rest = text[1:].strip().partition(" ")
    known = {name: one for one in COMMANDS for name in one.names}
    if name not in known:
        hint = did_you_mean(f"/{name}", [f"/{one}" for one in known]) or "'/help' lists the commands."
        raise ConfigError(f"There is no command '/{name}'.", hint=f"{hint} With a space before it, it is a message.")
    known[name].run(session, rest.strip())


def candidates(session: Session, text: str) -> list[str]:
    """What the last word of a command may become."""
    name, space, rest = text[1:].partition(" ")
    if not space:
        return [f"/{one.names[0]}" for one in COMMANDS if one.names[0].startswith(name)]
    last = rest.rpartition(" ")[2]
    found = [one.words(session, rest) for one in COMMANDS if name in one.names]
    return [word for words in found for word in words if word.startswith(last)]


def _help(session: Session, rest: str) -> None:
    width = max(len(_usage(one)) for one in COMMANDS)
    lines = [f"{_usage(one):<{width}}  {one.summary}" for one in COMMANDS]
    session.say("\n".join([*lines, *KEYS]))


def _usage(one: Command) -> str:
    return f"{' '.join(f'/{name}' for name in one.names)} {one.usage}".rstrip()


def _clear(session: Session, rest: str) -> None:
    session.messages.clear()
    session.say("The conversation is forgotten.")


def _bye(session: Session, rest: str) -> None:
    session.leaving = True


def _model(session: Session, rest: str) -> None:
    if not rest:
        session.say(f"{session.model}, on {session.llm.backend.name}")
        return
    session.load(rest)
    session.say(f"Going on with {rest}." + (" It has no chat template: each message stands alone." if session.plain else ""))


def _backend(session: Session, rest: str) -> None:
    if not rest:
        session.say(f"{session.llm.backend.name} on {session.llm.backend.device}; there are {', '.join(_backends(session, ''))}")
        return
    session.load(backend=rest, device=None)  # a device belongs to its backend
    session.say(f"Going on with {session.llm.backend.name} on {session.llm.backend.device}.")


def _backends(session: Session, typed: str) -> list[str]:
    from tensorsharp.registry import Registry

    return Registry(session.settings.disable_plugins).names("backend")


def _models(session: Session, typed: str) -> list[str]:
    from tensorsharp_app_cli.modelpath import known_names

    return known_names()


COMMANDS = (
    Command(("help", "?"), "", "what there is", _help),
    Command(("set",), "parameter|system|think|verbose …", "change how answers are made", tuning.change, tuning.words),
    Command(("show",), "", "the model, the parameters, the conversation", tuning.show),
    Command(("system",), "[TEXT]", 'the system message; "" takes it away', tuning.system),
    Command(("think",), "[on|off|LEVEL]", "whether, or how much, to reason", tuning.think, tuning.think_words),
    Command(("save",), "NAME", "keep the conversation", saved.save, saved.names),
    Command(("load",), "[NAME]", "go on with a conversation that was kept", saved.load, saved.names),
    Command(("clear",), "", "forget the conversation", _clear),
    Command(("model",), "[MODEL]", "go on with another model", _model, _models),
    Command(("backend",), "[NAME]", "go on with another backend", _backend, _backends),
    Command(("bye",), "", "leave", _bye),
)
KEYS = (
    "",
    'Three quotation marks """ begin and end a message of several lines.',
    "Alt-Enter begins a line, Ctrl-G opens the editor.",
    "Ctrl-C stops an answer, drops what was typed, and leaves from an empty prompt.",
    "Ctrl-D leaves.",
)
