"""The conformance kit for checkpoint stores."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pytest

from tensorsharp.errors import ConfigError
from tensorsharp.protocols.batch import I32
from tensorsharp.protocols.checkpoint import KEPT, CheckpointOptions, IPrefixCheckpointStore
from tensorsharp.testing.plugincheck import PluginChecks

KILLS = 3
SIZE = 1 << 21
ENDLESS = """
import itertools, sys
from pathlib import Path
from tensorsharp.protocols.checkpoint import CheckpointOptions
from tensorsharp.registry import Registry
from tensorsharp.testing.checkpoint import SIZE, content, tokens

store = Registry().load("checkpoint_store", sys.argv[1])(CheckpointOptions(Path(sys.argv[2])))
print("ready", flush=True)
for number in itertools.count(int(sys.argv[3])):
    store.save("killed", tokens(5 + number % 7), lambda file: file.write(content(5 + number % 7, SIZE)))
"""
"""Saves one checkpoint after the other: seven of them in turn, each always with the same content."""


def tokens(count: int, salt: int = 0) -> I32:
    """The first `count` tokens of an endless line."""
    return (np.arange(count, dtype=np.int32) * 31 + salt) % 1009


def content(seed: int, size: int = 3000) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def save(store: IPrefixCheckpointStore, key: str, ids: I32, payload: bytes) -> bool:
    def write(file: BinaryIO) -> None:
        half = len(payload) // 2
        file.write(payload[:half])
        file.write(payload[half:])

    return store.save(key, ids, write)


def found(store: IPrefixCheckpointStore, key: str, ids: I32) -> tuple[int, bytes] | None:
    """Length and payload of what a store has for these tokens."""
    checkpoint = store.open(key, ids)
    payload = None if checkpoint is None else checkpoint.read()
    return None if checkpoint is None or payload is None else (checkpoint.length, payload)


class CheckpointStoreConformance(PluginChecks):
    """Everything a checkpoint store promises. Write a class with `plugin`, the store's name."""

    kind: ClassVar[str] = "checkpoint_store"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "kept" / "here"

    def make(self, folder: Path, **options: Any) -> IPrefixCheckpointStore:
        store: IPrefixCheckpointStore = self.implementation()(CheckpointOptions(folder, **options))
        return store

    def test_the_longest_proper_prefix_is_found(self, folder: Path) -> None:
        store = self.make(folder)
        assert store.open("k", tokens(9)) is None
        for count in (32, 96, 64):
            assert save(store, "k", tokens(count), content(count))
        for asked, length in ((200, 96), (97, 96), (96, 64), (64, 32), (33, 32)):
            assert found(store, "k", tokens(asked)) == (length, content(length))
        assert store.open("k", tokens(32)) is None, "the whole of a prompt is no proper prefix of it"
        assert store.open("k", tokens(0)) is None

    def test_it_outlives_the_process(self, folder: Path) -> None:
        save(self.make(folder), "k", tokens(64), content(1, SIZE))
        assert found(self.make(folder), "k", tokens(65)) == (64, content(1, SIZE))

    def test_every_part_of_the_key_counts(self, folder: Path) -> None:
        store = self.make(folder)
        save(store, "model arithmetic f16 raw", tokens(64), content(1))
        for other in ("other arithmetic f16 raw", "model other f16 raw", "model arithmetic f32 raw", "model arithmetic f16 zstd"):
            assert store.open(other, tokens(65)) is None
        for ids in (tokens(65, salt=1), np.concatenate([tokens(63), tokens(2, salt=5)]), tokens(65)[1:]):
            assert store.open("model arithmetic f16 raw", ids) is None
        assert found(store, "model arithmetic f16 raw", tokens(65)) == (64, content(1))

    def test_a_bounded_number_is_kept(self, folder: Path) -> None:
        store = self.make(folder, kept=2)
        for salt in range(5):
            assert save(store, "k", tokens(64, salt), content(salt))
            assert found(store, "k", tokens(65, salt)) == (64, content(salt)), "the newest is never the one given up"
        kept = [salt for salt in range(5) if found(store, "k", tokens(65, salt)) is not None]
        assert kept == [3, 4]
        time.sleep(0.05)  # files may know their last use only to some milliseconds
        assert found(store, "k", tokens(65, 3)) is not None
        time.sleep(0.05)
        assert save(store, "k", tokens(64, 9), content(9))
        kept = [salt for salt in range(10) if found(store, "k", tokens(65, salt)) is not None]
        assert kept == [3, 9], "the longest unused is given up"

    def test_what_was_opened_outlives_what_never_was(self, folder: Path) -> None:
        store = self.make(folder, kept=2)
        assert save(store, "k", tokens(64), content(0))
        assert store.open("k", tokens(65)) is not None
        for salt in range(1, 6):
            assert save(self.make(folder, kept=2) if salt % 2 else store, "k", tokens(64, salt), content(salt))
        assert found(self.make(folder, kept=2), "k", tokens(65)) == (64, content(0)), "in another process too"
        assert found(store, "k", tokens(65, 5)) == (64, content(5))

    def test_four_are_kept_unless_said_otherwise(self, folder: Path) -> None:
        store = self.make(folder)
        for salt in range(6):
            save(store, "k", tokens(64, salt), content(salt))
        assert sum(found(self.make(folder), "k", tokens(65, salt)) is not None for salt in range(6)) == KEPT == 4

    def test_the_newer_replaces_the_older(self, folder: Path) -> None:
        store = self.make(folder, kept=1)
        for seed in (1, 2):
            assert save(store, "k", tokens(64), content(seed))
            assert found(store, "k", tokens(65)) == (64, content(seed))
        assert save(store, "k", tokens(64), b"")
        assert found(store, "k", tokens(65)) == (64, b"")

    def test_what_fails_while_it_is_written_is_not_found(self, folder: Path) -> None:
        store = self.make(folder)
        save(store, "k", tokens(32), content(1))

        def fail(file: BinaryIO) -> None:
            file.write(content(2, 2000))
            raise OSError("the device is full")

        assert not store.save("k", tokens(64), fail)
        for seen in (store, self.make(folder)):
            assert found(seen, "k", tokens(65)) == (32, content(1))

    @pytest.mark.parametrize("harm", ["torn", "flipped", "foreign", "empty"])
    def test_what_was_damaged_is_not_found(self, folder: Path, harm: str) -> None:
        for place in range(24):
            shutil.rmtree(folder, ignore_errors=True)
            save(self.make(folder), "k", tokens(64), content(1))
            open_before = self.make(folder)
            for path in [path for path in folder.rglob("*") if path.is_file()]:
                path.write_bytes(_harmed(path.read_bytes(), harm, place))
            for store in (open_before, self.make(folder)):
                assert found(store, "k", tokens(65)) in (None, (64, content(1)))
                assert found(store, "k", tokens(65)) in (None, (64, content(1)))
            assert harm == "flipped" or found(self.make(folder), "k", tokens(65)) is None
            assert save(store, "k", tokens(64), content(1))
            assert found(store, "k", tokens(65)) == (64, content(1)), "damage does not keep a new one out"

    def test_a_folder_that_is_gone_is_not_an_error(self, folder: Path) -> None:
        store = self.make(folder)
        save(store, "k", tokens(64), content(1))
        opened = store.open("k", tokens(65))
        shutil.rmtree(folder)
        assert opened is not None
        assert opened.read() in (None, content(1))
        assert found(store, "k", tokens(65)) is None
        save(store, "k", tokens(64), content(1))

    def test_a_folder_that_cannot_be_one_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_bytes(b"")
        with pytest.raises(ConfigError, match="file"):
            self.make(file)

    def test_several_use_one_folder(self, folder: Path) -> None:
        stores = [self.make(folder, kept=64) for _ in range(3)]

        def work(number: int) -> None:
            for salt in range(10):
                save(stores[number], "k", tokens(64, salt), content(salt, 100_000))
                assert found(self.make(folder, kept=64), "other", tokens(65)) is None

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
        for store in (*stores, self.make(folder, kept=64)):
            assert [found(store, "k", tokens(65, salt)) for salt in range(10)] == [(64, content(s, 100_000)) for s in range(10)]

    def test_a_process_that_is_killed_leaves_whole_entries_only(self, folder: Path) -> None:
        for kill in range(KILLS):
            writer = subprocess.Popen(
                [sys.executable, "-c", ENDLESS, self.plugin, str(folder), str(kill)], stdout=subprocess.PIPE, text=True
            )
            assert writer.stdout is not None
            with writer, writer.stdout as ready:
                assert ready.readline() == "ready\n"
                time.sleep(0.03 + 0.021 * kill)
                writer.kill()
            store = self.make(folder)
            for count in range(5, 12):
                assert found(store, "killed", tokens(count + 1)) in (None, *((n, content(n, SIZE)) for n in range(5, count + 1)))


def _harmed(data: bytes, harm: str, place: int) -> bytes:
    at = len(data) * place // 24
    if harm == "torn":
        return data[:at]
    if harm == "flipped":
        return data[:at] + bytes([data[at] ^ (1 << place % 8)]) + data[at + 1 :] if data else data
    return b"" if harm == "empty" else content(place, len(data) + place - 12 if len(data) > 12 else 7)
