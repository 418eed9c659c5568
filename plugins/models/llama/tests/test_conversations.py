"""What the plugin says about conversations is something that core knows, and its templates write turns."""

from __future__ import annotations

from typing import cast

import pytest

from tensorsharp.dialect import Dialect
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.template import ChatTemplate
from tensorsharp.text.toolcalls import Tools
from tensorsharp_model_llama.conversations import STYLES
from tensorsharp_model_llama.model import VARIANTS

TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "v"},
]
CHATML = (
    "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n"
)
MISTRAL = "<s>[SYSTEM_PROMPT]s[/SYSTEM_PROMPT][INST]u[/INST]a</s>[INST]v[/INST]"


def test_each_architecture_has_a_style() -> None:
    assert STYLES.keys() == VARIANTS.keys()


@pytest.mark.parametrize(
    ("architecture", "expected"), [("mistral3", MISTRAL), ("qwen2", CHATML), ("qwen3", CHATML), ("smollm3", CHATML)]
)
def test_a_template_writes_the_turns_with_the_tokens_it_names(architecture: str, expected: str) -> None:
    style = STYLES[architecture]
    assert style.template is not None
    dialect = Dialect(ChatTemplate(style.template, "<s>", "</s>"), cast("Tokenizer", None), style)
    text = dialect.prompt(TALK, Tools(())).text
    assert text == expected
    assert all(token in text for token in style.tokens)
    assert dialect.format == style.format
