"""Keys, foreign pages, limits."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from harness import until
from stage import PATIENCE_S

from tensorsharp.errors import ConfigError
from tensorsharp_app_server.security import read_keys

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

PATH = "/v1/completions"
BODY = {"model": "staged", "prompt": "geheim", "max_tokens": 1}


def test_a_key_is_asked_for(serve: Serve) -> None:
    server = serve(api_keys=("one", "two"))
    assert server.http.get("/health").status_code == 200
    for headers in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}, {"x-api-key": ""}):
        answer = server.http.post(PATH, json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/v1/models", "/metrics", "/stats", "/nowhere"):
        assert server.http.get(path).status_code == 401
    for headers in ({"authorization": "Bearer one"}, {"authorization": "bearer two"}, {"x-api-key": "two"}):
        assert server.http.post(PATH, json=BODY, headers=headers).status_code == 200


def test_a_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\none\n\n two \n", encoding="utf-8")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="by others"):
        read_keys(file)
    file.chmod(0o600)
    assert read_keys(file) == ["one", "two"]
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no key"):
        read_keys(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")


def test_foreign_pages_are_kept_out(server: Served) -> None:
    foreign = server.http.post(PATH, json=BODY, headers={"origin": "https://example.org"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "unknown_origin")
    broken = server.http.post(PATH, json=BODY, headers={"origin": "http://[::1"})
    assert (broken.status_code, broken.json()["error"]["code"]) == (403, "unknown_origin")
    rebound = server.http.get("/v1/models", headers={"host": "example.org:8080"})
    assert (rebound.status_code, rebound.json()["error"]["code"]) == (403, "unknown_host")
    for host in ("localhost:1", "127.0.0.1", "[::1]:80", "a.localhost"):
        assert server.http.get("/v1/models", headers={"host": host}).status_code == 200
    assert server.http.get("/v1/models", headers={"origin": server.url}).status_code == 200
    assert "access-control-allow-origin" not in server.http.get("/v1/models").headers


def test_pages_that_are_allowed(serve: Serve) -> None:
    server = serve(origins=("https://example.org",))
    answer = server.http.get("/v1/models", headers={"origin": "https://example.org"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://example.org")
    asked = {"origin": "https://example.org", "access-control-request-method": "POST"}
    assert server.http.options(PATH, headers=asked).status_code == 200
    assert server.http.get("/v1/models", headers={"origin": "https://example.com"}).status_code == 403


def test_a_large_body_is_refused(serve: Serve) -> None:
    server = serve(max_body=1000)
    declared = server.http.post(PATH, content=b"x" * 1001)
    chunked = server.http.post(PATH, content=(b"x" * 100 for _ in range(50)))
    assert [(a.status_code, a.json()["error"]["code"]) for a in (declared, chunked)] == [(413, "body_too_large")] * 2


def test_a_request_that_takes_too_long_ends(serve: Serve) -> None:
    def held() -> int:
        return int(server.llm.stats().running + server.llm.stats().waiting)

    server = serve(timeout_s=30)
    server.post(PATH, **BODY)
    server.director.pace.clear()
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(server.http.post(PATH, json=BODY)))
    thread.start()
    assert until(lambda: held() == 1)
    server.pass_time(31)
    thread.join(PATIENCE_S)
    assert [(a.status_code, a.json()["error"]["code"]) for a in answers] == [(503, "timeout")]
    with server.http.stream("POST", PATH, json=BODY | {"stream": True}) as streamed:
        assert until(lambda: held() == 2)
        server.pass_time(31)
        assert '"code":"timeout"' in streamed.read().decode()
    server.director.pace.set()
    assert until(lambda: held() == 0)
    assert server.llm.stats().requests["cancelled"] == 2


def test_a_silent_stream_says_that_it_is_alive(serve: Serve) -> None:
    server = serve(ping_s=0.1)
    server.post(PATH, **BODY)
    server.director.pace.clear()
    with server.http.stream("POST", PATH, json=BODY | {"stream": True}) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert [next(lines), next(lines)] == [": alive"] * 2
        server.director.pace.set()
        assert list(lines)[-1] == "data: [DONE]"


def test_a_request_keeps_its_id(server: Served) -> None:
    answer = server.http.post(PATH, json=BODY, headers={"x-request-id": "mine-1"})
    assert (answer.headers["x-request-id"], answer.json()["id"]) == ("mine-1", "cmpl-mine-1")
    assert len(server.http.get("/v1/models").headers["x-request-id"]) == 32
    assert len(server.http.get("/nowhere", headers={"x-request-id": "a b"}).headers["x-request-id"]) == 32


def answered(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "tensorsharp.server" and record.msg == "answered"]


def test_the_log_has_a_line_a_request_and_no_secret(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(api_keys=("schluessel",))
    headers = {"authorization": "Bearer schluessel", "x-request-id": "mine-2"}
    with caplog.at_level(logging.DEBUG, logger="tensorsharp"):
        server.http.post(PATH, json=BODY, headers=headers)
        server.http.post(PATH, json=BODY | {"temperature": "geheim"}, headers=headers)
        assert until(lambda: len(answered(caplog)) == 2)  # a line is written once its answer is gone
    lines = answered(caplog)
    assert [(line.id, line.status) for line in lines] == [("mine-2", 200), ("mine-2", 400)]  # type: ignore[attr-defined]
    (ended,) = [record for record in caplog.records if record.msg == "request ended"]
    assert (ended.id, ended.tokens_out) == ("mine-2", 1)  # type: ignore[attr-defined]
    everything = "\n".join(str(vars(record)) for record in caplog.records if record.name.startswith("tensorsharp"))
    assert "geheim" not in everything
    assert "schluessel" not in everything


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "unknown_path"),
        ("POST", f"{PATH}/", 404, "unknown_path"),  # of which no body is read, so that it cannot be wrong
        ("GET", PATH, 405, "wrong_method"),
        ("DELETE", "/v1/models", 405, "wrong_method"),
    ],
)
def test_wrong_addresses(server: Served, method: str, path: str, status: int, code: str) -> None:
    answer = server.http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_no_address_is_told_in_the_words_of_those_who_ask(server: Served) -> None:
    paths = ("/v1/chat/completions/", "/api/chat/", "/v1/messages/batches")
    answers = [server.http.post(path, content=b"{}") for path in paths]
    assert [answer.status_code for answer in answers] == [404, 404, 404]
    chat, generate, batches = (answer.json() for answer in answers)
    assert chat["error"]["message"] == "There is nothing at this address. Did you mean '/v1/chat/completions'?"
    assert generate == {"error": "There is nothing at this address. Did you mean '/api/chat'?"}
    assert (batches["type"], batches["error"]["type"]) == ("error", "not_found_error")


def test_every_address_tells_its_methods(server: Served) -> None:
    """RFC 9110, 15.5.6; and a HEAD is answered as the GET would be, without the body (9.3.2)."""
    paths = [re.sub(r"{(\w+)(:\w+)?}", "staged", one.path) for one in server.routes]
    assert len(paths) > 40
    for path in paths:
        refused = server.http.options(path)
        assert refused.status_code == 405
        allowed = refused.headers["allow"].split(", ")
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            answer = server.http.request(method, path)
            assert (answer.status_code == 405, answer.headers.get("allow")) == (
                (False, None) if method in allowed else (True, refused.headers["allow"])
            )
        if "GET" in allowed:
            got, head = server.http.get(path), server.http.head(path)
            assert (head.status_code, head.headers["content-type"]) == (got.status_code, got.headers["content-type"])
            assert (head.content, int(head.headers["content-length"]) > 0) == (b"", True)
