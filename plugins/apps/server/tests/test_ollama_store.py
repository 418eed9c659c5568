"""/api/pull and /api/delete through Ollama's own client, with a hub on this machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import ollama
import pytest
from stage import PATIENCE_S

from tensorsharp.testing.fakehub import FakeHub, fake_hub

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

CHUNK = 1000
REPO = "user/Tiny-GGUF"
NAME = f"{REPO}:Q4_K_M"


@pytest.fixture
def remote(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", CHUNK)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    content = (models / "staged.gguf").read_bytes()
    with fake_hub({REPO: {"tiny-Q4_K_M.gguf": content, "tiny-Q8_0.gguf": content + b"\0" * 32}}) as hub:
        yield hub


@pytest.fixture
def server(serve: Serve, remote: FakeHub, tmp_path: Path) -> Served:
    from tensorsharp.weights.aliases import Aliases
    from tensorsharp.weights.hub import Hub
    from tensorsharp_app_server.catalog import HubModels

    aliases = Aliases(tmp_path / "aliases.json")
    aliases.set("tiny", NAME)
    return serve(HubModels(Hub(cache=tmp_path / "hub", endpoint=remote.url), aliases))


def test_a_model_is_pulled_used_and_deleted(server: Served, models: Path) -> None:
    told = list(server.ollama.pull(NAME, stream=True))
    assert (told[0].status, told[-1].status) == ("pulling manifest", "success")
    size = (models / "staged.gguf").stat().st_size
    between = told[1:-1]
    assert all((one.digest, one.total) == ("tiny-Q4_K_M.gguf", size) for one in between)
    counts = [one.completed or 0 for one in between]
    assert counts == sorted(counts)
    assert counts[-1] == size
    (listed,) = server.ollama.list().models
    assert (listed.model, len(listed.digest or "")) == (NAME, 64)
    assert server.ollama.generate("tiny", "x", options={"num_predict": 3}).eval_count == 3
    assert server.ollama.delete(NAME).status == "success"
    assert server.ollama.list().models == []
    with pytest.raises(ollama.ResponseError):
        server.ollama.generate(NAME, "x")


def test_without_a_stream_the_end_is_told(server: Served) -> None:
    assert server.ollama.pull("tiny").status == "success"
    assert server.post("/api/pull", name=NAME, stream=False) == {"status": "success"}


def test_a_repository_of_several_models_is_not_deleted_by_its_name(server: Served) -> None:
    server.ollama.pull(NAME)
    server.ollama.pull(f"{REPO}:Q8_0")
    with pytest.raises(ollama.ResponseError, match="2 models") as refused:
        server.ollama.delete(REPO)
    assert refused.value.status_code == 400
    server.ollama.delete(f"{REPO}:Q8_0")
    assert [one.model for one in server.ollama.list().models] == [NAME]


@pytest.mark.parametrize(("name", "status"), [("nowhere", 404), ("user/none", 404), (f"{REPO}:Q2_K", 404)])
def test_what_cannot_be_pulled_is_told(server: Served, name: str, status: int) -> None:
    with pytest.raises(ollama.ResponseError) as refused:
        server.ollama.pull(name)
    assert refused.value.status_code == status
    with pytest.raises(ollama.ResponseError):
        list(server.ollama.pull(name, stream=True))


def test_a_hub_that_fails(server: Served, remote: FakeHub) -> None:
    remote.broken = True
    answer = server.http.post("/api/pull", json={"model": NAME, "stream": False})
    assert (answer.status_code, remote.url in answer.json()["error"]) == (503, True)


def test_a_full_disk_is_told_without_the_folder(server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorsharp.weights.hub.shutil.disk_usage", lambda folder: Mock(free=10))
    answer = server.http.post("/api/pull", json={"model": NAME, "stream": False})
    assert (answer.status_code, "10 are free in the server's cache." in answer.json()["error"]) == (503, True)
    assert str(tmp_path) not in answer.text


def test_a_client_that_leaves_ends_the_download_which_is_resumed(
    server: Served, remote: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorsharp.weights.hub import Hub

    begun, pause = threading.Event(), threading.Event()
    fetch = Hub._download

    def slow(self: Hub, repo: str, commit: str, file: Any, blob: Path, tell: Any) -> None:
        def wait(name: str, done: int, total: int) -> None:
            tell(name, done, total)
            if done > CHUNK and not begun.is_set():  # the first chunk is written by then
                begun.set()
                for _ in range(100 * round(PATIENCE_S)):  # until it is noticed that the client has left: that ends the download
                    pause.wait(0.01)
                    tell(name, done, total)

        fetch(self, repo, commit, file, blob, wait)

    monkeypatch.setattr(Hub, "_download", slow)
    stream = server.ollama.pull(NAME, stream=True)
    next(iter(stream))
    assert begun.wait(PATIENCE_S)
    stream.close()  # type: ignore[attr-defined]
    assert server.ollama.pull(NAME).status == "success"
    ranges = [wanted for _, wanted in remote.transfers()]
    assert ranges[0] in (None, "bytes=0-")
    assert ranges[1] not in (None, "bytes=0-"), "it goes on where it ended"


def test_a_folder_deletes_and_pulls_nothing(serve: Serve, tmp_path: Path) -> None:
    from stage import write_model

    from tensorsharp.weights.folder import ModelsFolder

    path = write_model(tmp_path / "one.gguf")
    server = serve(ModelsFolder(tmp_path))
    server.ollama.generate("one", "x", options={"num_predict": 1})
    with pytest.raises(ollama.ResponseError, match="no others"):
        server.ollama.pull("user/repo")
    for name in (f"..{os.sep}one", str(path), "two"):
        with pytest.raises(ollama.ResponseError) as missing:
            server.ollama.delete(name)
        assert missing.value.status_code == 404
    server.ollama.delete("one:latest")
    assert not path.exists()


def test_one_model_stays(serve: Serve, models: Path) -> None:
    from tensorsharp_app_server.catalog import OneModel

    server = serve(OneModel("one", models / "staged.gguf"))
    with pytest.raises(ollama.ResponseError, match="one file") as refused:
        server.ollama.delete("one")
    assert refused.value.status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "create"), ("POST", "push"), ("POST", "copy"), ("HEAD", "blobs/sha256:1"), ("POST", "blobs/sha256:1")],
)
def test_what_only_ollama_does(server: Served, method: str, path: str) -> None:
    answer = server.http.request(method, f"/api/{path}", content=b"GGUF")
    assert answer.status_code == 501
    assert method == "HEAD" or answer.json()["error"].endswith(".")


def test_a_name_is_needed(server: Served) -> None:
    for method, path in (("POST", "pull"), ("DELETE", "delete")):
        answer = server.http.request(method, f"/api/{path}", json={})
        assert (answer.status_code, answer.json()["error"][:16]) == (400, "model is missing")
