"""A model file in the data of several wheels."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests import realmodels
from tests.realmodels import SplitModel

BYTES = [bytes([number]) * 3 for number in range(11)]
WHOLE = b"".join(BYTES)
MODEL = SplitModel(
    "tiny", "tiny.gguf", tuple(f"tiny_part{number}" for number in range(11)), len(WHOLE), hashlib.sha256(WHOLE).hexdigest()
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eleven packages, one part each, and an empty cache."""
    for number, data in enumerate(BYTES):
        folder = tmp_path / "site" / f"tiny_part{number}" / "data"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        (folder / f"part{number}.bin").write_bytes(data)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = tmp_path / "cache"
    found.mkdir()
    monkeypatch.setattr(realmodels, "copies", lambda: found)
    return found


def test_parts_are_joined_in_order_and_once(cache: Path) -> None:
    path = MODEL.path()
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == WHOLE
    assert replace(MODEL, packages=("tiny_gone",)).path() == path


def test_parts_that_are_not_those_of_the_file_are_refused(cache: Path) -> None:
    with pytest.raises(ValueError, match="parts of tiny join to a file with SHA-256"):
        replace(MODEL, sha256="0" * 64).path()
    assert list(cache.iterdir()) == []


def test_a_part_that_is_missing(cache: Path) -> None:
    assert replace(MODEL, packages=(*MODEL.packages, "tiny_gone")).path() is None
    assert list(cache.iterdir()) == []
