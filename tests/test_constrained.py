"""Constrained replies of a real model: what they must be, and the same whatever else runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import tensorsharp as ts
from tests.realmodels import REAL_MODELS, needs

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "people": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "near": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 2},
    },
    "required": ["city", "people", "near"],
    "additionalProperties": False,
}
CONSTRAINTS = (
    ts.Constraint.json_schema(SCHEMA),
    ts.Constraint.choice(["small", "large", "very large"]),
    ts.Constraint("regex", r"[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9})?\."),
    ts.Constraint("grammar", 'root ::= "- " [^\\n]{1,20} ("\\n- " [^\\n]{1,20}){1,2}'),
    None,
)


@pytest.fixture(scope="module")
def llm() -> Iterator[ts.LLM]:
    with ts.load(needs(REAL_MODELS["smollm2"]), parallel=5, ctx_size=512) as made:
        yield made


def start(llm: ts.LLM, number: int, temperature: float) -> Any:
    return llm.stream(
        "Name a city.", constraint=CONSTRAINTS[number], max_tokens=100, temperature=temperature, seed=number, logprobs=1
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replies_have_their_form_and_are_the_same_alone_and_together(llm: ts.LLM, temperature: float) -> None:
    alone = [start(llm, number, temperature).result() for number in range(len(CONSTRAINTS))]
    streams = [start(llm, number, temperature) for number in range(len(CONSTRAINTS))]
    together = [stream.result() for stream in streams]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert [r.logprobs for r in together] == [r.logprobs for r in alone]
    assert [r.finish_reason for r in together[:4]] == ["stop"] * 4
    Draft202012Validator(SCHEMA).validate(json.loads(together[0].text))
    assert together[1].text in ("small", "large", "very large")
    assert together[2].text[0].isupper()
    assert together[2].text.endswith(".")
    assert together[3].text.startswith("- ")
    assert together[3].text.count("\n") in (1, 2)
