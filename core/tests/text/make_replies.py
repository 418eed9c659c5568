"""Record replies as chat templates write them: `python -m core.tests.text.make_replies FOLDER`, a folder of Jinja templates.

Each template named below renders a past reply; what stands behind the prompt, without the end of the turn, is what the model
writes. The templates are those that llama.cpp ships in models/templates; nothing of them is kept but these replies.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from core.tests.text.replies import TOOLS

from tensorsharp.dialect import Dialect
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.template import ChatTemplate

TEMPLATES = {
    "Qwen-Qwen2.5-7B-Instruct": ("call",),
    "Qwen-Qwen3-0.6B": ("reasoned", "call", "both"),
    "Qwen3.5-4B": ("reasoned", "call", "both"),
    "Qwen3-Coder": ("call",),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("reasoned", "call", "both"),
    "GLM-4.6": ("reasoned", "call", "both"),
    "GLM-4.7-Flash": ("reasoned", "both"),
    "deepseek-ai-DeepSeek-V4": ("reasoned", "call", "both"),
    "google-gemma-4-31B-it": ("call",),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("content", "call"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("call",),
    "openai-gpt-oss-120b": ("content", "reasoned", "call"),
    "muse-glimmer": ("content", "reasoned", "call"),
    "meta-llama-Llama-3.1-8B-Instruct": ("call",),
    "MiniMax-M2": ("reasoned", "call"),
}
WEATHER = {"city": 'Zür"ich <b>\n{', "days": 3, "exact": False, "tags": ["a", "b"]}
CALL = {"id": "call00001", "function": {"name": "weather", "arguments": WEATHER}}
PAST: dict[str, dict[str, Any]] = {
    "content": {"content": "It is **fine**."},
    "reasoned": {"content": "Yes.", "reasoning_content": "Let me think.\n\nTwice."},
    "call": {"content": "", "tool_calls": [CALL]},
    "both": {"content": "I look.", "reasoning_content": "Hm.", "tool_calls": [CALL]},
}
ASKED = {"role": "user", "content": "Hello?"}
_ENDS = re.compile(
    r"(<\|(im_end|eot|eom|return|call|end|eot_id|user|observation)\|>|<EOS>|<turn\|>|<\|tool_response>|\[e~\[|<｜end▁of▁sentence｜>|\s)*\Z"
)


def replies(name: str, source: str) -> Iterator[dict[str, Any]]:
    dialect = Dialect(ChatTemplate(source, "<BOS>", "<EOS>"), cast("Tokenizer", None))
    for case in TEMPLATES[name]:
        past = PAST[case]
        reasoning = True if dialect.traits.switches else None
        prompt = dialect.prompt([ASKED], TOOLS, reasoning)
        whole = dialect.prompt([ASKED, {"role": "assistant", **past}], TOOLS, reasoning, {"add_generation_prompt": False})
        begin = next(i for i, (a, b) in enumerate(zip(f"{prompt.text}\0", whole.text, strict=False)) if a != b)
        yield {
            "template": name,
            "case": case,
            "format": dialect.format,
            "reasoning_tags": [dialect.reasoning.open, dialect.reasoning.close] if dialect.reasoning else None,
            "opened": prompt.opened and not prompt.text[begin:].strip(),
            "reply": _ENDS.sub("", whole.text[begin:]),
            "content": past["content"],
            "reasoning": past.get("reasoning_content", ""),
            "calls": [[call["function"]["name"], call["function"]["arguments"]] for call in past.get("tool_calls", ())],
        }


def main() -> None:
    folder = Path(sys.argv[1])
    made = [reply for name in TEMPLATES for reply in replies(name, (folder / f"{name}.jinja").read_text(encoding="utf-8"))]
    Path(__file__).with_name("replies.json").write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
