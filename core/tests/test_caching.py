"""What a person asks for below the blocks, and what is said of what cannot be used."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from tensorsharp.caching import cache_config, folder_and_count, folder_and_size
from tensorsharp.codecs.raw import RawCodec
from tensorsharp.codecs.zstd import ZstdCodec
from tensorsharp.engine.config import SSD_BYTES, CacheConfig
from tensorsharp.errors import ConfigError, PluginError
from tensorsharp.protocols.checkpoint import CheckpointOptions
from tensorsharp.registry import Registry
from tensorsharp.storage.checkpoints import FileCheckpointStore

NOTHING: dict[str, Any] = {
    "kv_codec": None,
    "kv_ram": 0,
    "kv_ssd": None,
    "checkpoints": None,
    "checkpoint_store": "file",
}


@pytest.mark.parametrize(
    ("text", "folder", "limit"),
    [
        ("cache", "cache", SSD_BYTES),
        ("cache:512M", "cache", 512 << 20),
        ("/a/b:c:1.5G", "/a/b:c", 3 << 29),
        ("cache:100", "cache", 100),
        ("C:\\cache", "C:\\cache", SSD_BYTES),
        ("C:\\cache:2g", "C:\\cache", 2 << 30),
    ],
)
def test_a_folder_and_its_size(text: str, folder: str, limit: int) -> None:
    assert folder_and_size(text) == (Path(folder), limit)


@pytest.mark.parametrize(
    ("text", "folder", "kept"), [("kept", "kept", 4), ("kept:9", "kept", 9), ("C:\\kept", "C:\\kept", 4), ("/a:b:1", "/a:b", 1)]
)
def test_a_folder_and_how_many_it_keeps(text: str, folder: str, kept: int) -> None:
    assert folder_and_count(text) == CheckpointOptions(Path(folder), kept)


@pytest.mark.parametrize("text", ["", "kept:0"])
def test_what_is_no_folder_with_a_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"checkpoints is .*; expected DIR or DIR:N, where N is how many are kept"):
        cache_config(Registry(), **NOTHING | {"checkpoints": text})


def test_the_home_folder_can_be_written_short() -> None:
    assert folder_and_size("~/cache:1K") == (Path.home() / "cache", 1024)


@pytest.mark.parametrize("text", ["", "cache:0", "cache:1.7", "cache:1.2.3M"])
def test_what_is_no_folder_with_a_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_ssd is .*; expected DIR or DIR:SIZE, where SIZE is a number of bytes"):
        cache_config(Registry(), **NOTHING | {"kv_ssd": text})


def test_nothing_is_used_unless_asked_for() -> None:
    config = cache_config(Registry(), **NOTHING)
    assert config == CacheConfig()
    assert not config.used


def test_everything_at_once(tmp_path: Path) -> None:
    asked = {"kv_codec": "zstd", "kv_ram": 5, "kv_ssd": tmp_path / "ssd", "checkpoints": str(tmp_path / "kept")}
    config = cache_config(Registry(), **NOTHING | asked)
    assert isinstance(config.codec, ZstdCodec)
    assert isinstance(config.checkpoints, FileCheckpointStore)
    assert (config.ram, config.ssd, config.ssd_bytes) == (5, tmp_path / "ssd", SSD_BYTES)
    assert (config.used, config.lossy) == (True, False)
    assert not (tmp_path / "ssd").exists(), "the engine makes it"


def test_a_plugin_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="zst"):
        cache_config(Registry(), **NOTHING | {"kv_codec": "zst"})
    with pytest.raises(PluginError, match="elsewhere"):
        cache_config(Registry(), **NOTHING | {"checkpoints": tmp_path, "checkpoint_store": "elsewhere"})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file: the folder for cached state cannot be used"):
        cache_config(Registry(), **NOTHING | {"checkpoints": tmp_path / "file"})


def test_without_zstandard_its_codec_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    found = util.find_spec
    missing = types.SimpleNamespace(find=lambda name: None if name == "zstandard" else found(name))
    monkeypatch.setattr("tensorsharp.registry.find_spec", missing.find)
    with pytest.raises(PluginError, match="needs zstandard"):
        cache_config(Registry(), **NOTHING | {"kv_codec": "zstd"})


def test_a_codec_s_name_is_part_of_file_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RawCodec, "name", "../raw")
    with pytest.raises(PluginError, match=r"calls itself '\.\./raw'"):
        cache_config(Registry(), **NOTHING | {"kv_codec": "raw"})
