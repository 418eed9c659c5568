"""What core registers under the kits that every plugin is held to."""

from __future__ import annotations

from tensorsharp.testing import BackendConformance, CheckpointStoreConformance, CodecConformance


class TestReference(BackendConformance):
    plugin = "reference"


class TestRaw(CodecConformance):
    plugin = "raw"


class TestZstd(CodecConformance):
    plugin = "zstd"


class TestFile(CheckpointStoreConformance):
    plugin = "file"
