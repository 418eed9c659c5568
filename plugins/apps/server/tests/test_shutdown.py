"""The end of the program is an ordinary one, whatever clients do."""

from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING

import pytest
from harness import PATIENCE_S, until

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

SMALL = 4096
ASK = {
    "model": "staged",
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "logprobs": True,
    "top_logprobs": 20,
    "max_tokens": 400,
}


def silent(server: Served, path: str = "/v1/chat/completions", body: bytes = json.dumps(ASK).encode()) -> socket.socket:
    """A client that asks and reads nothing; more waits for it than the systems' buffers hold."""
    server.program.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    host, port = server.url.removeprefix("http://").split(":")
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    found.connect((host, int(port)))
    found.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
    assert until(lambda: any(one.flow.write_paused for one in server.program.server_state.connections))
    return found


def ended(server: Served) -> bool:
    """Whether the program has come to its end in time."""
    server.thread.join(PATIENCE_S)
    return not server.thread.is_alive()


def test_a_client_that_does_not_read_is_given_up(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(grace_s=0.5)
    with silent(server):
        server.program.should_exit = True
        assert ended(server)
    assert not caplog.records, "it is no failure"


def test_who_asks_twice_does_not_wait(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(grace_s=100 * PATIENCE_S)
    with silent(server):
        for _ in range(2):
            server.program._asked(signal.SIGTERM, None)
        assert ended(server), "far sooner than the time for running requests"
    assert not caplog.records


def test_an_answer_that_nobody_reads_is_given_up(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Its request has ended; the connection alone is left."""
    server = serve(grace_s=0.5)
    body = json.dumps(ASK | {"messages": [{"role": "user", "content": "x" * (4 << 20)}]}).encode()
    with silent(server, "/apply-template", body):
        server.program.should_exit = True
        assert ended(server)
    assert not caplog.records
