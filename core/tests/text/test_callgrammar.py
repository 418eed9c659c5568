"""Grammars of calls: what they let through is read as calls, and what templates write is let through."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from core.tests.text.replies import TOOLS, Read, read

from tensorsharp.errors import RequestError
from tensorsharp.protocols.constraint import Grammar
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.testing.tinyvocab import byte_vocabulary
from tensorsharp.text.callgrammar import GrammarWriter
from tensorsharp.text.channels import ReplyFormat, tagged_reply
from tensorsharp.text.constraints import Constraints
from tensorsharp.text.styles import FORMATS
from tensorsharp.text.tokenizer import load_tokenizer
from tensorsharp.text.toolcalls import Tools, read_tools
from tensorsharp.types import Constraint

from .tiny import MetadataFile

Vocabulary = tuple[Tokenizer, dict[str, int]]
CONTROL = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "</arg_value>",
]
FIRST = 280
GOLDENS = json.loads(Path(__file__).with_name("replies.json").read_text(encoding="utf-8"))
BOUNDED = read_tools(
    [
        {
            "name": "book",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "kind": {"enum": ["room", "car"]},
                    "nights": {"type": "integer", "minimum": 1, "maximum": 9},
                    "quiet": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
                },
                "required": ["kind", "nights"],
            },
        },
        {"name": "now", "strict": True, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
    ]
)
WRITTEN = [name for name, format in FORMATS.items() if (format.calls if isinstance(format, ReplyFormat) else format.write)]

CALLS = [golden for golden in GOLDENS if golden["case"] == "call" and golden["format"] in WRITTEN]


def format_of(name: str) -> ReplyFormat:
    found = FORMATS[name]
    return found if isinstance(found, ReplyFormat) else tagged_reply(found, None)


@pytest.fixture(scope="module", params=[False, True], ids=["bytes", "control tokens"])
def vocabulary(request: pytest.FixtureRequest) -> tuple[Tokenizer, dict[str, int]]:
    """A tokenizer of bytes, and its control tokens: none, or the markers of the shapes."""
    made: dict[str, Any] = byte_vocabulary(310)
    tokens, types = list(made["tokenizer.ggml.tokens"]), list(made["tokenizer.ggml.token_type"])
    controls = {text: FIRST + number for number, text in enumerate(CONTROL)} if request.param else {}
    for text, token in controls.items():
        tokens[token], types[token] = text, 3
    tokenizer = load_tokenizer(MetadataFile({**made, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}))
    return tokenizer, {text: token for text, token in controls.items() if not tokenizer.bytes_of(token)}


def grammar_of(
    vocabulary: Vocabulary,
    name: str,
    tools: Tools,
    *,
    several: bool = True,
    free: bool = False,
    loose: bool = False,
    form: Constraint | None = None,
) -> Grammar:
    tokenizer, controls = vocabulary
    writer = GrammarWriter(controls, loose=loose)
    write = format_of(name).calls
    assert write is not None
    source = writer.grammar(write(writer, [*tools], several, free, form))
    return Constraints(tokenizer).compile(Constraint("lark", source))


def fits(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether a whole text is allowed, in control tokens and bytes."""
    matcher = grammar.start()
    for token in _tokens(tokenizer, text):
        mask = matcher.mask()
        if mask is None or not mask[token]:
            return False
        matcher.accept(token)
    return matcher.accepting


def _tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    made: list[int] = []
    for token in tokenizer.encode(text, bos=False):
        made += [token] if not tokenizer.bytes_of(token) else tokenizer.bytes_of(token)
    return made


