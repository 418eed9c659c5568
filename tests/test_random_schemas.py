"""A thousand random schemas: what a small model with random weights writes under each, drawn at temperature 1, is valid."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from core.tests.text.random_schemas import Schema, Schemas, check_valid, completed

import tensorsharp as ts
from tensorsharp.testing.tinygguf import tiny, write_tiny
from tensorsharp.testing.tinyvocab import MERGES
from tensorsharp.text.schemas import KEYWORDS

COUNT, CALLS, SHORT, PARALLEL = 1000, 200, 100, 16
TOKENS, FEW = 700, 12
"""Of a whole reply, at most, and of one that is cut."""
CONTEXT = 8192
"""A byte is a token, and the schema of a tool is part of the prompt."""
FREE: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PIECES = (
    *('" :', '" ,', '" }', '" ]', '{ "', '[ "', "[ {", "} }", "} ]", "] }", "} ,", ", Ġ", ", Ċ", ', "', ": Ġ", ': "', ":Ġ -"),
    *('\\ "', "\\ n", "\\ u", "0 0", "\\u 00", "1 2", "2 0", "20 2", "- 1", ". 5", "e -", "Ċ ĉ", "Ċ Ġ", "Ġ Ġ", "ĊĠ ĠĠ"),
    *("Ã ©", "Ã Ł", "ð Ł", "ðŁ ĺ", "â Ģ", "Ģ Ļ", "t r", "tr u", "tru e", "l l", "n u", "nu ll"),
)
"""Merges over the borders between parts of a JSON text, and over those of characters, in byte-level BPE's symbols."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Answered = tuple[Schema, Any]

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ts.LLM]:
    words = {"tokenizer": "bytes", "vocab_size": 384, "merges": (*MERGES, *PIECES), "chat_template": TEMPLATE}
    path = write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", tiny("llama", context=CONTEXT, **words))
    with ts.load(path, parallel=PARALLEL, ctx_size=CONTEXT) as made:
        yield made


def schemas(seed: int, count: int) -> list[Schema]:
    made = Schemas(seed)
    return [made.schema() for _ in range(count)]


def answers(start: Callable[[Schema, int], Any], asked: Sequence[Schema]) -> Iterator[Answered]:
    """Each schema with its reply, in order; PARALLEL requests run and as many wait. The place in the list is the seed."""
    running: deque[tuple[Schema, Any]] = deque()
    for seed, schema in enumerate(asked):
        if len(running) == 2 * PARALLEL:
            before, reply = running.popleft()
            yield before, reply.result()
        running.append((schema, start(schema, seed)))
    for before, reply in running:
        yield before, reply.result()


def under(llm: ts.LLM, tokens: int) -> Callable[[Schema, int], Any]:
    def start(schema: Schema, seed: int) -> Any:
        constraint = ts.Constraint.json_schema(schema)
        return llm.stream("JSON", raw=True, constraint=constraint, seed=seed, max_tokens=tokens, **FREE)

    return start


@pytest.fixture(scope="module")
def wholes(llm: ts.LLM) -> list[Answered]:
    before = llm.stats()
    made = list(answers(under(llm, TOKENS), schemas(7, COUNT)))
    after = llm.stats()
    rows = (after.tokens_generated - before.tokens_generated) / (after.steps - before.steps)
    assert rows > 2, "they were drawn side by side"
    return made


def keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from keywords(value)


def test_every_supported_keyword_is_in_the_schemas() -> None:
    assert KEYWORDS.keys() <= {word for schema in schemas(7, COUNT) for word in keywords(schema)}


def test_replies_are_valid(llm: ts.LLM, wholes: list[Answered]) -> None:
    ended = [(schema, reply) for schema, reply in wholes if reply.finish_reason == "stop"]
    cut = [(schema, reply) for schema, reply in wholes if reply.finish_reason == "length"]
    assert len(ended) + len(cut) == COUNT
    assert len(ended) >= 0.95 * COUNT
    for schema, reply in ended:
        check_valid(schema, reply.text)
    for schema, reply in cut:
        check_valid(schema, completed(llm, schema, reply.token_ids))


def test_what_length_cuts_is_the_beginning_of_a_valid_text(llm: ts.LLM, wholes: list[Answered]) -> None:
    cut = 0
    for (schema, part), (_, whole) in zip(answers(under(llm, FEW), schemas(7, SHORT)), wholes, strict=False):
        assert part.token_ids == whole.token_ids[:FEW]
        cut += part.finish_reason == "length"
        check_valid(schema, completed(llm, schema, part.token_ids))
    assert cut > SHORT // 3


def test_pieces_of_several_bytes_are_drawn(llm: ts.LLM, wholes: list[Answered]) -> None:
    drawn = {token for _, reply in wholes for token in reply.token_ids}
    first = 256 + len(MERGES)
    missed = [piece for number, piece in enumerate(PIECES) if first + number not in drawn]
    assert len(missed) <= len(PIECES) // 10, (
        "the rarest are drawn a few times, which may be none where sums are rounded otherwise"
    )


def test_arguments_of_calls_are_valid(llm: ts.LLM) -> None:
    def start(schema: Schema, seed: int) -> Any:
        tool = {"name": "put", "parameters": parameters(schema), "strict": True}
        options = ts.ChatOptions(tools=[tool], tool_choice="required", parallel_tool_calls=False)
        return llm.start_chat([{"role": "user", "content": "Put."}], options, seed=seed, max_tokens=TOKENS, **FREE)

    ended = 0
    for schema, reply in answers(start, schemas(8, CALLS)):
        assert reply.finish_reason in ("tool_calls", "length")
        if reply.finish_reason == "tool_calls":
            [call] = reply.tool_calls
            check_valid(parameters(schema), call.arguments)
            ended += 1
    assert ended >= 0.95 * CALLS


def parameters(schema: Schema) -> Schema:
    """Those of a tool whose one argument fits the schema; definitions are at the top, where references look for them."""
    inner = json.loads(json.dumps(schema))
    shared = {place: inner.pop(place) for place in ("$defs", "definitions") if place in inner}
    return {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False, **shared}
