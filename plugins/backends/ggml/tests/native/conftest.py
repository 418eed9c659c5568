from __future__ import annotations

import pytest
from hypothesis import settings

from tensorsharp.errors import PluginError
from tensorsharp_backend_ggml import native

settings.register_profile("everyday", deadline=None, derandomize=True)  # what fails once has to fail again
settings.load_profile("everyday")


def _load(isa: str | None) -> native.Kernels:
    reason = native.why_not()
    if reason is not None:
        pytest.skip(reason)
    try:
        return native.load(isa)
    except PluginError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kernels() -> native.Kernels:
    """The best kernels of this processor."""
    return _load(None)


@pytest.fixture(scope="session", params=native.ISAS)
def each(request: pytest.FixtureRequest) -> native.Kernels:
    """The kernels of every instruction set that this processor runs."""
    return _load(request.param)


@pytest.fixture(scope="session")
def portable() -> native.Kernels:
    """Every build's bits are compared with these."""
    return _load("portable")
