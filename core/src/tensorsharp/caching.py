"""What a person asks for below the blocks of the device, as the engine takes it."""

from __future__ import annotations

import re
from os import PathLike, fspath
from pathlib import Path
from typing import cast

from tensorsharp.config import SIZE, size
from tensorsharp.engine.config import SSD_BYTES, CacheConfig
from tensorsharp.errors import ConfigError, PluginError
from tensorsharp.protocols.checkpoint import KEPT, CheckpointOptions, IPrefixCheckpointStore
from tensorsharp.protocols.codec import IKvBlockCodec
from tensorsharp.registry import Registry

DEFAULT_STORE = "file"
_SIZED = re.compile(r"(?P<folder>.+):(?P<size>[\d.]+[KMGTkmgt]?)")
_COUNTED = re.compile(r"(?P<folder>.+):(?P<count>\d+)")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def folder_and_size(text: str) -> tuple[Path, int]:
    """DIR[:SIZE], of which SIZE is 8 GiB unless given. ValueError for anything else; a drive's letter is no DIR alone."""
    found = _SIZED.fullmatch(text)
    folder, limit = (text, SSD_BYTES) if found is None else (found["folder"], size(found["size"]))
    if not folder or not limit:
        raise ValueError(text)
    return Path(folder).expanduser(), limit


def folder_and_count(text: str) -> CheckpointOptions:
    """DIR[:N], of which N is 4 unless given. ValueError for anything else."""
    found = _COUNTED.fullmatch(text)
    folder, kept = (text, KEPT) if found is None else (found["folder"], int(found["count"]))
    if not folder or not kept:
        raise ValueError(text)
    return CheckpointOptions(Path(folder).expanduser(), kept)


def cache_config(
    plugins: Registry,
    *,
    kv_codec: str | None,
    kv_ram: int,
    kv_ssd: str | PathLike[str] | None,
    checkpoints: str | PathLike[str] | None,
    checkpoint_store: str,
) -> CacheConfig:
    """See :func:`tensorsharp.loading.load`. PluginError for a plugin that cannot be used, ConfigError for a value or a folder."""
    ssd: Path | None = None
    ssd_bytes = SSD_BYTES
    if kv_ssd is not None:
        try:
            ssd, ssd_bytes = folder_and_size(fspath(kv_ssd))
        except ValueError:
            raise ConfigError(f"kv_ssd is {fspath(kv_ssd)!r}; expected DIR or DIR:SIZE, where SIZE is {SIZE}.") from None
    return CacheConfig(
        codec=None if kv_codec is None else _codec(plugins, kv_codec),
        ram=kv_ram,
        ssd=ssd,
        ssd_bytes=ssd_bytes,
        checkpoints=None if checkpoints is None else _store(plugins, checkpoint_store, fspath(checkpoints)),
    )


def _codec(plugins: Registry, name: str) -> IKvBlockCodec:
    codec = cast("IKvBlockCodec", plugins.load("codec", name)())
    if not _NAME.fullmatch(codec.name):
        raise PluginError(f"The codec '{name}' calls itself {codec.name!r}, which cannot be part of a file's name.")
    return codec


def _store(plugins: Registry, name: str, where: str) -> IPrefixCheckpointStore:
    try:
        options = folder_and_count(where)
    except ValueError:
        raise ConfigError(f"checkpoints is {where!r}; expected DIR or DIR:N, where N is how many are kept, at least 1.") from None
    return cast("IPrefixCheckpointStore", plugins.load("checkpoint_store", name)(options))
