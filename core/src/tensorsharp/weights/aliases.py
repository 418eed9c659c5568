"""Short names for models, as a person gave them: one JSON object in the folder of the settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tensorsharp.atomic import write_text
from tensorsharp.config import config_folder
from tensorsharp.errors import ConfigError, ModelNotFoundError, did_you_mean

_NAME = re.compile(r"\w[\w.-]*(:[\w.-]+)?")


def is_alias_name(text: str) -> bool:
    """Whether a model may be called this; names with "/" or .gguf are those of files and repositories."""
    return _NAME.fullmatch(text) is not None and not text.lower().endswith(".gguf")


class Aliases:
    """The names in one file (None: the one of this person), read anew by each call."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_folder() / "aliases.json"

    def all(self) -> dict[str, str]:
        """Name -> what it stands for. ConfigError if the file holds something else."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:
            raise ConfigError(
                f"{self.path} is no JSON: {error}.", hint="Mend it, or delete it and set the names again."
            ) from error
        if not isinstance(data, dict) or not all(isinstance(value, str) and value for value in data.values()):
            raise ConfigError(f"{self.path}: expected one JSON object with a text for each name.")
        return data

    def resolve(self, text: str) -> str:
        """What a name stands for in the end; a text that is no alias stands for itself. ConfigError for a circle."""
        return _follow(self.all(), text, self.path)

    def set(self, name: str, model: str) -> None:
        """Give a model a name, or another one. ConfigError for a name that cannot be one, and for a circle."""
        if not is_alias_name(name):
            raise ConfigError(f"'{name}' cannot be an alias; expected letters, digits, '.', '-' and '_', and perhaps one ':'.")
        if not model:
            raise ConfigError(f"The alias '{name}' stands for nothing; expected a MODEL.")
        names = self.all() | {name: model}
        _follow(names, name, self.path)
        self._write(names)

    def remove(self, name: str) -> None:
        """Forget a name. ModelNotFoundError if there is none."""
        names = self.all()
        if name not in names:
            raise ModelNotFoundError(f"There is no alias '{name}'.", hint=did_you_mean(name, names))
        self._write({key: value for key, value in names.items() if key != name})

    def _write(self, names: Mapping[str, str]) -> None:
        try:
            write_text(self.path, json.dumps(names, indent=2, ensure_ascii=False, sort_keys=True) + "\n")
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror or error}.") from error


def _follow(names: Mapping[str, str], text: str, path: Path) -> str:
    passed = [text]
    while passed[-1] in names:
        passed.append(names[passed[-1]])
        if passed[-1] in passed[:-1]:
            raise ConfigError(
                f"Aliases go in a circle: {' -> '.join(passed)} ({path}).", hint="Remove one: tensorsharp alias rm NAME"
            )
    return passed[-1]