def walk(grammar: Grammar, tokenizer: Tokenizer, seed: int, longest: int = 400) -> str | None:
    """A random text of the grammar; None if it did not end in time."""
    matcher, draw, made = grammar.start(), random.Random(seed), []
    while len(made) < longest and not matcher.complete:
        mask = matcher.mask()
        assert mask is not None
        if matcher.accepting and draw.random() < 0.3:
            break
        token = draw.choice([int(token) for token in mask.nonzero()[0]])
        matcher.accept(token)
        made.append(token)
    if not matcher.accepting and not matcher.complete:
        return None
    return b"".join(tokenizer.bytes_of(t) or tokenizer.piece(t).encode() for t in made).decode("utf-8", "replace")


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_let_through_is_read_as_calls_that_fit(vocabulary: Vocabulary, name: str) -> None:
    grammar = grammar_of(vocabulary, name, BOUNDED)
    texts = [text for seed in range(12) if (text := walk(grammar, vocabulary[0], seed)) is not None]
    assert len(texts) >= 6
    for text in texts:
        found = read(format_of(name), [text], tools=BOUNDED)
        assert found.calls, text
        assert (found.content, found.reasoning) == ("", ""), text
        for called, arguments in found.calls:
            jsonschema.validate(arguments, dict(BOUNDED.by_name[called].parameters))


@pytest.mark.parametrize("name", WRITTEN)
def test_one_call_is_one_call(vocabulary: Vocabulary, name: str) -> None:
    grammar = grammar_of(vocabulary, name, BOUNDED, several=False)
    for seed in range(8):
        text = walk(grammar, vocabulary[0], seed)
        assert text is None or len(read(format_of(name), [text], tools=BOUNDED).calls) == 1


@pytest.mark.parametrize("name", WRITTEN)
def test_where_calls_are_free_they_fit_and_text_is_let_through(vocabulary: Vocabulary, name: str) -> None:
    free, bound = (grammar_of(vocabulary, name, BOUNDED, free=free) for free in (True, False))
    answer = format_of(name).answer
    assert fits(free, vocabulary[0], f"{answer}Hello, <b>you</b>\n")
    assert not fits(bound, vocabulary[0], f"{answer}Hello, <b>you</b>\n")
    text = next(text for seed in range(12) if (text := walk(bound, vocabulary[0], seed)) is not None)
    assert fits(free, vocabulary[0], text)
    assert not fits(free, vocabulary[0], text.replace("now", "not").replace("book", "boot"))


@pytest.mark.parametrize("golden", CALLS, ids=lambda golden: golden["template"])
def test_what_templates_write_is_let_through(vocabulary: Vocabulary, golden: dict[str, Any]) -> None:
    name = golden["format"]
    reply = golden["reply"].split("</think>")[-1].replace(', "id": "call00001"', "")
    assert fits(grammar_of(vocabulary, name, TOOLS), vocabulary[0], reply.replace("False\n", "false\n"))


def test_a_strict_schema_that_cannot_be_followed_is_refused_and_another_let_go(
    vocabulary: Vocabulary,
) -> None:
    parameters = {"type": "object", "properties": {"a": {"not": {}}}}
    loose, strict = (read_tools([{"name": "f", "parameters": parameters, "strict": strict}]) for strict in (False, True))
    for tools in (loose, strict):
        with pytest.raises(RequestError, match="'not'"):
            grammar_of(vocabulary, "tagged_json", tools)
    with pytest.raises(RequestError, match="'not'"):
        grammar_of(vocabulary, "tagged_json", strict, loose=True)
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert fits(grammar_of(vocabulary, "tagged_json", loose, loose=True), vocabulary[0], text)


@pytest.mark.parametrize("schema", [{"type": "string", "maxLength": 3}, {"type": ["string", "null"]}, {}])
def test_strings_without_quotes_are_bounded_by_choices_alone(vocabulary: Vocabulary, schema: Any) -> None:
    strict = read_tools([{"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}, "strict": True}])
    with pytest.raises(RequestError, match=r"#/properties/a: .*bounded by 'enum' alone"):
        grammar_of(vocabulary, "function_xml", strict)


def test_open_strings_end_with_their_tag(vocabulary: Vocabulary) -> None:
    grammar = grammar_of(vocabulary, "function_xml", TOOLS)
    text = "<tool_call>\n<function=weather>\n<parameter=city>\n</b> </param\n\n</parameter>\n</function>\n</tool_call>"
    assert fits(grammar, vocabulary[0], text)
    assert read(format_of("function_xml"), [text]) == Read(calls=(("weather", {"city": "</b> </param\n"}),))
