"""A folder of model files, as a list of names. Names are looked up in the list and never made into paths."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tensorsharp.errors import ConfigError, ModelNotFoundError, did_you_mean
from tensorsharp.weights.entry import Entry, entry
from tensorsharp.weights.variants import family, variants


class ModelsFolder:
    """The complete models below a folder; each call looks again. A model is called by its path below the folder without
    the ending and the number of a part, as in `llama/SmolLM2-Q4_0`. Folders that are links are not entered.

    A projector belongs to the models of its own folder, unless these are different models and not one in several
    quantisations. ConfigError if there is no such folder, or it cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser().resolve()
        if not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is no folder; expected one with .gguf files.")
        try:
            os.listdir(self.folder)
        except OSError as error:
            raise ConfigError(f"{self.folder} cannot be read: {error.strerror}.") from None

    def entries(self) -> list[Entry]:
        """All models, ordered by name."""
        found: list[Entry] = []
        for top, _, names in os.walk(self.folder):
            folder = Path(top)
            here = variants(names)
            alone = len({family(one.files[0]) for one in here}) == 1
            for one in here:
                name = (folder / one.stem).relative_to(self.folder).as_posix()
                beside = folder / one.projector if alone and one.projector else None
                with suppress(OSError):  # deleted meanwhile
                    found.append(entry(name, one.quant, [folder / file for file in one.files], beside))
        return sorted(found, key=lambda one: one.name)

    def find(self, name: str) -> Entry:
        """The model of this name; the ending .gguf may be there. ModelNotFoundError names the nearest."""
        names = {one.name: one for one in self.entries()}
        found = names.get(name) or names.get(name.removesuffix(".gguf"))
        if found is None:
            raise ModelNotFoundError(f"There is no model '{name:.100}'.", hint=did_you_mean(name, names))
        return found

    def remove(self, name: str) -> int:
        """Delete a model's files, and its projector if no other model uses that; the bytes that were freed."""
        gone = self.find(name)
        kept = {path for one in self.entries() if one.name != gone.name for path in one.files}
        freed = 0
        for path in set(gone.files) - kept:
            freed += path.lstat().st_size
            path.unlink()
        return freed
