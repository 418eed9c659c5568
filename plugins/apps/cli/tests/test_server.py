"""`ps` and `stop`, against what a server answers in Ollama's form."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tensorsharp.cli import run as tensorsharp

if TYPE_CHECKING:
    from conftest import World

MODELS = {
    "models": [
        {"name": "smol\x1b[2J", "size": 2048, "expires_at": "2020-05-01T10:00:00Z", "digest": "x"},
        {"name": "big", "size": 5 << 30, "expires_at": "2318-01-01T00:00:00Z"},
    ]
}


@dataclass
class Server:
    """answers: path -> (status, body). asked: (method, path, key, body)."""

    port: int = 0
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None, Any]] = field(default_factory=list)


@pytest.fixture
def server(world: World) -> Iterator[Server]:
    known = Server(answers={"/api/ps": (200, json.dumps(MODELS).encode()), "/api/generate": (200, b'{"done": true}')})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known.asked.append((self.command, self.path, self.headers.get("Authorization"), json.loads(body) if body else None))
            status, answer = known.answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        known.port = http.server_port
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield known
        http.shutdown()
        thread.join()


def test_models_in_memory(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert tensorsharp(["ps", "--port", str(server.port)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "UNTIL"]
    assert lines[1].split()[:4] == ["smol\\x1b[2J", "2.0", "KiB", "2020-05-01"]
    assert lines[2].split() == ["big", "5.0", "GiB", "forever"]
    assert tensorsharp(["ps", "--port", str(server.port), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == MODELS


def test_stopping_and_the_settings_that_find_a_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORSHARP_HOST", "0.0.0.0")
    monkeypatch.setenv("TENSORSHARP_PORT", str(server.port))
    monkeypatch.setenv("TENSORSHARP_API_KEY", "secret")
    assert tensorsharp(["stop", "smol"]) == 0
    ((method, path, key, body),) = server.asked
    assert (method, path, key) == ("POST", "/api/generate", "Bearer secret")
    assert (body["model"], body["keep_alive"]) == ("smol", 0)


@pytest.mark.parametrize(
    ("status", "body", "code", "error", "hint"),
    [
        (404, b'{"error": "no such model"}', 3, "answered 404: no such model", "'tensorsharp ps' tells which models run."),
        (401, b'{"error": {"message": "a key is needed"}}', 2, "answered 401: a key is needed", "Give its key with --api-key"),
        (503, b"{}", 1, "answered 503: without a reason", None),
        (200, b"<html>", 1, "is no TensorSharp server: it sent no JSON.", None),
    ],
)
def test_refusals(
    server: Server, capsys: pytest.CaptureFixture[str], status: int, body: bytes, code: int, error: str, hint: str | None
) -> None:
    server.answers["/api/generate"] = (status, body)
    assert tensorsharp(["stop", "smol", "--port", str(server.port)]) == code
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert len(lines) == (1 if hint is None else 2)
    assert hint is None or hint in lines[1]


def test_nobody_answers(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert tensorsharp(["ps", "--port", "1"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "error: No server answers at 127.0.0.1:1: Connection refused.",
        "hint: 'tensorsharp serve' starts one; --host and --port say where it is.",
    ]


def test_an_answer_that_lists_nothing(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/api/ps"] = (200, b"[]")
    assert tensorsharp(["ps", "--port", str(server.port)]) == 1
    assert capsys.readouterr().err == "error: The server's answer holds no list of models.\n"
