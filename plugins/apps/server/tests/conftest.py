"""Servers for tests, each in a thread of this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest imports test files without their folder

if TYPE_CHECKING:
    from harness import Served
    from stage import Director


Serve = Callable[..., "Served"]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stage import write_model

    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "staged.gguf")
    write_model(folder / "second.gguf", template=None)
    return folder


@pytest.fixture
def director() -> Director:
    from stage import Director

    return Director()


@pytest.fixture
def serve(models: Path, director: Director) -> Iterator[Serve]:
    """Starts servers over both models that end with the test; keywords go to the settings, those of a ModelHost to it."""
    from harness import serving

    with serving(models, director) as start:
        yield start


@pytest.fixture(scope="session")
def shared(models: Path) -> Iterator[Served]:
    from harness import serving
    from stage import Director

    with serving(models, Director()) as start:
        yield start()


@pytest.fixture(scope="session")
def _thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from harness import serving
    from stage import THINKING, Director, write_model

    folder = tmp_path_factory.mktemp("thinker")
    write_model(folder / "thinker.gguf", template=THINKING)
    with serving(folder, Director()) as start:
        yield start()


@pytest.fixture
def thinker(_thinker: Served) -> Served:
    """One server for many tests; its model's template knows tools and reasoning."""
    _thinker.director.reset()
    return _thinker


@pytest.fixture
def server(shared: Served) -> Served:
    """One server for many tests; its model is loaded and has no part to play yet."""
    shared.director.reset()
    return shared
