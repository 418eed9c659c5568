"""Replies that have to have a form."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness import Served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": "Hallo?"}]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
ZOD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1},
        "pair": {"type": "array", "items": [{"type": "null"}, {"type": "boolean"}], "additionalItems": False, "minItems": 2},
    },
    "required": ["n", "pair"],
    "additionalProperties": False,
}
"""z.object({n: z.int(), pair: z.tuple([z.null(), z.boolean()])}) as the AI SDK 6 sends it."""
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_fits_its_schema(server: Served, seed: int, *, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "staged", "messages": ASKED, "seed": seed, "temperature": 1, "response_format": FORMAT}
    if stream:
        text = "".join(c.choices[0].delta.content or "" for c in server.openai.chat.completions.create(stream=True, **asked))
    else:
        choice = server.post(CHAT, **asked)["choices"][0]
        text = choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
    value = json.loads(text)
    assert value.keys() == {"n", "ok"}
    assert 0 <= value["n"] <= 99
    assert isinstance(value["ok"], bool)


@pytest.mark.parametrize(
    ("path", "form"),
    [
        (CHAT, {"messages": ASKED, "response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": ZOD}}}),
        (
            "/v1/responses",
            {"input": "Hallo?", "text": {"format": {"type": "json_schema", "strict": True, "name": "r", "schema": ZOD}}},
        ),
        ("/api/chat", {"messages": ASKED, "format": ZOD, "think": False, "stream": False, "options": {"seed": 1}}),
    ],
    ids=["chat", "responses", "ollama"],
)
def test_a_schema_that_zod_wrote(server: Served, path: str, form: dict[str, Any]) -> None:
    data = server.post(path, model="staged", seed=1, **form)
    if path == CHAT:
        text = data["choices"][0]["message"]["content"]
    else:
        text = data["message"]["content"] if "message" in data else data["output"][0]["content"][0]["text"]
    value = json.loads(text)
    assert value.keys() == {"n", "pair"}
    assert isinstance(value["n"], int)
    assert abs(value["n"]) < 2**53
    assert value["pair"][0] is None
    assert isinstance(value["pair"][1], bool)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "a{3}b?"}, "aaab?"),
        ({"choice": ["ja", "nein"]}, "ja|nein"),
        ({"grammar": 'start: "x" "y"*\n'}, "xy*"),
        ({"structured_outputs": {"choice": ["rot"]}}, "rot"),
        ({"guided_regex": "[0-9]{2}"}, "[0-9]{2}"),
        ({"json_schema": {"const": 7}}, "7"),
        ({"response_format": {"type": "json_object", "schema": {"const": 8}}}, "8"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_other_forms(server: Served, path: str, form: dict[str, Any], pattern: str) -> None:
    prompt = {"messages": ASKED} if path == CHAT else {"prompt": "x"}
    choice = server.post(path, model="staged", seed=1, max_tokens=60, **prompt, **form)["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    if choice["finish_reason"] == "stop":
        assert re.fullmatch(pattern, text)
    else:
        assert text.startswith("xyyyy")


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": {"type": "object", "not": {}}}, "json_schema"),
        ({"regex": "("}, "regex"),
        ({"regex": 1}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": "ja"}, "choice"),
        ({"grammar": "start: nothing\n"}, "grammar"),
        ({"regex": "a", "choice": ["b"]}, "choice"),
    ],
)
def test_a_form_that_cannot_be_followed_is_named(server: Served, form: dict[str, Any], param: str) -> None:
    answer = server.http.post(CHAT, json={"model": "staged", "messages": ASKED, **form})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_keyword_that_is_not_supported_is_named(server: Served) -> None:
    answer = server.http.post(CHAT, json={"model": "staged", "messages": ASKED, "json_schema": {"type": "object", "not": {}}})
    assert "not" in answer.json()["error"]["message"]
