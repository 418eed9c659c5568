"""How conversations become prompts: tools, reasoning, and what templates differ in."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from core.tests.llmfakes import TEMPLATE, write_file
from core.tests.text.replies import TOOLS, Read, read_every_way

from tensorsharp.dialect import Dialect
from tensorsharp.errors import ConfigError, RequestError, UnsupportedError
from tensorsharp.llm import LLM
from tensorsharp.protocols.chat import ChatStyle
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.template import ChatTemplate
from tensorsharp.text.tokenizer import load_tokenizer
from tensorsharp.text.toolcalls import Tools
from tensorsharp.weights.gguf import open_gguf

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
NATIVE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{# <tool_call> #}"
    "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}[assistant]"
)
THINKING = PLAIN + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
ALWAYS = PLAIN + "<think>\n{# </think> #}"
ITSELF = PLAIN + "{# <think> </think> #}"
EFFORT = PLAIN + "{{ reasoning_effort }}{# <|channel|> #}"
USER = {"role": "user", "content": "Hi"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": {"name": "now", "arguments": '{"a": 1}'}}]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "noon"}
NONE = Tools(())


def dialect(source: str, style: ChatStyle | None = None) -> Dialect:
    return Dialect(ChatTemplate(source), cast("Tokenizer", None), style)


def test_a_template_that_knows_tools_is_given_them() -> None:
    found = dialect(NATIVE)
    assert (found.format, found.native_tools) == ("tagged_json", True)
    assert found.prompt([USER, CALLED, RESULT], TOOLS).text == 'weather;now;[user]Hi[assistant]{"a": 1}[tool]noon[assistant]'


def test_a_template_that_does_not_is_told_in_the_system_message() -> None:
    found = dialect(PLAIN)
    assert (found.format, found.native_tools) == ("plain", False)
    prompt = found.prompt([{"role": "system", "content": "Be brief."}, USER, CALLED, RESULT, RESULT], TOOLS)
    assert prompt.text.startswith("[system]Be brief.\n\nYou can call these tools")
    for tool in TOOLS:
        assert json.dumps(tool.as_json()["function"], ensure_ascii=False) in prompt.text
    call = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
    result = "<tool_response>\nnoon\n</tool_response>"
    assert prompt.text.endswith(f"[user]Hi[assistant]{call}[user]{result}\n{result}[assistant]")
    assert read_every_way(prompt.format, call) == Read(calls=(("now", {"a": 1}),))


def test_past_calls_are_told_without_tools_too() -> None:
    assert "noon" in dialect(PLAIN).prompt([USER, CALLED, RESULT], NONE).text


def test_what_a_plugin_says_holds_where_the_template_says_nothing() -> None:
    style = ChatStyle("bracketed", ("[THINK]", "[/THINK]"))
    silent = dialect(PLAIN, style)
    assert (silent.format, silent.reasoning and silent.reasoning.open, silent.native_tools) == ("bracketed", "[THINK]", False)
    marked = dialect(NATIVE + "{# </think> #}", style)
    assert (marked.format, marked.reasoning and marked.reasoning.open, marked.native_tools) == ("tagged_json", "<think>", True)
    with pytest.raises(ConfigError, match="chat format is 'morse'; expected plain or one of argument_pairs"):
        dialect(PLAIN, ChatStyle("morse"))


@pytest.mark.parametrize(
    ("source", "reasoning", "ends", "opened"),
    [
        (PLAIN, False, "[assistant]", False),
        (THINKING, None, "[assistant]<think>\n", True),
        (THINKING, True, "[assistant]<think>\n", True),
        (THINKING, "low", "[assistant]<think>\n", True),
        (THINKING, False, "[assistant]<think>\n\n</think>\n\n", False),
        (ALWAYS, None, "[assistant]<think>\n", True),
        (ALWAYS, True, "[assistant]<think>\n", True),
        (ALWAYS, False, "[assistant]<think>\n\n\n</think>\n\n", False),
        (ITSELF, None, "[assistant]", False),
        (ITSELF, False, "[assistant]<think>\n\n</think>\n\n", False),
        (EFFORT, "high", "[assistant]high", False),
        (EFFORT, True, "[assistant]", False),
    ],
)
def test_reasoning_is_switched(source: str, reasoning: Any, ends: str, opened: bool) -> None:
    prompt = dialect(source).prompt([USER], NONE, reasoning)
    assert prompt.text == f"[user]Hi{ends}"
    assert prompt.opened is opened


@pytest.mark.parametrize(
    ("source", "reasoning", "words"),
    [
        (PLAIN, True, "does not reason"),
        (PLAIN, "high", "does not reason"),
        (EFFORT, False, "always reasons"),
    ],
)
def test_a_switch_that_is_not_there_is_refused(source: str, reasoning: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        dialect(source).prompt([USER], NONE, reasoning)
    assert caught.value.param == "reasoning"


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(RequestError, match="reasoning is 'much'; expected true, false or one of minimal, low"):
        dialect(THINKING).prompt([USER], NONE, cast("Any", "much"))


def test_variables_of_the_request_come_last() -> None:
    assert dialect(THINKING).prompt([USER], NONE, True, {"enable_thinking": False}).text.endswith("</think>\n\n")


def test_old_reasoning_is_the_templates_to_keep() -> None:
    said = {"role": "assistant", "content": "a", "reasoning": "r"}
    assert dialect(NATIVE).prompt([USER, said, USER], NONE).text == "[user]Hi[assistant]ra[user]Hi[assistant]"
    assert dialect(PLAIN).prompt([USER, said, USER], NONE).text == "[user]Hi[assistant]a[user]Hi[assistant]"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PLAIN, "[system]a[user]Hi[assistant]"),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + PLAIN, "[user]a\n\nHi[assistant]"),
        (PLAIN.replace("{{ m.content }}", "{{ m.content[0].text }}"), "[system]a[user]Hi[assistant]"),
        ("{# developer #}" + PLAIN, "[developer]a[user]Hi[assistant]"),
    ],
)
def test_messages_are_what_the_template_takes(source: str, expected: str) -> None:
    assert dialect(source).prompt([{"role": "developer", "content": "a"}, USER], NONE).text == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": 1}'),
        ("{{ c.function.arguments }}", '{"a": 1}'),
        ("{{ '' + c.function.arguments }}", '{"a": 1}'),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
    ],
)
def test_arguments_are_what_the_template_takes(written: str, expected: str) -> None:
    found = dialect(NATIVE.replace("{{ c.function.arguments | tojson }}", written))
    assert found.prompt([USER, CALLED, RESULT], TOOLS).text.endswith(f"[assistant]{expected}[tool]noon[assistant]")


def test_a_template_that_writes_one_call_gets_one_at_a_time() -> None:
    source = NATIVE.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]").replace("{{ c.", "{{ c.function.name }}{{ c.")
    found = dialect(source)
    calls = [{"id": id, "function": {"name": name, "arguments": {}}} for id, name in (("x", "now"), ("y", "weather"))]
    results = [{**RESULT, "tool_call_id": id} for id in "xy"]
    text = found.prompt([USER, {**CALLED, "tool_calls": calls}, *results], TOOLS).text
    assert text.endswith("[assistant]now{}[tool]noon[assistant]weather{}[tool]noon[assistant]")


def test_a_familys_template_holds_where_the_file_has_none_and_its_vocabulary_fits(tmp_path: Path) -> None:
    fitting = ChatStyle("plain", template=PLAIN, tokens=("<|im_start|>", "<|im_end|>"))
    foreign = ChatStyle("plain", template=PLAIN, tokens=("<|im_start|>", "[INST]"))
    own, bare = write_file(tmp_path / "own.gguf"), write_file(tmp_path / "bare.gguf", template=None)
    found = {}
    for name, path in (("own", own), ("bare", bare)):
        with open_gguf(str(path)) as file:
            tokenizer = load_tokenizer(file)
            for style in (fitting, foreign, None):
                model, unused = cast("Any", SimpleNamespace(chat=style) if style else object()), cast("Any", None)
                engine = cast("Any", SimpleNamespace(limit=64))
                llm = LLM(file, model, unused, engine, tokenizer, ExitStack())
                found[name, style] = llm.template.source if llm.has_template else None
    assert found == {
        ("own", fitting): TEMPLATE,
        ("own", foreign): TEMPLATE,
        ("own", None): TEMPLATE,
        ("bare", fitting): PLAIN,
        ("bare", foreign): None,
        ("bare", None): None,
    }
