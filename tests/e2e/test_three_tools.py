"""A conversation with three tools, held through each client with Qwen2.5-Coder 1.5B: the calls and the answer are the same.

nox -s tools
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import jsonschema
import pytest
from tests.e2e.served import serving
from tests.e2e.talks import TALKS, Answer, Talk
from tests.realmodels import QWEN_CODER, needs

pytestmark = pytest.mark.tools

Calls = tuple[tuple[str, dict[str, Any]], ...]


def function(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "parameters": schema}


FUNCTIONS = [
    function(
        "find_parcel",
        "Find the number of the parcel that waits for a customer.",
        customer={"type": "string", "description": "The customer's full name"},
    ),
    function(
        "locate_parcel",
        "Tell in which branch a parcel lies, and which fee has to be paid.",
        number={"type": "string", "description": "The parcel's number"},
    ),
    function(
        "opening_hours",
        "Tell when a branch opens and closes on a day of the week.",
        branch={"type": "string", "description": "The branch's name"},
        day={"type": "string", "enum": ["thursday", "friday", "saturday", "sunday"]},
    ),
]
SCHEMAS = {one["name"]: {**one["parameters"], "additionalProperties": False} for one in FUNCTIONS}
RESULTS = {
    "find_parcel": '{"number": "PX482913"}',
    "locate_parcel": '{"branch": "Zürich Oerlikon", "fee": "7.35 francs"}',
    "opening_hours": '{"opens": "09:40", "closes": "16:20"}',
}
CALLS: list[Calls] = [
    (("find_parcel", {"customer": "Jürg Müller"}),),
    (("locate_parcel", {"number": "PX482913"}),),
    (("opening_hours", {"branch": "Zürich Oerlikon", "day": "saturday"}),),
]
TASK = "I am Jürg Müller. Find the number of my parcel, then where it lies, then the hours of that branch on Saturday."
QUESTION = "Which branch is it, between which hours is it open on Saturday, and what is the fee? Answer in one sentence."
FACTS = ("Zürich Oerlikon", "09:40", "16:20", "7.35")
"""What nobody knows who did not read the results."""


@dataclass
class Held:
    """A conversation that was held. streamed: its first call once more, from a stream."""

    called: str
    said: str
    answers: list[Answer] = field(default_factory=list)
    streamed: Calls = ()


def hold(talk: Talk) -> Held:
    """Task, calls, question, answer."""
    talk.say(TASK)
    held = Held(talk.called, talk.said, streamed=talk.streamed())
    for _ in CALLS:
        held.answers.append(talk.ask(required=True))
        talk.results(*(RESULTS[tool] for tool, _ in held.answers[-1].calls))
    talk.say(QUESTION)
    held.answers.append(talk.ask(required=False))
    return held


@pytest.fixture(scope="module")
def held() -> Iterator[dict[str, Held]]:
    """The conversation through each client, one after the other."""
    with serving(needs(QWEN_CODER), "--ctx-size", "2048", within=1800) as server:
        model = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"]
        found = {}
        for name, kind in TALKS.items():
            with closing(kind(server.url, model, FUNCTIONS)) as talk:
                found[name] = hold(talk)
        yield found


@pytest.mark.parametrize("name", TALKS)
def test_every_turn_is_the_call_that_is_needed(held: dict[str, Held], name: str) -> None:
    turns = held[name].answers[:-1]
    for turn in turns:
        assert (turn.text, turn.ended, len(turn.calls)) == ("", held[name].called, 1)
        for tool, arguments in turn.calls:
            jsonschema.validate(arguments, SCHEMAS[tool])
    assert [turn.calls for turn in turns] == CALLS
    assert held[name].streamed == CALLS[0]


@pytest.mark.parametrize("name", TALKS)
def test_the_answer_tells_what_the_tools_told(held: dict[str, Held], name: str) -> None:
    answer = held[name].answers[-1]
    assert (answer.calls, answer.ended) == ((), held[name].said)
    assert [fact for fact in FACTS if fact not in answer.text] == []


def test_the_conversation_is_the_same_in_each_dialect(held: dict[str, Held]) -> None:
    """Of a prompt that was read before, all but the last token is found again: so the ids were the same too."""
    first, *others = (one.answers for one in held.values())
    for other in others:
        assert [(turn.text, turn.calls, turn.prompt) for turn in other] == [
            (turn.text, turn.calls, turn.prompt) for turn in first
        ]
        assert [turn.cached for turn in other] == [turn.prompt - 1 for turn in first]
