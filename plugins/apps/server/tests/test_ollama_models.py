"""/api/tags, /api/show, /api/ps and /api/version, through Ollama's own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ollama
import pytest

from tensorsharp import __version__

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served


@pytest.fixture
def client(server: Served) -> ollama.Client:
    return server.ollama


def test_tags(client: ollama.Client, models: Any) -> None:
    found = client.list().models
    assert [one.model for one in found] == ["second", "staged"]
    for one in found:
        assert one.size == (models / f"{one.model}.gguf").stat().st_size
        assert len(one.digest or "") == 64
        assert one.modified_at is not None
        assert one.modified_at.timestamp() == pytest.approx((models / f"{one.model}.gguf").stat().st_mtime, abs=1e-3)
        assert one.details is not None
        assert (one.details.format, one.details.family, one.details.parameter_size) == ("gguf", "staged", "4")
        assert one.details.quantization_level == "F32"
    assert found[0].digest != found[1].digest


def test_show(client: ollama.Client, server: Served) -> None:
    shown = client.show("staged:latest")
    assert shown.capabilities == ["completion", "tools"]
    assert shown.template == server.llm.template.source
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "staged"
    assert shown.modelinfo["general.parameter_count"] == 4
    assert shown.modelinfo["tokenizer.ggml.tokens"] is None
    verbose = server.post("/api/show", name="staged", verbose=True)["model_info"]
    assert len(verbose["tokenizer.ggml.tokens"]) == 300
    assert client.show("second").capabilities == ["completion"]


@pytest.mark.parametrize(
    ("keys", "template", "capabilities"),
    [
        ({f"tokenizer.ggml.fim_{role}_token_id": 290 for role in ("pre", "suf", "mid")}, None, ["completion", "insert"]),
        ({}, "<think></think>", ["completion", "tools", "thinking"]),
        ({}, "<|channel|>", ["completion", "tools", "thinking"]),
        ({"staged.pooling_type": 3}, "x", ["embedding"]),
        ({"staged.pooling_type": 0}, None, ["completion"]),
    ],
)
def test_capabilities(serve: Serve, tmp_path: Any, keys: dict[str, Any], template: str | None, capabilities: list[str]) -> None:
    from stage import write_model

    from tensorsharp.weights.folder import ModelsFolder

    write_model(tmp_path / "one.gguf", template=template, **keys)
    assert serve(ModelsFolder(tmp_path)).ollama.show("one").capabilities == capabilities


def test_a_file_that_cannot_be_read(serve: Serve, tmp_path: Any) -> None:
    from tensorsharp.weights.folder import ModelsFolder

    (tmp_path / "broken.gguf").write_bytes(b"GGUF, but not really")
    server = serve(ModelsFolder(tmp_path))
    client = server.ollama
    (listed,) = client.list().models
    assert (listed.model, listed.digest) == ("broken", "")
    with pytest.raises(ollama.ResponseError, match=r"broken\.gguf") as refused:
        client.show("broken")
    assert refused.value.status_code == 503


def test_a_file_that_changed_is_read_again(serve: Serve, tmp_path: Any) -> None:
    from stage import write_model

    from tensorsharp.weights.folder import ModelsFolder

    write_model(tmp_path / "one.gguf", template=None)
    client = serve(ModelsFolder(tmp_path)).ollama
    before = client.show("one")
    write_model(tmp_path / "one.gguf", template="longer")
    assert (before.template, client.show("one").template) == ("", "longer")


def test_models_in_memory(client: ollama.Client) -> None:
    client.generate("staged", "x", options={"num_predict": 1})
    (one,) = client.ps().models
    assert (one.name, one.context_length, one.expires_at is not None) == ("staged", 512, True)
    assert one.digest == next(other.digest for other in client.list().models if other.model == "staged")


def test_version(server: Served) -> None:
    found = server.http.get("/api/version").json()
    assert found["tensorsharp"] == __version__
    assert [int(part) for part in found["version"].split(".")] >= [0, 6, 4], "what VS Code asks for"


def test_a_model_that_is_not_there(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        client.show("llama9")
    assert missing.value.status_code == 404
