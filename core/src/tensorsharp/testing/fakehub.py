"""A hub on this machine that speaks as much of the Hugging Face hub's HTTP as a download needs, and can misbehave.

For tests only: files live in memory, and every request is recorded.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = (".gguf",)
"""Endings of the files that are kept in large-file storage, with SHA-256."""

_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<commit>[^/]+)/(?P<file>.+)")


@dataclass
class FakeHub:
    """What the hub has and how it behaves; everything may be changed between requests.

    repos: repository -> file name -> content. private: repository -> the token that it wants. gated: repositories with
    terms. broken: answers 500. drop_after: the next transfer ends after so many bytes. corrupt: bytes are sent changed.
    ignore_range: whole files are sent. requests: (method, path, Range header).
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: bool = False
    drop_after: int | None = None
    corrupt: bool = False
    ignore_range: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def commit(self, repo: str) -> str:
        """Changes with every change of a file."""
        content = b"".join(name.encode() + hashlib.sha256(data).digest() for name, data in sorted(self.repos[repo].items()))
        return hashlib.sha1(content, usedforsecurity=False).hexdigest()

    def transfers(self) -> list[tuple[str, str | None]]:
        """(file name, Range header) of each request for content."""
        found = [(_RESOLVE.fullmatch(path), wanted) for method, path, wanted in self.requests if method == "GET"]
        return [(match["file"], wanted) for match, wanted in found if match]


@contextmanager
def fake_hub(repos: Mapping[str, Mapping[str, bytes]]) -> Iterator[FakeHub]:
    """Serve these files on 127.0.0.1 until the end of the block."""
    hub = FakeHub({name: dict(files) for name, files in repos.items()})

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        if self.hub.broken:
            self._answer(500, {}, b"")
        elif path.startswith("/api/models/"):
            self._model(path.removeprefix("/api/models/"))
        elif match := _RESOLVE.fullmatch(path):
            self._file(match["repo"], match["commit"], match["file"])
        else:
            self._answer(404, {}, b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _may(self, repo: str) -> bool:
        """Whether the repository is shown to who asks; else the answer that the hub gives."""
        token = self.hub.private.get(repo)
        if repo not in self.hub.repos or (token is not None and self.headers.get("Authorization") != f"Bearer {token}"):
            self._answer(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"")
            return False
        return True

    def _model(self, repo: str) -> None:
        if not self._may(repo):
            return
        files = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest(),
            }
            | ({"lfs": {"sha256": _sha256(data), "size": len(data), "pointerSize": 130}} if name.endswith(LARGE) else {})
            for name, data in self.hub.repos[repo].items()
        ]
        data = {"id": repo, "sha": self.hub.commit(repo), "siblings": files, "tags": [], "private": False, "downloads": 0}
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(data).encode())

    def _file(self, repo: str, commit: str, name: str) -> None:
        if not self._may(repo):
            return
        if repo in self.hub.gated:
            self._answer(403, {"X-Error-Code": "GatedRepo"}, b"")
            return
        data = self.hub.repos[repo].get(name)
        if data is None or commit not in (self.hub.commit(repo), "main"):
            self._answer(404, {"X-Error-Code": "EntryNotFound"}, b"")
            return
        headers = {"X-Repo-Commit": self.hub.commit(repo), "ETag": f'"{_sha256(data)}"', "Accept-Ranges": "bytes"}
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        first = int(start[1]) if start and not self.hub.ignore_range else 0
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        body = data[first:]
        self._answer(206 if first else 200, headers, body[::-1] if self.hub.corrupt else body)

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        end = None
        if "ETag" in headers:
            end, self.hub.drop_after = self.hub.drop_after, None
        with suppress(ConnectionError):  # who asked may have left
            self.wfile.write(body[:end])
        if end is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Requests are recorded, not printed."""


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
