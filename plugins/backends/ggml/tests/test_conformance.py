"""The backend kit: every operation and every rule of the bitwise contract, against the reference."""

from tensorsharp.testing import BackendConformance


class TestGgml(BackendConformance):
    plugin = "ggml"
