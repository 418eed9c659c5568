"""The files behind the pages: who gets them, what they may do, and that nothing else is handed out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

BROWSER = {"accept": "text/html,application/xhtml+xml;q=0.9"}


def test_browsers_get_the_page_and_ollamas_clients_what_they_probe_for(server: Served) -> None:
    page = server.http.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>TensorSharp</title>" in page.text
    assert server.http.get("/").text == "Ollama is running"
    probe = server.http.head("/")
    assert (probe.status_code, probe.content) == (200, b"")


def test_everything_a_page_names_is_there_and_comes_from_here(server: Served) -> None:
    waiting, seen = ["/", "/dashboard"], set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = server.http.get(path, headers=BROWSER)
        assert answer.status_code == 200, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", answer.text), path
        named = re.findall(r'(?:src|href)="(/web/[^"]+)"', answer.text)
        named += [f"/web/{name}" for name in re.findall(r'from "\./([\w.]+)"', answer.text)]
        assert not re.search(r'(?:src|href)="(?!/|#)|from "(?!\./)', answer.text), path
        waiting += [name for name in named if name not in seen]
    assert len(seen) > 10


def test_a_browser_keeps_what_has_not_changed(server: Served) -> None:
    first = server.http.get("/web/main.js")
    again = server.http.get("/web/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2fapp.py", "%2e%2e%2fapp.py", "main.js%00", "../app.py"])
def test_no_other_file_is_handed_out(server: Served, name: str) -> None:
    answer = server.http.get(f"/web/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_path"


def test_the_page_needs_no_key_but_its_requests_do(serve: Serve) -> None:
    server = serve(api_keys=("secret",))
    assert server.http.get("/", headers=BROWSER).status_code == 200
    assert server.http.get("/stats").status_code == 401


def test_stats_name_who_runs_and_who_waits(serve: Serve) -> None:
    server = serve()
    server.post("/v1/completions", model="staged", prompt="x", max_tokens=1)
    server.director.pace.clear()
    begun = server.director.steps
    names = [f"number-{i}" for i in range(server.llm.engine.parallel + 2)]
    running = [server.llm.stream_ids([1, 2, 3], id=name, max_tokens=2) for name in names]
    assert server.director.wait_steps(begun + 1)
    (model,) = server.http.get("/stats").json()["models"]
    assert [*model["running"], *model["waiting"]] == names
    assert len(model["waiting"]) >= 2
    server.director.pace.set()
    assert [generation.result().finish_reason for generation in running] == ["length"] * len(names)
    assert server.llm.engine.requests() == ([], [])
