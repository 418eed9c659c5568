"""The same conversation is the same prompt, whichever client it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

TEMPLATE = (
    "{% for t in tools or [] %}[{{ t | tojson }}]{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
PARAMETERS: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "description": "Which", "enum": [["sat"]], "items": {"type": "string"}},
    },
    "required": ["city"],
}
Step = tuple[str, Any]
"""system, user, assistant (with text, calls) or results."""
CALLS = [("weather", {"city": "Köln", "days": ["sat"]}), ("weather", {"city": '大阪 "x"\n'})]
CONVERSATIONS: dict[str, list[Step]] = {
    "question": [("user", "Hallo?")],
    "system": [("system", "Kurz."), ("user", "Hallo?"), ("assistant", ("Ja.", [])), ("user", "Und?")],
    "call": [("user", "Wetter?"), ("assistant", ("", CALLS[:1])), ("results", ["17 °C"])],
    "text and calls": [("user", "Wetter?"), ("assistant", ("Moment.", CALLS)), ("results", ["17 °C", ""]), ("user", "Und?")],
}


def openai_messages(steps: list[Step]) -> Iterator[dict[str, Any]]:
    ids: list[str] = []
    for number, (role, said) in enumerate(steps):
        if role == "assistant":
            text, calls = said
            ids = [f"call_{number}_{i}" for i in range(len(calls))]
            written = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
            asked = [{"id": id, "type": "function", "function": one} for id, one in zip(ids, written, strict=True)]
            yield {"role": role, "content": text or None, **({"tool_calls": asked} if asked else {})}
        elif role == "results":
            yield from ({"role": "tool", "tool_call_id": id, "content": one} for id, one in zip(ids, said, strict=True))
        else:
            yield {"role": role, "content": said}


def ollama_messages(steps: list[Step]) -> Iterator[dict[str, Any]]:
    names: list[str] = []
    for role, said in steps:
        if role == "assistant":
            text, calls = said
            names = [name for name, _ in calls]
            yield {"role": role, "content": text, "tool_calls": [{"function": {"name": n, "arguments": a}} for n, a in calls]}
        elif role == "results":
            yield from ({"role": "tool", "tool_name": name, "content": one} for name, one in zip(names, said, strict=True))
        else:
            yield {"role": role, "content": said}


def anthropic_messages(steps: list[Step]) -> Iterator[dict[str, Any]]:
    ids: list[str] = []
    results: list[dict[str, Any]] = []
    for number, (role, said) in enumerate(steps):
        if role == "assistant":
            text, calls = said
            ids = [f"toolu_{number}_{i}" for i in range(len(calls))]
            used = [{"type": "tool_use", "id": id, "name": n, "input": a} for id, (n, a) in zip(ids, calls, strict=True)]
            yield {"role": role, "content": [*([{"type": "text", "text": text}] if text else []), *used]}
        elif role == "results":
            results = [{"type": "tool_result", "tool_use_id": i, "content": one} for i, one in zip(ids, said, strict=True)]
        elif role == "user":
            yield {"role": role, "content": [*results, {"type": "text", "text": said}]}
            results = []
    if results:
        yield {"role": "user", "content": results}


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stage import write_model

    folder = tmp_path_factory.mktemp("tooled")
    return write_model(folder / "tooled.gguf", template=TEMPLATE)


@pytest.fixture
def served(serve: Serve, tooled: Path) -> Served:
    from tensorsharp_app_server.catalog import OneModel

    return serve(OneModel("tooled", tooled))


@pytest.mark.parametrize("tools", [[], ["weather"]], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_one_prompt(served: Served, name: str, tools: list[str]) -> None:
    """A random model writes the same tokens behind the same prompt alone."""
    steps = CONVERSATIONS[name]
    functions = [{"name": tool, "description": "Now", "parameters": PARAMETERS} for tool in tools]
    messages = [*openai_messages(steps)]
    sampled: dict[str, Any] = {"seed": 1, "temperature": 1.0, "top_p": 1.0}
    openai = served.openai.chat.completions.create(
        model="tooled",
        messages=messages,  # type: ignore[arg-type]
        max_tokens=24,
        **sampled,
        **({"tools": [{"type": "function", "function": function} for function in functions]} if functions else {}),
    )
    ollama = served.ollama.chat(
        "tooled",
        [*ollama_messages(steps)],
        tools=[{"type": "function", "function": function} for function in functions],
        options={"num_predict": 24, **sampled},
    )
    anthropic = served.anthropic.messages.create(
        model="tooled",
        messages=[*anthropic_messages(steps)],  # type: ignore[arg-type]
        max_tokens=24,
        tools=[{"name": f["name"], "description": f["description"], "input_schema": PARAMETERS} for f in functions],
        extra_body=sampled,
        **dict([step for step in steps if step[0] == "system"]),
    )
    rendered = served.post("/apply-template", messages=messages, tools=functions)["prompt"]
    usage, asked = anthropic.usage, openai.usage
    assert asked is not None
    counted = [asked.prompt_tokens, ollama.prompt_eval_count, usage.input_tokens + (usage.cache_read_input_tokens or 0)]
    assert counted == [len(served.llm.tokenize_prompt(rendered))] * 3
    texts = {openai.choices[0].message.content, ollama.message.content, anthropic.content[0].text}  # type: ignore[union-attr]
    assert len(texts) == 1
    assert json.dumps(PARAMETERS) in rendered or not tools
