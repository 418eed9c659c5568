"""POST /v1/embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness import Served


def test_a_model_that_is_not_made_for_it_says_so(server: Served) -> None:
    answer = server.http.post("/v1/embeddings", json={"model": "staged", "input": "x"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "model", "unsupported")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 7}, "dimensions"),
    ],
)
def test_a_field_that_is_wrong_is_named(server: Served, body: dict[str, Any], param: str) -> None:
    answer = server.http.post("/v1/embeddings", json={"model": "staged", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("path", "field"), [("embed", "input"), ("embeddings", "prompt")])
def test_ollama_s_clients_are_told_the_same(server: Served, path: str, field: str) -> None:
    answer = server.http.post(f"/api/{path}", json={"model": "staged", field: "x"})
    assert (answer.status_code, "not made for embeddings" in answer.json()["error"]) == (400, True)
    wrong = server.http.post(f"/api/{path}", json={"model": "staged", field: 3})
    assert (wrong.status_code, wrong.json()["error"].startswith(f"{field} is 3")) == (400, True)
