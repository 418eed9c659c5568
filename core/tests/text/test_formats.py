"""Each shape of replies: the same however it arrives, no markup in the text, no text lost, nothing that breaks it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core.tests.text.replies import TOOLS, Read, joined, read, read_every_way
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.text.channels import Reasoning, ReplyFormat, ReplyParser, tagged_reply
from tensorsharp.text.reading import MAX_FAILURES
from tensorsharp.text.styles import FORMATS
from tensorsharp.text.toolcalls import Tools

THINK = Reasoning("<think>", "</think>")
GOLDENS = json.loads(Path(__file__).with_name("replies.json").read_text(encoding="utf-8"))


def format_of(name: str, reasoning: Reasoning | None = THINK) -> ReplyFormat:
    found = FORMATS[name]
    return found if isinstance(found, ReplyFormat) else tagged_reply(found, reasoning)


BERN = ("weather", {"city": "Bern"})
NOW = ("now", {})
CALL = '<tool_call>{"name": "now"}</tool_call>'
BLOCK = '```json\n{\n "name": "weather",\n "arguments": {"city": "Bern"}\n}\n{"name": "now", "arguments": {}}\n```'
D = "｜DSML｜"
INVOKE = f'<{D}invoke name="weather">\n<{D}parameter name="city" string="true">Bern</{D}parameter>\n</{D}invoke>'
SPACED = INVOKE.replace(D, f"{D} ")
ATEM = '<atem:invoke name="weather">\n<atem:parameter name="city">Bern</atem:parameter>\n</atem:invoke>'
XML = "<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>"
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
ANSWER = "<|start|>assistant<|channel|>final<|message|>"

CASES: list[tuple[str, str, Read]] = [
    # tagged JSON
    ("tagged_json", '<tool_call>{"name": "now"}</tool_call>', Read(calls=(NOW,))),
    ("tagged_json", '<tool_call>{"name": "now"}', Read(calls=(NOW,))),
    ("tagged_json", '<tool_call>{"name": "now"}</tool', Read(calls=(NOW,))),
    ("tagged_json", '<tool_call>[{"name": "now"}, {"function": "now"}]</tool_call>', Read(calls=(NOW, NOW))),
    (
        "tagged_json",
        '<tool_call>{"name": "weather", "arguments": {"city": "a</tool_call>\\"\\\\{"}}</tool_call>',
        Read(calls=(("weather", {"city": 'a</tool_call>"\\{'}),)),
    ),
    ("tagged_json", '<tool_call>{"name": 5}</tool_call>', Read('<tool_call>{"name": 5}</tool_call>')),
    ("tagged_json", '<tool_call>{"name": "now"} or so', Read('<tool_call>{"name": "now"} or so')),
    ("tagged_json", '<tool_call>{"name": "now", "arguments": [', Read('<tool_call>{"name": "now", "arguments": [')),
    ("tagged_json", '<tool_call>{"name": "now", "arguments": NaN}', Read('<tool_call>{"name": "now", "arguments": NaN}')),
    ("tagged_json", 'a <tool_call>b <tool_call>{"name": "now"}</tool_call>', Read("a <tool_call>b", calls=(NOW,))),
    ("tagged_json", "<tool_call>" + "[" * 100_000, Read("<tool_call>" + "[" * 100_000)),
    ("tagged_json", '{"name": "now", "arguments": {}}', Read(calls=(NOW,))),
    ("tagged_json", '\n {"name" : "now",\n"parameters": {}}\n{"name": "now", "arguments": {}}\n', Read(calls=(NOW, NOW))),
    ("tagged_json", '<think>Hm.</think>\n\n{"name": "now", "arguments": {}}', Read("", "Hm.", (NOW,))),
    ("tagged_json", '{"name": "now", "arguments": {}} or so', Read('{"name": "now", "arguments": {}} or so')),
    ("tagged_json", '{"name": "later", "arguments": {}}', Read('{"name": "later", "arguments": {}}')),
    ("tagged_json", '{"name": "now"}', Read('{"name": "now"}')),
    ("tagged_json", '{"name": "now", "arguments": []}', Read('{"name": "now", "arguments": []}')),
    ("tagged_json", 'So: {"name": "now", "arguments": {}}', Read('So: {"name": "now", "arguments": {}}')),
    ("tagged_json", f"<think>{BLOCK}</think>{BLOCK}", Read("", BLOCK, (BERN, NOW))),
    ("tagged_json", f"So:\n{BLOCK}\nWell.", Read("So:\n\nWell.", calls=(BERN, NOW))),
    ("tagged_json", BLOCK.removesuffix("```"), Read(calls=(BERN, NOW))),
    ("tagged_json", '```json\n{"name": "now", "version": 1}\n```', Read('```json\n{"name": "now", "version": 1}\n```')),
    ("tagged_json", f"```json\n[1]\n```\n{CALL}", Read("```json\n[1]\n```", calls=(NOW,))),
    # function XML
    ("function_xml", f"<tool_call>\n{XML}\n</tool_call>", Read(calls=(BERN,))),
    ("function_xml", f"So:\n\n{XML}", Read("So:", calls=(BERN,))),
    ("function_xml", f"<tool_call>{XML}\n{XML}</tool_call>", Read(calls=(BERN, BERN))),
    ("function_xml", f"<think>Hm.\n<tool_call>\n{XML}\n</tool_call>", Read("", "Hm.", (BERN,))),
    ("function_xml", "<tool_call>\n<function=now>\n</function>\n</tool_call>", Read(calls=(NOW,))),
    (
        "function_xml",
        (
            "<function=weather><parameter=city>\n a\n\n</parameter><parameter=days>3</parameter><parameter=exact>True</parameter>"
            '<parameter=tags>["x", 1]</parameter><parameter=note>null</parameter></function>'
        ),
        Read(calls=(("weather", {"city": " a\n", "days": 3, "exact": True, "tags": ["x", 1], "note": None}),)),
    ),
    ("function_xml", "<function=a b>", Read("<function=a b>")),
    ("function_xml", "<tool_call>\n<function=now>\n<parameter=x>1", Read("<tool_call>\n<function=now>\n<parameter=x>1")),
    # invocations
    ("dsml_invocations", f"Well.\n\n<{D}tool_calls>\n{INVOKE}\n</{D}tool_calls>", Read("Well.", calls=(BERN,))),
    ("dsml_invocations", f"<{D} calls>\n{SPACED}\n{SPACED}\n</{D} calls>", Read(calls=(BERN, BERN))),
    (
        "dsml_invocations",
        (
            f'<{D}tool_calls>\n<{D}invoke name="weather">\n<{D}parameter name="city" string="true"> 5\n</{D}parameter>\n'
            f'<{D}parameter name="tags" string="false">["a"]</{D}parameter>\n</{D}invoke>\n</{D}tool_calls>'
        ),
        Read(calls=(("weather", {"city": " 5\n", "tags": ["a"]}),)),
    ),
    ("dsml_invocations", f"<{D}tool_calls>\nno", Read(f"<{D}tool_calls>\nno")),
    ("invocations", '<minimax:tool_call>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>', Read(calls=(NOW,))),
    # argument pairs
    ("argument_pairs", "<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call>", Read(calls=(BERN,))),
    (
        "argument_pairs",
        (
            "<think>Hm.</think>\n<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n"
            "<tool_call>now</tool_call>"
        ),
        Read("", "Hm.", (("weather", {"days": 2}), NOW)),
    ),
    ("argument_pairs", "The <tool_call> tag", Read("The <tool_call> tag")),
    ("argument_pairs", "<tool_call>now", Read("<tool_call>now")),
    # bracketed calls
    ("bracketed", '[TOOL_CALLS]weather[ARGS]{"city": "Bern"}[TOOL_CALLS]now[ARGS]{}', Read(calls=(BERN, NOW))),
    ("bracketed_list", '[TOOL_CALLS][{"name": "now"}, {"name": "now"}]', Read(calls=(NOW, NOW))),
    ("bracketed", 'Hm.[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "123456789"}]', Read("Hm.", calls=(NOW,))),
    ("bracketed", "[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}", Read(calls=(NOW,))),
    ("bracketed", "[TOOL_CALLS]now then", Read("[TOOL_CALLS]now then")),
    # call literals
    ("call_literals", '<|tool_call>call:weather{city:<|"|>Bern<|"|>}<tool_call|>', Read(calls=(BERN,))),
    (
        "call_literals",
        '<|tool_call>call:weather{city:<|"|>a,}"<|"|>,days:-1.5,exact:true,tags:[<|"|>x<|"|>,{<|"|>k<|"|>:null,b:[]}]}<tool_call|>',
        Read(calls=(("weather", {"city": 'a,}"', "days": -1.5, "exact": True, "tags": ["x", {"k": None, "b": []}]}),)),
    ),
    ("call_literals", "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}", Read(calls=(NOW, NOW))),
    ("call_literals", "<|tool_call>call:now{a:}", Read("<|tool_call>call:now{a:}")),
    ("call_literals", "<|tool_call>call:now{a:" + "[" * 90, Read("<|tool_call>call:now{a:" + "[" * 90)),
    # call lists
    ("call_lists", '<tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>', Read(calls=(NOW,))),
    ("call_lists", "<tool_calls>[]</tool_calls>", Read("<tool_calls>[]</tool_calls>")),
    # bare JSON
    ("bare_json", '{"name": "weather", "parameters": {"city": "Bern"}}', Read(calls=(BERN,))),
    ("bare_json", '<|python_tag|>{"name": "now"}; {"name": "now"}', Read(calls=(NOW, NOW))),
    ("bare_json", '{"name": "Ann", "parameters": {}}', Read('{"name": "Ann", "parameters": {}}')),
    ("bare_json", ' {"answer": 1}\n', Read(' {"answer": 1}\n')),
    ("bare_json", 'Now {"name": "now"}', Read('Now {"name": "now"}')),
    # channels
    ("channels", "Hello", Read("Hello")),
    ("channels", f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>Yes.", Read("Yes.", "Hm.")),
    ("channels", f"{ANALYSIS}<|start|>assistant{ANALYSIS}", Read("", "Hm.\n\nHm.")),
    (
        "channels",
        f'{ANALYSIS}<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{{"city": "Bern"}}<|call|>',
        Read("", "Hm.", (BERN,)),
    ),
    (
        "channels",
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
            "<|constrain|>json<|message|>{}"
        ),
        Read("I look.", calls=(NOW,)),
    ),
    (
        "channels",
        " to=functions.now<|channel|>commentary json<|message|>{} x",
        Read(" to=functions.now<|channel|>commentary json<|message|>{} x"),
    ),
    ("channels", "<|channel|>ana", Read()),
    ("channels", "<|channel|>final<|message|>Ye", Read("Ye")),
    ("channels", "<|channel|>final<|message|>\n\nYes.\n", Read("Yes.\n")),
    # recipients
    ("recipients", " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.", Read("Yes.", "Hm.")),
    ("recipients", "<|message|>Yes.<|eot|>", Read("Yes.")),
    (
        "recipients",
        (
            f" to=weather<|message|><atem:function_calls>\n{ATEM}\n</atem:function_calls><|eom|>"
            "<|start|>assistant to=now<|message|><atem:function_calls>\n"
            '<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
        ),
        Read(calls=(BERN, NOW)),
    ),
    ("recipients", " to=now<|message|>what?<|eot|>", Read(" to=now<|message|>what?")),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_a_reply_is_read(name: str, text: str, expected: Read) -> None:
    reader = read_every_way if len(text) < 1000 else lambda format, text: read(format, [text])
    assert reader(format_of(name), text) == expected


@pytest.mark.parametrize("tools", [TOOLS, Tools(())])
@pytest.mark.parametrize(("name", "before"), [("tagged_json", "<think>Hm.</think>"), ("channels", f"{ANALYSIS}{ANSWER}")])
def test_before_content_in_a_form_line_breaks_alone_are_left_out(name: str, before: str, tools: Tools) -> None:
    for pieces in ([f"{before}\n\n a <think>"], f"{before}\n\n a <think>"):
        assert read(format_of(name), pieces, tools=tools, formed=True) == Read(" a <think>", "Hm.")
    assert read(format_of(name), f"{before} a") == Read("a", "Hm.")


@pytest.mark.parametrize("name", FORMATS)
def test_each_shape_has_cases(name: str) -> None:
    assert sum(case[0] == name and bool(case[2].calls) for case in CASES) >= 1


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text, expected in CASES if expected.calls])
def test_without_tools_nothing_is_a_call_and_no_text_is_lost(name: str, text: str) -> None:
    found = read_every_way(format_of(name), text, tools=Tools(()))
    assert found.calls == ()
    for word in ("Bern", "now"):
        assert (found.content + found.reasoning).count(word) == text.count(word)


@pytest.mark.parametrize(("name", "text", "expected"), [case for case in CASES if len(case[1]) < 1000])
def test_what_was_given_stays_true_when_more_follows(name: str, text: str, expected: Read) -> None:
    for end in range(len(text)):
        certain = joined(ReplyParser(format_of(name), TOOLS).feed(text[:end]))
        assert expected.content.startswith(certain.content)
        assert expected.reasoning.startswith(certain.reasoning)
        assert expected.calls[: len(certain.calls)] == certain.calls


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: f"{golden['template']}-{golden['case']}")
def test_a_reply_as_a_template_writes_it(golden: dict[str, Any]) -> None:
    """Replies that real chat templates wrote (`make_replies.py`)."""
    reasoning = Reasoning(*golden["reasoning_tags"]) if golden["reasoning_tags"] else None
    found = read_every_way(format_of(golden["format"], reasoning), golden["reply"], opened=golden["opened"])
    calls = tuple((name, arguments) for name, arguments in golden["calls"])
    assert found == Read(golden["content"], golden["reasoning"], calls)


@pytest.mark.parametrize("name", ["tagged_json", "channels"])
def test_markup_that_never_ends_costs_no_more_than_its_length_allows(name: str) -> None:
    """Each piece begins a call that goes on until the end: trying all of them took time in the square of the length."""
    piece = {"tagged_json": '<tool_call>{"a":"', "channels": "<|start|>assistant to=functions.now<|message|>["}[name]
    text = piece * (3 * MAX_FAILURES)
    found = read(format_of(name), [text])
    assert read(format_of(name), text) == found
    assert found.content.replace("\n\n", "") == text.replace("<|start|>", "")
    assert read(format_of("tagged_json"), ["<tool_call>x" * (MAX_FAILURES - 1) + CALL]).calls == (NOW,)
    assert read(format_of("tagged_json"), ["<tool_call>x" * MAX_FAILURES + CALL]).calls == ()


PIECES = sorted({marker for name in FORMATS for marker in format_of(name).markers})
texts = st.lists(
    st.sampled_from(PIECES)
    | st.sampled_from(["weather", "now", '{"name": "now"}', "{}", "[", "call:now{", " ", "\n", "to=self", ">", '"'])
    | st.text(max_size=3),
    max_size=12,
).map("".join)


@settings(max_examples=40, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 200), max_size=5), opened=st.booleans())
@pytest.mark.parametrize("name", FORMATS)
def test_any_text_is_read_the_same_however_it_arrives(name: str, text: str, cuts: list[int], opened: bool) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert (
        read(format_of(name), pieces, opened=opened)
        == read(format_of(name), text, opened=opened)
        == read(format_of(name), [text], opened=opened)
    )


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=40).filter(lambda text: not any(marker in text for marker in (*PIECES, "{"))))
@pytest.mark.parametrize("name", FORMATS)
def test_a_text_without_markup_is_content_as_it_is(name: str, text: str) -> None:
    assert read(format_of(name), text) == Read(text)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(arguments=st.dictionaries(st.text(max_size=5), values, max_size=3), spoken=st.sampled_from(["", "Well. "]))
@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("tagged_json", '<tool_call>{"name": "weather", "arguments": %s}</tool_call>'),
        ("call_lists", '<tool_calls>[{"name": "weather", "arguments": %s}]</tool_calls>'),
        ("bracketed", "[TOOL_CALLS]weather[ARGS]%s"),
        ("channels", "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>%s<|call|>"),
    ],
)
def test_any_arguments_come_through(name: str, frame: str, arguments: dict[str, Any], spoken: str) -> None:
    text = frame % json.dumps(arguments, ensure_ascii=False)
    assert read(format_of(name), text).calls == (("weather", arguments),)


def test_a_strict_call_needs_its_tags() -> None:
    """A grammar has held what stands between them, and nothing else."""
    strict = Tools([replace(tool, strict=tool.name == "now") for tool in TOOLS])
    bare = '{"name": "now", "arguments": {}}'
    assert read(format_of("tagged_json"), [bare], tools=strict) == Read(bare)
    assert read(format_of("tagged_json"), [BLOCK], tools=strict) == Read(BLOCK)
    assert read(format_of("tagged_json"), [CALL], tools=strict) == Read(calls=(NOW,))
    only = Tools([replace(tool, strict=True) for tool in TOOLS])
    assert read(format_of("tagged_json"), [bare], tools=only) == Read(bare)
