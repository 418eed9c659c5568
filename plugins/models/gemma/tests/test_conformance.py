"""Gemma 3 through the model kit, on the reference and on every backend that is installed."""

from tensorsharp.testing import ModelConformance


class TestGemma3(ModelConformance):
    plugin = "gemma3"
