"""Every error that the project raises on purpose.

Each carries one clear sentence (what, where, what was expected) and, where there is one, a hint: what to do.
`exit_code` is what a program ends with when the error reaches its top.
"""

from __future__ import annotations

from collections.abc import Iterable


class TensorSharpError(Exception):
    """Base class. `str()` gives the sentence; `hint` what to do about it, or None."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(TensorSharpError):
    """A flag, environment variable, configuration file or argument has a value that cannot be used."""

    exit_code = 2


class PluginError(TensorSharpError):
    """A plugin that was asked for is missing, broken, incompatible or cannot run here."""

    exit_code = 2


class ModelError(TensorSharpError):
    """A model file is malformed, incomplete, unsupported, or contradicts itself. Names file and tensor or key."""

    exit_code = 3


class ModelNotFoundError(ModelError):
    """No model has the name that was given, here or on the hub."""


class TemplateError(ModelError):
    """A chat template is malformed, refuses the conversation, or exceeded its limits of time or output."""


class RequestError(TensorSharpError):
    """A request asks for something impossible. `param` names the field, `code` is stable and machine-readable."""

    exit_code = 2

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.code = code


class UnsupportedError(RequestError):
    """The model, backend or plugin does not declare the capability that was used."""


class CapacityError(TensorSharpError):
    """Not enough memory, blocks or slots. Nothing was changed."""


class DownloadError(TensorSharpError):
    """The hub cannot be reached, refuses, or sent something other than it promised. What arrived is kept and resumed."""


class BackendError(TensorSharpError):
    """The backend failed while running: a step ended with an error or gave numbers that are not finite."""


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """A hint with the nearest of these names; None if none is near."""
    from difflib import get_close_matches

    close = get_close_matches(name, sorted(names), n=1)
    return f"Did you mean '{close[0]}'?" if close else None
