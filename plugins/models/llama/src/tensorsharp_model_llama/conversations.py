"""How the architectures' instruct models write conversations, for files whose chat template does not show it.

Source: the models' own chat templates and tokenizer configurations (Hugging Face Hub). The templates here write the turns alone.
"""

from __future__ import annotations

from typing import Final

from tensorsharp.protocols.chat import ChatStyle

_CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CHATML_TOKENS: Final = ("<|im_start|>", "<|im_end|>")
_INSTRUCTIONS: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}[SYSTEM_PROMPT]{{ message.content }}[/SYSTEM_PROMPT]"
    "{% elif message.role == 'assistant' %}{{ message.content }}{{ eos_token }}"
    "{% else %}[INST]{{ message.content }}[/INST]{% endif %}{% endfor %}"
)
_INSTRUCTION_TOKENS: Final = ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]")
_THINK: Final = ("<think>", "</think>")

STYLES: Final = {
    "llama": ChatStyle("plain"),
    "mistral3": ChatStyle("bracketed", template=_INSTRUCTIONS, tokens=_INSTRUCTION_TOKENS),
    "qwen2": ChatStyle("tagged_json", template=_CHATML, tokens=_CHATML_TOKENS),
    "qwen3": ChatStyle("tagged_json", _THINK, template=_CHATML, tokens=_CHATML_TOKENS),
    "smollm3": ChatStyle("tagged_json", _THINK, template=_CHATML, tokens=_CHATML_TOKENS),
}
"""Architecture -> style. `llama` stands for too many families to have a template."""
