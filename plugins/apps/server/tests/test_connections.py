"""What comes over a connection before, or in place of, a request that the application sees."""

from __future__ import annotations

import json
import logging
import socket
from typing import TYPE_CHECKING, Any

import pytest
from harness import until
from stage import PATIENCE_S

from tensorsharp_app_server import connection, endpoint

if TYPE_CHECKING:
    from harness import Served

BODY = json.dumps({"model": "staged", "prompt": "x", "max_tokens": 1}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(BODY)
HTTP2 = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"


class Client:
    """A connection on which anything may be sent."""

    def __init__(self, server: Served) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._read = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, Any]:
        """Status and JSON of the next answer."""
        status = int(self._read.readline().split()[1])
        length = 0
        while line := self._read.readline().strip():
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
        return status, json.loads(self._read.read(length))

    def refusal(self) -> tuple[int, str]:
        """Status and code of an error, behind which the server has closed the connection."""
        status, told = self.answer()
        assert self._read.read() == b""
        self.close()
        return status, told["error"]["code"]

    def rest(self) -> bytes:
        """All that comes until the server closes the connection."""
        found = self._read.read()
        self.close()
        return found

    def close(self) -> None:
        self._read.close()
        self.socket.close()


@pytest.mark.parametrize(
    "data",
    [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\nA B: c\r\n\r\n", HEAD + b"Content-Length: 1\r\n\r\n"],
)
def test_what_is_no_http(server: Served, caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    with caplog.at_level(logging.WARNING):
        client = Client(server)
        client.send(data)
        assert client.refusal() == (400, "invalid_http")
    assert not caplog.records, "anybody could fill the log"


@pytest.mark.parametrize("pieces", [1, 2])
def test_an_offer_of_http2_is_passed_over(server: Served, caplog: pytest.LogCaptureFixture, pieces: int) -> None:
    """As Java's client makes it; the connection can be used again."""
    with caplog.at_level(logging.WARNING):
        client = Client(server)
        for _ in range(2):
            if pieces == 1:
                client.send(HEAD + HTTP2 + b"\r\n" + BODY)
            else:
                client.send(HEAD + HTTP2 + b"\r\n" + BODY[:5])
                client.send(BODY[5:])
            status, told = client.answer()
            assert (status, told["usage"]["completion_tokens"]) == (200, 1)
        client.close()
    assert not caplog.records


def test_a_socket_of_the_web_is_answered_as_http(server: Served) -> None:
    client = Client(server)
    client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert client.answer() == (200, {"status": "ok"})
    client.close()


def test_this_is_no_proxy(server: Served) -> None:
    client = Client(server)
    client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
    head, _, told = client.rest().partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    assert status == b"HTTP/1.1 405 Method Not Allowed"
    assert b"allow: " in headers, "that nothing is allowed is told, too"
    assert json.loads(told)["error"]["code"] == "wrong_method"


def test_a_head_without_end(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_BYTES", 1000)
    client = Client(server)
    client.send(HEAD + b"X: " + b"a" * 1000)
    assert client.refusal() == (431, "head_too_large")


def test_a_body_is_no_head(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_BYTES", 200)
    server.post("/v1/completions", model="staged", prompt="x" * 300, max_tokens=1)


@pytest.mark.parametrize("data", [b"", b"GET /heal"])
def test_a_head_that_does_not_come(server: Served, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    client = Client(server)
    client.send(data)
    assert client.refusal() == (408, "head_timeout")


def test_a_head_that_does_not_come_after_a_request(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(server)
    client.send(HEAD + b"\r\n" + BODY)
    assert client.answer()[0] == 200
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    client.send(b"\r\n")
    assert client.refusal() == (408, "head_timeout")


def test_a_body_that_does_not_come(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_S", 0.05)
    client = Client(server)
    client.send(HEAD + b"\r\n" + BODY[:-1])
    status, told = client.answer()
    assert (status, told["error"]["code"]) == (408, "body_timeout")
    client.send(BODY[-1:] + HEAD + b"\r\n" + BODY)
    assert client.answer()[0] == 200, "the rest of the body is passed over, and the connection can be used again"
    client.close()


def test_a_client_that_does_not_read(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the buffers of both systems hold waits for it, though its request has ended."""
    monkeypatch.setattr(connection, "STALL_S", 0.05)
    client = Client(server)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    port = client.socket.getsockname()[1]
    body = json.dumps({"model": "staged", "messages": [{"role": "user", "content": "x" * (16 << 20)}]}).encode()
    client.send(b"POST /apply-template HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert until(lambda: all(one.client[1] != port for one in list(server.program.server_state.connections)))
    client.close()
