"""Entries of cached state in files, and the checkpoint store that core brings."""

from tensorsharp.plugin import PluginSpec

spec = PluginSpec(
    target="tensorsharp.storage.checkpoints:FileCheckpointStore",
    api=(1, 0),
    summary="prefix checkpoints as files in a folder",
)
