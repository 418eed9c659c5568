"""The codecs that core brings."""

from tensorsharp.plugin import PluginSpec

raw_spec = PluginSpec(
    target="tensorsharp.codecs.raw:RawCodec",
    api=(1, 0),
    summary="blocks as they are, with a checksum",
    capabilities=frozenset({"lossless"}),
)
zstd_spec = PluginSpec(
    target="tensorsharp.codecs.zstd:ZstdCodec",
    api=(1, 0),
    summary="blocks compressed without loss by Zstandard; slower, and smaller",
    capabilities=frozenset({"lossless"}),
    requires=("zstandard",),
)
