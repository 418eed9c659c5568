"""How Gemma 3's instruct models write conversations, for files that have no chat template.

A turn is the user's or the model's. There is none of the system: its text stands in front of what the user says next, with an
empty line between. Tools are nothing that the models were made for.

Source: the instruct models' own chat template (Hugging Face Hub).
"""

from __future__ import annotations

from typing import Final

from tensorsharp.protocols.chat import ChatStyle

_TURNS: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if loop.first or loop.previtem.role != 'system' or message.role == 'assistant' %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else 'user' }}\n{% endif %}"
    "{% if message.role == 'system' and not loop.last and loop.nextitem.role != 'assistant' %}{{ message.content ~ '\n\n' }}"
    "{% else %}{{ message.content | trim }}<end_of_turn>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

STYLE: Final = ChatStyle("plain", template=_TURNS, tokens=("<start_of_turn>", "<end_of_turn>"))
