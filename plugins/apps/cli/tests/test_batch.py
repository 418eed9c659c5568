"""A file of requests: every line gets its result, a wrong one harms no other, and an interrupted run is taken up again."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tensorsharp_app_cli.batchlines import read_lines

if TYPE_CHECKING:
    from conftest import World

SAID = "Grüße!\nZwei."
CHAT = {"messages": [{"role": "user", "content": "Hallo"}], "max_tokens": 4}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return path


def results(path: Path) -> dict[str, dict[str, Any]]:
    """By custom_id; each has one."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def body(result: dict[str, Any]) -> dict[str, Any]:
    assert result["error"] is None
    assert result["response"]["status_code"] == 200
    found = result["response"]["body"]
    assert isinstance(found, dict)
    return found


def test_every_form_of_a_line_is_answered_in_its_own_form(world: World) -> None:
    requests = write(
        world.folder / "in.jsonl",
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
        "",
        {"custom_id": "text", "url": "/v1/completions", "body": {"prompt": "Es war", "unknown": 1}},
        {"prompt": "Frage", "system": "Kurz.", "seed": 7},
        CHAT | {"custom_id": "plain"},
    )
    out = world.folder / "out.jsonl"
    assert world.command("batch", str(requests), str(out), world.model, "-n", "50")[:2] == (0, "")
    found = results(out)
    assert {key: line["line"] for key, line in found.items()} == {"chat": 1, "text": 3, "line-4": 4, "plain": 5}
    chat, text, run = body(found["chat"]), body(found["text"]), body(found["line-4"])
    assert chat["object"] == "chat.completion"
    assert chat["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "Grü"}, "finish_reason": "length"}]
    assert chat["usage"]["completion_tokens"] == 4
    assert chat["usage"]["total_tokens"] == chat["usage"]["prompt_tokens"] + 4
    assert (text["object"], text["choices"][0]["text"], text["choices"][0]["finish_reason"]) == ("text_completion", SAID, "stop")
    assert (run["text"], run["seed"], run["finish_reason"]) == (SAID, 7, "stop")
    assert body(found["plain"])["choices"] == chat["choices"]
    hello = "[user]Hallo[assistant]"
    assert sorted(world.prompts()) == sorted([hello, hello, "Es war", "[system]Kurz.[user]Frage[assistant]"])


BAD: list[tuple[object, str | None, str]] = [
    ("{", None, "The line is no JSON: Expecting property name enclosed in double quotes: line 2 column 1 (char 2)."),
    ("[1]", None, "The line is no JSON object."),
    ({"custom_id": 3, "prompt": "x"}, "custom_id", "custom_id is 3; expected a string that is not empty."),
    (
        {"custom_id": "good", "prompt": "x"},
        "custom_id",
        "custom_id 'good' is that of line 1 too; expected one that no other",
    ),
    ({"url": "/v1/embeddings", "body": {}}, "url", "url is '/v1/embeddings'; expected /v1/chat/completions or /v1/completions."),
    ({"body": 3}, "body", "body is 3; expected an object."),
    ({"prompt": ["x"]}, "prompt", "prompt is ['x']; expected a string."),
    ({}, "prompt", "prompt is missing; expected a string."),
    ({"messages": []}, "messages", "messages is missing or wrong; expected a list of objects with role and content."),
    ({"prompt": "x", "top_k": -1}, "top_k", "top_k is -1; expected 0 (off) or more."),
    (
        {"prompt": "x", "logit_bias": {"a": 1}},
        "logit_bias",
        "logit_bias is {'a': 1}; expected an object of token ids",
    ),
    ({"prompt": "x", "logit_bias": {"999": 1}}, "logit_bias", "logit_bias[0] is 999; expected a token id between 0 and 299."),
    ({"prompt": "x", "n": 2}, "n", "n is 2, which a batch does not serve."),
    ({"prompt": "x" * 600}, "prompt_ids", "600 tokens; at most 499 fit"),
]


def test_a_wrong_line_says_what_is_wrong_and_harms_no_other(world: World) -> None:
    good = {"custom_id": "good", "prompt": "Tag", "n": 1, "stream": False}
    requests = write(world.folder / "in.jsonl", good, *(line for line, _, _ in BAD), {"custom_id": "last", "prompt": "Abend"})
    out = world.folder / "out.jsonl"
    code, printed, err = world.command("batch", str(requests), str(out), world.model, "--raw")
    assert (code, printed, err) == (1, "", f"2 answered, {len(BAD)} failed, 0 were answered before\n")
    found = results(out)
    assert body(found["good"])["text"] == body(found["last"])["text"] == SAID
    for number, (line, param, message) in enumerate(BAD, 2):
        result = found[f"line-{number}"]
        assert (result["line"], result["response"], result["error"]["param"]) == (number, None, param), line
        assert message in result["error"]["message"]


def test_what_is_answered_is_not_asked_again_and_what_was_cut_off_is(world: World) -> None:
    lines = [{"custom_id": f"r{i}", "prompt": f"Frage {i}"} for i in range(4)]
    requests = write(world.folder / "in.jsonl", *lines, "broken")
    out = world.folder / "out.jsonl"
    command = ("batch", str(requests), str(out), world.model, "--raw", "-v")
    assert world.command(*command)[0] == 1
    answers = [x for x in out.read_bytes().splitlines(keepends=True) if b'"response": null' not in x]
    assert len(answers) == 4
    out.write_bytes(b"".join(answers[:2]) + answers[2][:40])
    world.asked.unlink()
    write(requests, *lines)
    code, _, err = world.command(*command)
    assert code == 0
    assert "2 answered, 0 failed, 2 were answered before" in err
    assert out.read_bytes().startswith(b"".join(answers[:2])), "what was there is still there, to the byte"
    assert set(results(out)) == {"r0", "r1", "r2", "r3"}
    assert len(world.prompts()) == 2
    before = out.read_bytes()
    assert world.command(*command)[0] == 0
    assert out.read_bytes() == before


def test_a_file_that_is_something_else_is_left_alone(world: World) -> None:
    requests = write(world.folder / "in.jsonl", {"prompt": "x"})
    out = world.folder / "notes.txt"
    out.write_text("Milch\nBrot\n", encoding="utf-8")
    code, _, err = world.command("batch", str(requests), str(out), world.model)
    assert code == 2
    assert f"{out}: line 1 is no result of a batch, and the file is left as it is." in err
    assert out.read_text(encoding="utf-8") == "Milch\nBrot\n"


@pytest.mark.parametrize(("inside", "outside"), [("absent.jsonl", "out.jsonl"), ("in.jsonl", "absent/out.jsonl")])
def test_files_that_cannot_be_used_are_named(world: World, inside: str, outside: str) -> None:
    write(world.folder / "in.jsonl", {"prompt": "x"})
    code, _, err = world.command("batch", str(world.folder / inside), str(world.folder / outside), world.model)
    assert code == 2
    assert str(world.folder / (inside if "absent" in inside else outside)) in err


def test_a_request_that_fails_in_the_model_is_an_error_and_the_others_go_on(world: World) -> None:
    lines = [{"custom_id": f"r{i}", "prompt": f"Frage {i}", "max_tokens": 2 if i else 9} for i in range(3)]
    requests = write(world.folder / "in.jsonl", *lines)
    out = world.folder / "out.jsonl"
    code, _, _ = world.command("batch", str(requests), str(out), world.model, "--parallel", "1", "--raw", BREAK="4")
    assert code == 1
    found = results(out)
    assert found["r0"]["error"] == {"code": "backend_error", "message": "the lamp went out", "param": None}
    assert [body(found[key])["text"] for key in ("r1", "r2")] == ["Gr", "Gr"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupted_run_keeps_its_results_and_is_taken_up_again(world: World) -> None:
    requests = write(world.folder / "in.jsonl", *({"custom_id": f"r{i}", "prompt": f"Frage {i}"} for i in range(100)))
    out = world.folder / "out.jsonl"
    command = ("batch", str(requests), str(out), world.model, "--raw", "--parallel", "2")
    with world.start(*command, PAUSE="0.03") as process:  # 20 seconds in all
        deadline = time.monotonic() + 60
        while not (out.exists() and out.read_bytes().count(b"\n") >= 3):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"interrupted; the same command answers what is left\n")
    first = results(out)
    assert 3 <= len(first) < 100
    assert world.command(*command)[0] == 0
    found = results(out)
    assert len(found) == 100
    assert all(body(result)["text"] == SAID for result in found.values())
    assert {key: found[key] for key in first} == first


def test_fields_of_a_body_become_parameters(tmp_path: Path) -> None:
    line = {"max_completion_tokens": 5, "temperature": 0, "stop": ["a"], "logit_bias": {"3": -1}, "seed": None, "user": "me"}
    (asked,) = read_lines(write(tmp_path / "in.jsonl", {"url": "/v1/completions", "body": line | {"prompt": "x"}}))
    assert asked.error is None
    assert asked.params == {"max_tokens": 5, "temperature": 0, "stop": ["a"], "logit_bias": {3: -1}}
