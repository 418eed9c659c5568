"""What the server tells about itself, and about texts and tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from stage import Backend

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Serve
    from harness import Served

ASKED = [{"role": "user", "content": "Hallo?"}]


def samples(server: Served) -> dict[tuple[str, str], float]:
    """(name, labels but for the model) -> value."""
    found = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key != "model")
            found[sample.name, labels] = sample.value
    return found


def test_metrics_count_what_was_done(serve: Serve) -> None:
    server = serve()
    assert samples(server) == {("tensorsharp_models_loaded", ""): 0}
    data = server.post("/v1/chat/completions", model="staged", messages=ASKED, max_tokens=5, n=2)
    found = samples(server)
    assert found["tensorsharp_models_loaded", ""] == 1
    assert found["tensorsharp_prompt_tokens_total", ""] == 2 * data["usage"]["prompt_tokens"]
    assert found["tensorsharp_generation_tokens_total", ""] == 10
    assert found["tensorsharp_request_success_total", "finished_reason=length"] == 2
    assert found["tensorsharp_time_to_first_token_seconds_count", ""] == 2
    assert found["tensorsharp_time_to_first_token_seconds_bucket", "le=+Inf"] == 2
    assert found["tensorsharp_num_requests_running", ""] == 0
    assert server.http.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    assert samples(serve()) == {("tensorsharp_models_loaded", ""): 0}


def test_stats_and_props(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = serve()
    server.post("/v1/completions", model="staged", prompt="x", max_tokens=3)
    (model,) = server.http.get("/stats").json()["models"]
    assert (model["name"], model["parallel"], model["context"], model["bitwise"]) == ("staged", 4, 512, True)
    assert model["engine"]["tokens_generated"] == 3
    assert (list(model["engine"]["blocks"]), list(model["engine"]["cached"])) == (["all"], ["all"])
    monkeypatch.setattr(Backend, "describe", lambda self: {"path": str(tmp_path), "kernels": "avx2, version 1"})
    props = server.http.get("/props", params={"model": "staged"}).json()
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (4, 512)
    assert (props["model_path"], props["eos_token"]) == ("staged.gguf", "<|im_end|>")
    assert props["runtime"]["facts"] == {"kernels": "avx2, version 1"}, "folders of the machine are for its owner alone"
    assert props["chat_template"].startswith("{% for m in messages %}")
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8


def test_groups_of_blocks_have_names(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server.post("/v1/completions", model="staged", prompt="x", max_tokens=1)
    stats = replace(server.llm.stats(), blocks={None: (1, 8), 64: (2, 4)}, cached={None: 3, 64: 0})
    monkeypatch.setattr(server.llm, "stats", lambda: stats)
    (engine,) = [one["engine"] for one in server.http.get("/stats").json()["models"]]
    assert (engine["blocks"], engine["cached"]) == ({"all": [1, 8], "64": [2, 4]}, {"all": 3, "64": 0})


@pytest.mark.parametrize("text", ["", "the rain", "Grüße 🎉", "a<|im_end|>b"])
def test_text_to_tokens_and_back(server: Served, text: str) -> None:
    data = server.post("/tokenize", model="staged", content=text)
    assert data["tokens"] == server.llm.tokenize(text)
    assert (data["count"], data["max_model_len"]) == (len(data["tokens"]), 512)
    assert server.post("/detokenize", model="staged", tokens=data["tokens"])["content"] == text
    plain = server.post("/tokenize", model="staged", prompt=text, parse_special=False)
    assert plain["tokens"] == server.llm.tokenize(text, special=False)


def test_tokens_with_their_pieces(server: Served) -> None:
    data = server.post("/tokenize", model="staged", content="hi", with_pieces=True)
    assert [one["piece"] for one in data["tokens"]] == ["h", "i"]


def test_a_conversation_as_text(server: Served) -> None:
    assert server.post("/apply-template", model="staged", messages=ASKED)["prompt"] == "[user]Hallo?[assistant]"
    counted = server.post("/tokenize", model="staged", messages=ASKED)
    assert counted["tokens"] == server.llm.tokenize("[user]Hallo?[assistant]")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 1}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/apply-template", {}, "messages"),
    ],
)
def test_a_field_that_is_wrong_is_named(server: Served, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.http.post(path, json={"model": "staged", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_model_without_a_template_says_so(serve: Serve) -> None:
    answer = serve().http.post("/v1/chat/completions", json={"model": "second", "messages": ASKED})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported")
