"""Every architecture of the plugin through the model kit, on the reference and on every backend that is installed."""

from tensorsharp.testing import ModelConformance


class TestLlama(ModelConformance):
    plugin = "llama"


class TestMistral3(ModelConformance):
    plugin = "mistral3"


class TestQwen2(ModelConformance):
    plugin = "qwen2"


class TestQwen3(ModelConformance):
    plugin = "qwen3"


class TestSmolLM3(ModelConformance):
    plugin = "smollm3"
