"""Clients that leave, at every moment: what they asked for ends within a step, and all memory is given back."""

from __future__ import annotations

import json
import logging
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from harness import until
from stage import PATIENCE_S

from tensorsharp_app_server.endpoint import CLIENT_LEFT

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

ASKED = [{"role": "user", "content": "x" * 100}]
WRITTEN = b'"delta":{"content":'
"""Begins an event with text of the reply."""


class Client:
    """A connection of its own, on which one request was sent."""

    def __init__(self, server: Served, path: str = "/v1/chat/completions", **body: Any) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self.id = uuid.uuid4().hex
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        content = json.dumps({"model": "staged", "messages": ASKED, **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nX-Request-Id: {self.id}\r\nContent-Length: {len(content)}\r\n\r\n"
        self.socket.sendall(head.encode() + content)

    def read_until(self, text: bytes) -> bytes:
        found = b""
        while text not in found:
            part = self.socket.recv(4096)
            assert part, found
            found += part
        return found


class Departures(logging.Handler):
    """Hears from the server's log which clients have left."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: set[str] = set()
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "status", None) == CLIENT_LEFT:
            with self._changed:
                self._ids.add(vars(record)["id"])
                self._changed.notify()

    def wait(self, client: Client) -> None:
        """Until the server has noticed that this one left, and told the engine."""
        with self._changed:
            assert self._changed.wait_for(lambda: client.id in self._ids, timeout=PATIENCE_S)


@pytest.fixture
def departures(caplog: pytest.LogCaptureFixture) -> Iterator[Departures]:
    caplog.set_level(logging.INFO, "tensorsharp.server")
    heard = Departures()
    logging.getLogger("tensorsharp.server").addHandler(heard)
    yield heard
    logging.getLogger("tensorsharp.server").removeHandler(heard)


def leave(client: Client) -> None:
    client.socket.close()


def close_half(client: Client) -> None:
    client.socket.shutdown(socket.SHUT_WR)


def reset(client: Client) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.socket.close()


def settled(server: Served) -> bool:
    """Whether soon nothing runs or waits any more, and no block is used."""

    def free() -> bool:
        stats = server.llm.stats()
        return stats.running == stats.waiting == 0 and all(used == 0 for used, _ in stats.blocks.values())

    return until(free)


def load(server: Served) -> None:
    server.post("/v1/completions", model="staged", prompt="x", max_tokens=1)


@pytest.mark.parametrize("go", [leave, close_half, reset])
@pytest.mark.parametrize("stream", [True, False])
def test_before_the_first_token(server: Served, departures: Departures, go: Callable[[Client], None], *, stream: bool) -> None:
    load(server)
    server.director.pace.clear()
    begun = server.director.steps
    client = Client(server, stream=stream)
    assert server.director.wait_steps(begun + 1)
    go(client)
    departures.wait(client)
    server.director.pace.set()
    assert settled(server)
    assert server.director.steps <= begun + 2
    client.socket.close()


@pytest.mark.parametrize("go", [leave, close_half, reset])
@pytest.mark.parametrize("n", [1, 3])
def test_in_the_middle_of_a_stream(server: Served, departures: Departures, go: Callable[[Client], None], n: int) -> None:
    load(server)
    cancelled = server.llm.stats().requests.get("cancelled", 0)
    server.director.holds = 40  # more than the first text takes, and far from the end
    client = Client(server, stream=True, n=n)
    client.read_until(WRITTEN)
    go(client)
    departures.wait(client)
    server.director.reset()
    assert settled(server)
    assert server.llm.stats().requests["cancelled"] == cancelled + n
    client.socket.close()


@pytest.mark.parametrize("go", [leave, close_half])
def test_in_the_middle_of_a_whole_answer(server: Served, go: Callable[[Client], None]) -> None:
    load(server)
    begun = server.director.steps
    client = Client(server)
    assert server.director.wait_steps(begun + 3)
    go(client)
    assert settled(server)
    client.socket.close()


def test_while_others_run(serve: Serve, departures: Departures) -> None:
    server = serve(loading={"parallel": 1})
    load(server)
    server.director.pace.clear()
    begun = server.director.steps
    first = Client(server, stream=True, max_tokens=3)
    assert server.director.wait_steps(begun + 1)
    second = Client(server, stream=True)
    assert until(lambda: server.llm.stats().waiting > 0)
    leave(second)
    departures.wait(second)
    server.director.pace.set()
    assert b"[DONE]" in first.read_until(b"[DONE]")
    assert settled(server)
    assert server.llm.stats().requests["cancelled"] == 1
    first.socket.close()


def test_while_the_model_is_loaded(serve: Serve, departures: Departures) -> None:
    server = serve()
    server.director.load_gate.clear()
    client = Client(server)
    assert until(lambda: server.director.loads > 0)
    leave(client)
    departures.wait(client)
    server.director.load_gate.set()
    load(server)
    assert server.director.loads == 1
    assert server.llm.stats().requests == {"length": 1}


def test_what_was_computed_can_be_used_again(server: Served) -> None:
    load(server)
    client = Client(server, stream=True, messages=[{"role": "user", "content": "z" * 200}])
    client.read_until(WRITTEN)
    leave(client)
    assert settled(server)
    again = server.post("/v1/chat/completions", model="staged", messages=[{"role": "user", "content": "z" * 200}], max_tokens=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192  # whole blocks of 32


def test_before_the_body_is_whole(server: Served) -> None:
    client = Client(server)
    client.socket.close()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    load(server)
    assert settled(server)


def test_many_come_and_go(server: Served) -> None:
    load(server)
    alone = server.post("/v1/chat/completions", model="staged", messages=ASKED, seed=9, max_tokens=40)["choices"][0]["message"]
    texts: list[str] = []

    def one(number: int) -> None:
        client = Client(server, stream=True, seed=9, max_tokens=40)
        found = client.read_until(b"data: [DONE]" if number % 2 else WRITTEN)
        client.socket.close()
        if number % 2:
            parts = [json.loads(line[6:]) for line in found.decode().split("\n") if line.startswith("data: {")]
            texts.append("".join(part["choices"][0]["delta"].get("content", "") for part in parts))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert texts == [alone["content"]] * 6
    assert settled(server)
