"""A small chat model for the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorsharp.testing.tinygguf import tiny, write_tiny

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = tiny("llama", tokenizer="bytes", chat_template=TEMPLATE, weight_type="Q8_0")
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", checkpoint)
