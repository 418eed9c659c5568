"""`/set`, `/show`, `/system` and `/think`: how answers are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tensorsharp.config import EXPECTED, Settings, checked
from tensorsharp.errors import ConfigError, did_you_mean
from tensorsharp.options import SAMPLING_SETTINGS
from tensorsharp.types import EFFORTS
from tensorsharp_app_cli.tables import printable

if TYPE_CHECKING:
    from tensorsharp_app_cli.repl.session import Session

PARAMETERS = tuple(name.replace("_", "-") for name in SAMPLING_SETTINGS)
_DEFAULTS = Settings()


def change(session: Session, rest: str) -> None:
    """`/set WHAT VALUE`."""
    what, _, value = rest.partition(" ")
    if what not in _CHANGES:
        expected = f"expected {', '.join(_CHANGES)}"
        if not what:
            raise ConfigError(f"/set is told nothing to change; {expected}.")
        hint = f"Did you mean '/set parameter {rest}'?" if what in PARAMETERS else did_you_mean(what, _CHANGES)
        raise ConfigError(f"/set has no '{what}'; {expected}.", hint=hint)
    _CHANGES[what](session, value.strip())


def words(session: Session, typed: str) -> Sequence[str]:
    """What may follow `/set`."""
    parts = typed.split(" ")
    if len(parts) == 1:
        return tuple(_CHANGES)
    if len(parts) == 2:
        return {"parameter": PARAMETERS, "think": think_words(session, ""), "verbose": ("on", "off")}.get(parts[0], ())
    return ()


def system(session: Session, rest: str) -> None:
    """The system message: tell it, set it, or with `""` take it away."""
    if rest:
        session.change(system=None if rest == '""' else rest)
    session.say(f"system: {_told(session.settings.system)}")


def think(session: Session, rest: str) -> None:
    """Whether to reason: tell it, or set it."""
    if rest:
        session.change(think=None if rest == "default" else checked("think", rest, "/set"))
    session.say(f"think: {_told(session.settings.think)}")


def think_words(session: Session, typed: str) -> Sequence[str]:
    return ("on", "off", *EFFORTS, "default")


def show(session: Session, rest: str) -> None:
    """Everything that shapes an answer."""
    llm = session.llm
    lines = {
        "model": f"{session.model} ({llm.file.architecture}, context {llm.engine.limit})",
        "backend": f"{llm.backend.name} on {llm.backend.device}",
        "system": _told(session.settings.system),
        "think": _told(session.settings.think),
        "messages": "each stands alone, without a chat template" if session.plain else str(len(session.messages)),
        **{name: _told(_value(session, name)) for name in PARAMETERS},
    }
    session.say("\n".join(f"{name:<17} {value}" for name, value in lines.items()))


def _parameter(session: Session, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if not name:
        session.say("\n".join(f"{one:<17} {_told(_value(session, one))}" for one in PARAMETERS))
        return
    if name not in PARAMETERS:
        expected = ", ".join(PARAMETERS)
        raise ConfigError(f"There is no parameter '{name}'; expected one of {expected}.", hint=did_you_mean(name, PARAMETERS))
    field = name.replace("-", "_")
    if not value:
        session.say(f"{name}: {_told(_value(session, name))}; expected {EXPECTED[field]}, or 'default'")
        return
    default = value == "default"
    session.change(**{field: getattr(_DEFAULTS, field) if default else checked(field, value.strip(), "/set parameter")})
    session.say(f"{name}: {_told(_value(session, name))}")


def _verbose(session: Session, rest: str) -> None:
    if rest not in ("on", "off"):
        raise ConfigError(f"/set verbose is '{rest}'; expected on or off.")
    session.verbose = rest == "on"


def _value(session: Session, name: str) -> object:
    return getattr(session.settings, name.replace("-", "_"))


def _told(value: object) -> str:
    if value is None or value == ():
        return "default"
    return printable(", ".join(map(repr, value)) if isinstance(value, tuple) else str(value))


_CHANGES: dict[str, Callable[[Session, str], None]] = {
    "parameter": _parameter,
    "system": system,
    "think": think,
    "verbose": _verbose,
}
