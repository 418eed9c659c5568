"""GGUF files for tests, written by the package `gguf`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def gguf_file(path: Path, architecture: str, keys: Mapping[str, Any]) -> Iterator[Any]:
    """A file with this metadata, as a `gguf.GGUFWriter` that takes tensors; complete at the end."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        _add(writer, key, value)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a metadata value to a `gguf.GGUFWriter` with the type that its Python type stands for; integers are uint32."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
