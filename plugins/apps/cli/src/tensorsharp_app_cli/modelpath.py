"""MODEL as people write it: the path of a file, for now."""

from __future__ import annotations

import re
from pathlib import Path

from tensorsharp.errors import ModelError

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]+)?")
_ALIAS = re.compile(r"\w[\w.-]*(:[\w.-]+)?")


def model_path(text: str) -> Path:
    """The file that MODEL names; ~ is the home folder. ModelError if there is none."""
    if not text:
        raise ModelError("MODEL is empty; expected the path of a .gguf file.")
    path = _expanded(text)
    if path.is_dir():
        raise ModelError(f"{path} is a folder; expected a .gguf file.", hint=_inside(path))
    if not path.exists() and path.suffix.lower() != ".gguf":
        if _REPOSITORY.fullmatch(text):
            raise ModelError(f"'{text}' is no file, and models cannot be downloaded yet; give the path of a .gguf file.")
        if _ALIAS.fullmatch(text):
            raise ModelError(f"'{text}' is no file, and models have no short names yet; give the path of a .gguf file.")
    return path


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ModelError(f"'{text}' names a home folder that is not known.") from error


def _inside(folder: Path) -> str | None:
    """The folder's models, for the hint."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    except OSError:
        return None
    if not names:
        return None
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"It holds {', '.join(names[:3])}{more}."
