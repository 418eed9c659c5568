"""Planted faults in checkpoint stores: each test of the kit must fail on the mistake that it is there for."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pytest

from tensorsharp.protocols.batch import I32
from tensorsharp.protocols.checkpoint import Checkpoint, CheckpointOptions
from tensorsharp.storage.checkpoints import FileCheckpointStore
from tensorsharp.storage.entry import Head
from tensorsharp.testing.checkpoint import CheckpointStoreConformance

FAILURES = (AssertionError, pytest.fail.Exception, OSError, ValueError)


class FileKit(CheckpointStoreConformance):
    plugin = "file"
    store_class: ClassVar[type[Any]] = FileCheckpointStore

    def make(self, folder: Path, **options: Any) -> Any:
        return self.store_class(CheckpointOptions(folder, **options))


class ShortestPrefix(FileCheckpointStore):
    def open(self, key: str, tokens: I32) -> Checkpoint | None:
        return next(
            (found for n in range(1, len(tokens) + 1) if (found := super(ShortestPrefix, self).open(key, tokens[:n]))), None
        )


class WholePromptToo(FileCheckpointStore):
    def open(self, key: str, tokens: I32) -> Checkpoint | None:
        return super().open(key, np.append(tokens, np.int32(0)))


class IgnoresTheKey(FileCheckpointStore):
    def open(self, key: str, tokens: I32) -> Checkpoint | None:
        return super().open("", tokens)

    def save(self, key: str, tokens: I32, write: Callable[[BinaryIO], object]) -> bool:
        return super().save("", tokens, write)


class KeepsOneMore(FileCheckpointStore):
    def __init__(self, options: CheckpointOptions) -> None:
        super().__init__(CheckpointOptions(options.folder, options.kept + 1))


class GivesUpTheNewest(FileCheckpointStore):
    def save(self, key: str, tokens: I32, write: Callable[[BinaryIO], object]) -> bool:
        return len(self.folder) == self.folder.entries or super().save(key, tokens, write)


class ForgetsUse(FileCheckpointStore):
    def __init__(self, options: CheckpointOptions) -> None:
        super().__init__(options)
        self.folder.touch = lambda name: None  # type: ignore[method-assign]


class KeepsTheOlder(FileCheckpointStore):
    def save(self, key: str, tokens: I32, write: Callable[[BinaryIO], object]) -> bool:
        return any(head is not None and len(head.tokens) == 4 * len(tokens) for head in self._heads()) or super().save(
            key, tokens, write
        )

    def _heads(self) -> list[Head | None]:
        return [self.folder.head(name) for name in self.folder.names()]


class SavesHalf(FileCheckpointStore):
    def save(self, key: str, tokens: I32, write: Callable[[BinaryIO], object]) -> bool:
        payload = io.BytesIO()
        try:
            write(payload)
        except OSError:
            super().save(key, tokens, lambda file: file.write(payload.getvalue()))
            return False
        return super().save(key, tokens, write)


class RaisesOnSave(FileCheckpointStore):
    def save(self, key: str, tokens: I32, write: Callable[[BinaryIO], object]) -> bool:
        write(io.BytesIO())
        return super().save(key, tokens, write)


class InMemory(FileCheckpointStore):
    """Forgets everything at the end."""

    def __init__(self, options: CheckpointOptions) -> None:
        super().__init__(options)
        for name in self.folder.names():
            self.folder.drop(name)


class Unchecked(FileCheckpointStore):
    """Believes every file."""

    def open(self, key: str, tokens: I32) -> Checkpoint | None:
        found = super().open(key, tokens)
        files = sorted(self.folder.folder.iterdir())
        return found and Checkpoint(found.length, lambda: files[0].read_bytes()[-3016:-16])


class AnyFolder(FileCheckpointStore):
    def __init__(self, options: CheckpointOptions) -> None:
        folder = options.folder.with_name("elsewhere") if options.folder.is_file() else options.folder
        super().__init__(CheckpointOptions(folder, options.kept))


Check = Callable[[FileKit, Path], Any]
CHECKS: dict[str, Check] = {
    "longest": lambda kit, path: kit.test_the_longest_proper_prefix_is_found(path),
    "outlives": lambda kit, path: kit.test_it_outlives_the_process(path),
    "key": lambda kit, path: kit.test_every_part_of_the_key_counts(path),
    "bounded": lambda kit, path: kit.test_a_bounded_number_is_kept(path),
    "four": lambda kit, path: kit.test_four_are_kept_unless_said_otherwise(path),
    "newer": lambda kit, path: kit.test_the_newer_replaces_the_older(path),
    "fails": lambda kit, path: kit.test_what_fails_while_it_is_written_is_not_found(path),
    "damaged": lambda kit, path: kit.test_what_was_damaged_is_not_found(path, "flipped"),
    "gone": lambda kit, path: kit.test_a_folder_that_is_gone_is_not_an_error(path),
    "refused": lambda kit, path: kit.test_a_folder_that_cannot_be_one_is_refused(path.parent),
    "several": lambda kit, path: kit.test_several_use_one_folder(path),
}
FAULTS: list[tuple[type[Any], str]] = [
    (ShortestPrefix, "longest"),
    (WholePromptToo, "longest"),
    (InMemory, "outlives"),
    (IgnoresTheKey, "key"),
    (KeepsOneMore, "bounded"),
    (GivesUpTheNewest, "bounded"),
    (ForgetsUse, "bounded"),
    (KeepsOneMore, "four"),
    (KeepsTheOlder, "newer"),
    (SavesHalf, "fails"),
    (RaisesOnSave, "fails"),
    (Unchecked, "damaged"),
    (Unchecked, "gone"),
    (AnyFolder, "refused"),
    (InMemory, "several"),
]


@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=[f"{f.__name__}-{c}" for f, c in FAULTS])
def test_faulty_stores_fail(fault: type[Any], check: str, tmp_path: Path) -> None:
    class Faulty(FileKit):
        store_class = fault

    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    CHECKS[check](FileKit(), tmp_path / "good" / "kept")
    with pytest.raises(FAILURES):
        CHECKS[check](Faulty(), tmp_path / "bad" / "kept")
