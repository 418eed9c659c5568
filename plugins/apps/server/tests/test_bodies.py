"""Bodies that no client of good will sends."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness import Served

PATH = "/v1/chat/completions"
GOOD: dict[str, Any] = {"model": "staged", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
DEEP = 5000
"""Levels of nesting that Python's reader of JSON refuses."""


def refused(server: Served, content: bytes, **headers: str) -> tuple[int, str, str | None, str]:
    answer = server.http.post(PATH, content=content, headers=headers)
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"], error["message"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"model": "\xed\xa0\x80"}', "can't decode byte 0xed"),  # half of a surrogate pair
        ('{"model": "\\ud800"}'.encode("utf-16"), "surrogates not allowed"),
        (b'{"n": ' + b"9" * 5000 + b"}", "a number has more than 4,300 digits"),
        (b'{"n": NaN}', "NaN is no number of JSON"),
        (b'{"n": ' + b"[" * DEEP + b"]" * DEEP + b"}", "it is nested too deeply"),
    ],
)
def test_what_is_no_json(server: Served, content: bytes, told: str) -> None:
    status, code, _, message = refused(server, content)
    assert (status, code) == (400, "invalid_json")
    assert message.startswith("The body is no valid JSON: ")
    assert told in message


def test_an_empty_body(server: Served) -> None:
    told = refused(server, b" \n")
    assert told == (400, "invalid_json", None, "The body is empty; expected an object of JSON.")


def test_of_a_field_that_comes_twice_the_last_counts(server: Served) -> None:
    content = json.dumps(GOOD).replace('"max_tokens": 1', '"max_tokens": 1, "max_tokens": 2')
    answer = server.http.post(PATH, content=content, headers={"content-type": "application/x-www-form-urlencoded"})  # as curl -d
    assert answer.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32-le"])
def test_unicode_is_read_however_it_is_written(server: Served, encoding: str) -> None:
    assert server.http.post(PATH, content=json.dumps(GOOD).encode(encoding)).status_code == 200


def test_a_compressed_body(server: Served) -> None:
    told = refused(server, gzip.compress(json.dumps(GOOD).encode()), **{"content-encoding": "gzip"})
    assert told[:2] == (415, "unsupported_encoding")
    whole = server.http.post(PATH, content=json.dumps(GOOD), headers={"content-encoding": "identity"})
    assert whole.status_code == 200


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("logit_bias", {"9" * 5000: 1}, "expected token ids"),
        ("json_schema", '{"items":' * DEEP + "{}" + "}" * DEEP, "nested too deeply"),
        ("json_schema", '{"const": "\\ud800"}', "surrogates not allowed"),
        ("json_schema", '{"const": ' + "9" * 5000 + "}", "more than 4,300 digits"),
        ("chat_template_kwargs", {"messages": []}, "has 'messages'"),
        ("temperature", int("9" * 4000), "expected"),
        ("model", "m" * 100_000, "There is no model"),
    ],
)
def test_the_field_is_named_and_the_sentence_short(server: Served, field: str, value: Any, told: str) -> None:
    answer = server.http.post(PATH, json=GOOD | {field: value})
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["param"] == field
    assert told in error["message"]
    assert len(error["message"]) < 300


def test_variables_of_any_name_reach_the_template(server: Served) -> None:
    assert server.post(PATH, **GOOD, chat_template_kwargs={"self": 1, "a b": 2, "": 3})["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("path", [PATH, "/tokenize", "/apply-template", "/api/chat"])
def test_fields_have_the_names_that_the_client_wrote(server: Served, path: str) -> None:
    """Also those that the core calls otherwise and alone can refuse."""
    body = {name: GOOD[name] for name in ("model", "messages")}
    error = server.http.post(path, json=body | {"chat_template_kwargs": {"messages": []}}).json()["error"]
    message = error if path == "/api/chat" else error["message"]
    assert message == "chat_template_kwargs has 'messages', which the conversation itself is; expected other variables."
    if path != "/api/chat":  # whose errors are a text alone
        assert error["param"] == "chat_template_kwargs"
        assert server.http.post(path, json=body | {"think": "high"}).json()["error"]["param"] == "think"
