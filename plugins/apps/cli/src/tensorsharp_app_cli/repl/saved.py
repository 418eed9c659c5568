"""`/save` and `/load`: conversations as JSON files, in the folder of what TensorSharp remembers or wherever one says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorsharp.atomic import write_text
from tensorsharp.config import state_folder
from tensorsharp.errors import ConfigError, did_you_mean
from tensorsharp_app_cli.tables import printable

if TYPE_CHECKING:
    from tensorsharp_app_cli.repl.session import Session

FORMAT, VERSION = "tensorsharp-conversation", 1
ROLES = ("user", "assistant")
_NAME = re.compile(r"\w[\w.-]*")


def save(session: Session, name: str) -> None:
    """Write the conversation, over one of the same name. Folders are made for names alone: that of a path may be misspelt."""
    path = _path(name)
    if not session.messages:
        raise ConfigError("There are no messages yet that could be kept.")
    if path.parent != _folder() and not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}.")
    data = {"format": FORMAT, "version": VERSION, "model": session.model}
    conversation = {"system": session.settings.system, "messages": session.messages}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(path, json.dumps(data | conversation, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error
    session.say(f"{len(session.messages)} messages are in {path}.")


def load(session: Session, name: str) -> None:
    """Go on with a conversation that was kept, with the model there is. Without a name: list them."""
    if not name:
        session.say(", ".join(names(session, "")) or "Nothing was saved yet.")
        return
    path = _path(name)
    data = _read(path, name)
    session.change(system=data["system"])
    session.messages = [{"role": message["role"], "content": message["content"]} for message in data["messages"]]
    other = f" They were with {printable(data['model'])}." if data["model"] != session.model else ""
    session.say(f"{len(session.messages)} messages.{other}")


def names(session: Session, typed: str) -> Sequence[str]:
    """What was kept in the folder."""
    return _names(_folder())


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.json"))


def _folder() -> Path:
    return state_folder() / "conversations"


def _path(name: str) -> Path:
    if name.endswith(".json"):
        return Path(name).expanduser()
    if not _NAME.fullmatch(name):
        raise ConfigError(f"'{name}' cannot name a conversation; expected letters, digits, '.', '-' and '_', or a .json file.")
    return _folder() / f"{name}.json"


def _read(path: Path, name: str) -> dict[str, Any]:
    """The file's conversation. ConfigError says what is wrong with it, and where."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"There is no conversation '{name}' ({path}).", hint=did_you_mean(name, _names(path.parent))) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}.") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ConfigError(f'{path} is no saved conversation; expected an object with "format": "{FORMAT}".')
    if data.get("version") != VERSION:
        raise ConfigError(f"{path}: version is {data.get('version')!r}; expected {VERSION}.")
    if not isinstance(data.get("system"), str | None) or not isinstance(data.get("model"), str):
        raise ConfigError(f"{path}: system and model have to be texts; system may be null.")
    _check_messages(path, data.get("messages"))
    return data


def _check_messages(path: Path, messages: Any) -> None:
    if not isinstance(messages, list):
        raise ConfigError(f"{path}: messages is {type(messages).__name__}; expected a list.")
    for index, message in enumerate(messages):
        role = ROLES[index % 2]
        if not isinstance(message, dict) or message.get("role") != role or not isinstance(message.get("content"), str):
            raise ConfigError(f"{path}: messages[{index}] is not a message; expected the role '{role}' and a text as content.")
