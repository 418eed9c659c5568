"""Models come into memory when they are asked for, and leave it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from harness import until
from stage import PATIENCE_S, write_model

from tensorsharp.errors import BackendError, ConfigError
from tensorsharp.weights.folder import ModelsFolder

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Serve
    from harness import Served
    from stage import Director

PATH = "/v1/completions"


def loaded(server: Served) -> list[str]:
    return [model["name"] for model in server.http.get("/stats").json()["models"]]


def test_the_list_of_models(serve: Serve) -> None:
    server = serve()
    assert [model.id for model in server.openai.models.list()] == ["second", "staged"]
    assert server.openai.models.retrieve("second").owned_by == "local"
    assert server.http.get("/v1/models/third").status_code == 404
    assert loaded(server) == []


@pytest.mark.parametrize("name", ["staged", "staged.gguf", "staged:latest", "STAGED"])
def test_a_name_may_be_written_in_several_ways(server: Served, name: str) -> None:
    assert server.post(PATH, model=name, prompt="x", max_tokens=1)["model"] == "staged"


@pytest.mark.parametrize("name", ["third", "", "../staged", "/etc/passwd", "staged.gguf/.", "x" * 5000])
def test_other_names_are_unknown(server: Served, name: str) -> None:
    answer = server.http.post(PATH, json={"model": name, "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_name_is_needed_where_there_are_several(server: Served) -> None:
    answer = server.http.post(PATH, json={"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


def test_several_requests_wait_for_one_load(serve: Serve) -> None:
    server = serve()
    server.director.load_gate.clear()
    found: list[Any] = []
    ask = lambda: found.append(server.post(PATH, model="staged", prompt="x", seed=1, max_tokens=4))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert until(lambda: server.director.loads == 1)
    server.director.load_gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert server.director.loads == 1
    assert len({data["choices"][0]["text"] for data in found}) == 1


def test_another_model_takes_the_place_of_one_that_nobody_uses(serve: Serve) -> None:
    server = serve()
    server.post(PATH, model="staged", prompt="x", max_tokens=1)
    assert loaded(server) == ["staged"]
    server.post(PATH, model="second", prompt="x", max_tokens=1)
    assert loaded(server) == ["second"]


def test_another_model_waits_for_one_that_is_used(serve: Serve) -> None:
    server = serve()
    server.post(PATH, model="staged", prompt="x", max_tokens=1)
    server.director.pace.clear()
    begun = server.director.steps
    answers: dict[str, Any] = {}

    def ask(name: str) -> None:
        answers[name] = server.post(PATH, model=name, prompt="x", max_tokens=2)

    threads = [threading.Thread(target=ask, args=("staged",))]
    threads[0].start()
    assert server.director.wait_steps(begun + 1)
    threads.append(threading.Thread(target=ask, args=("second",)))
    threads[1].start()
    time.sleep(0.2)
    assert loaded(server) == ["staged"]
    server.director.pace.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {name: data["model"] for name, data in answers.items()} == {"staged": "staged", "second": "second"}
    assert loaded(server) == ["second"]


def test_two_models_share_the_memory_where_there_is_room(serve: Serve) -> None:
    server = serve(room=2)
    for name in ("staged", "second", "staged"):
        server.post(PATH, model=name, prompt="x", max_tokens=1)
    assert (loaded(server), server.director.loads) == (["second", "staged"], 2)


def test_an_unused_model_leaves(serve: Serve) -> None:
    server = serve(keep_alive_s=30)
    server.post(PATH, model="staged", prompt="x", max_tokens=1)
    assert loaded(server) == ["staged"]
    server.pass_time(31)
    assert until(lambda: loaded(server) == [])
    server.post(PATH, model="staged", prompt="x", max_tokens=1)
    assert server.director.loads == 2


def test_a_model_that_may_not_stay_is_there_for_its_request(serve: Serve) -> None:
    server = serve(keep_alive_s=0)
    for loads in (1, 2):
        server.post(PATH, model="staged", prompt="x", max_tokens=1)
        assert until(lambda: loaded(server) == [])
        assert server.director.loads == loads


@pytest.mark.parametrize(("told", "stays_s"), [([0], 0), (["1h", 0], 0), ([0, "1h"], 3600)])
def test_what_was_said_last_while_a_model_is_used_holds_once_it_is_not(serve: Serve, told: list[Any], stays_s: float) -> None:
    server = serve()
    assert server.host is not None
    server.post(PATH, model="staged", prompt="x", max_tokens=1)
    server.director.pace.clear()
    begun = server.director.steps
    holder = threading.Thread(target=lambda: server.post(PATH, model="staged", prompt="x", max_tokens=2))
    holder.start()
    assert server.director.wait_steps(begun + 1)
    for keep_alive in told:
        server.post("/api/generate", model="staged", keep_alive=keep_alive)
    assert [(one.users, one.expires) for one in server.host.loaded] == [(1, None)]
    server.director.pace.set()
    holder.join(PATIENCE_S)
    if not stays_s:
        assert until(lambda: loaded(server) == [])
        server.post(PATH, model="staged", prompt="x", max_tokens=1)
        assert loaded(server) == ["staged"], "what was said ends with the model"
    else:
        assert until(lambda: server.host is not None and server.host.loaded[0].expires is not None)
        assert server.host.loaded[0].expires == pytest.approx(time.time() + stays_s, abs=60)


def test_a_load_that_fails_is_told_and_tried_again(serve: Serve) -> None:
    server = serve()
    server.director.fail_load = BackendError("no such lamp")
    answer = server.http.post(PATH, json={"model": "staged", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "load_failed")
    assert "no such lamp" in answer.json()["error"]["message"]
    server.director.fail_load = None
    server.post(PATH, model="staged", prompt="x", max_tokens=1)


def test_clients_learn_no_folders(serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model's name and the reason are told; where it lies is for the log."""
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "broken.gguf").write_bytes(b"GGUF")
    write_model(folder / "plain.gguf", template=None)
    server = serve(ModelsFolder(folder))
    messages = [{"role": "user", "content": "x"}]
    told = [
        server.http.post(PATH, json={"model": "sub/broken", "prompt": "x"}),
        server.http.post("/api/show", json={"model": "sub/broken"}),
        server.http.post("/v1/chat/completions", json={"model": "plain", "messages": messages}),
        server.http.post("/apply-template", json={"model": "plain", "messages": messages}),
        server.http.post("/v1/embeddings", json={"model": "plain", "input": "x"}),
        server.http.post(PATH, json={"model": "plain", "prompt": "x", "suffix": "y"}),
        server.http.get("/v1/models/none"),
    ]
    assert [answer.status_code for answer in told] == [503, 503, 400, 400, 400, 400, 404]
    assert all(str(tmp_path) not in answer.text for answer in told)
    assert told[0].json()["error"]["message"].startswith("sub/broken cannot be loaded: broken.gguf: ")
    assert told[1].json()["error"].startswith("broken.gguf: ")
    assert told[2].json()["error"]["message"].startswith("plain.gguf has no chat template")
    (failed,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert failed.startswith(f"sub/broken cannot be loaded: {folder / 'sub' / 'broken.gguf'}: ")


def test_settings_of_the_server_are_not_for_clients(serve: Serve, director: Director, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    director.fail_load = ConfigError("/srv/state: the folder for cached state cannot be written to.")
    told = server.http.post(PATH, json={"model": "staged", "prompt": "x"}).json()["error"]["message"]
    assert told == "staged cannot be loaded with the settings of this server. Its log says more."
    assert "/srv/state" in caplog.text


def test_health_waits_for_the_first_model(serve: Serve, director: Any, models: Any) -> None:
    from tensorsharp_app_server.catalog import OneModel

    director.load_gate.clear()
    server = serve(OneModel("one", models / "staged.gguf"), at_once=True)
    assert server.http.get("/health").status_code == 503
    answer = server.http.post(PATH, json={"prompt": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    director.load_gate.set()
    assert until(lambda: server.http.get("/health").status_code == 200)
    assert director.steps == 1
    assert server.post(PATH, prompt="x", max_tokens=1)["model"] == "one"
    assert server.post(PATH, model="staged", prompt="x", max_tokens=1)["model"] == "one"


def test_the_first_constraint_finds_the_vocabulary_prepared(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    server.post(PATH, model="second", prompt="x", max_tokens=1)
    monkeypatch.setattr("tensorsharp.text.constraints.TokenTrie", None)
    assert server.post(PATH, model="second", prompt="x", max_tokens=9, choice=["ja"])["choices"][0]["text"] == "ja"


def test_a_full_queue_says_when_to_come_again(serve: Serve) -> None:
    server = serve(loading={"parallel": 1, "queue": 0})
    server.post(PATH, model="staged", prompt="x", max_tokens=1)
    server.director.pace.clear()
    begun = server.director.steps
    thread = threading.Thread(target=lambda: server.post(PATH, model="staged", prompt="x", max_tokens=1))
    thread.start()
    assert server.director.wait_steps(begun + 1)
    answer = server.http.post(PATH, json={"model": "staged", "prompt": "x"})
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["error"]["code"]) == (429, "1", "queue_full")
    several = server.http.post(PATH, json={"model": "staged", "prompt": ["x", "y"]})
    assert several.status_code == 429
    server.director.pace.set()
    thread.join(PATIENCE_S)


def test_running_requests_are_finished_before_the_end(serve: Serve) -> None:
    server = serve(grace_s=60)
    server.post(PATH, model="staged", prompt="x", max_tokens=1)
    server.director.pace.clear()
    begun = server.director.steps
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(server.post(PATH, model="staged", prompt="x", max_tokens=30)))
    thread.start()
    assert server.director.wait_steps(begun + 1)
    server.program.should_exit = True
    time.sleep(0.3)
    server.director.pace.set()
    thread.join(PATIENCE_S)
    assert found[0]["usage"]["completion_tokens"] == 30


def test_what_takes_longer_than_the_grace_time_is_told(serve: Serve) -> None:
    server = serve(grace_s=1)
    server.post(PATH, model="staged", prompt="x", max_tokens=1)
    server.director.pace.clear()
    begun = server.director.steps
    found: list[str] = []
    body = {"model": "staged", "prompt": "x", "stream": True}
    thread = threading.Thread(target=lambda: found.append(server.http.post(PATH, json=body).text))
    thread.start()
    assert server.director.wait_steps(begun + 1)
    server.program.should_exit = True
    thread.join(PATIENCE_S)
    assert "shutting_down" in found[0]
