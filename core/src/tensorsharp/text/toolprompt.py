"""Tools for templates that have no place for them: told in the system message, called as tagged JSON.

The shape (tools in the system message, `<tool_call>` around JSON, `<tool_response>` around results in the user's turn) is the one
that most open models have seen in training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tensorsharp.text.formats.tagged_json import CLOSE, OPEN
from tensorsharp.text.toolcalls import Tools


def describe(tools: Tools) -> str:
    """What the system message says about the tools."""
    listed = "\n".join(json.dumps(tool.as_json()["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these tools, each given as JSON with the schema of its parameters:\n<tools>\n{listed}\n</tools>\n\n"
        f"To call one, write its name and arguments as JSON between tags, one pair of tags for each call:\n"
        f'{OPEN}\n{{"name": "tool name", "arguments": {{"parameter": "value"}}}}\n{CLOSE}\n'
        f"The results come back between <tool_response> tags. Answer directly where no tool is needed."
    )


def as_text(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with calls and results written as text; results that follow each other are one message of the user."""
    made: list[dict[str, Any]] = []
    follows = False
    for message in messages:
        plain = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if follows:
                made[-1]["content"] += f"\n{result}"
            else:
                made.append({"role": "user", "content": result})
        else:
            calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
            plain["content"] = "\n".join(filter(None, [message["content"], *calls]))
            made.append(plain)
        follows = message["role"] == "tool"
    return made


def _call(function: Mapping[str, Any]) -> str:
    body = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}"
