"""`tensorsharp run`, as a person or a script calls it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import World

TEXT = "Grüße!\nZwei."
IDS = len(TEXT.encode())
PROMPT = len("[user]Hallo?[assistant]") - 1
"""Tokens: one a byte, but "er" is one."""


def test_only_the_answer_goes_to_stdout(world: World) -> None:
    assert world.command("run", world.model, "Hallo?") == (0, TEXT + "\n", "")
    assert world.prompts() == ["[user]Hallo?[assistant]"]


@pytest.mark.parametrize(
    ("arguments", "pipe", "prompt"),
    [
        (["Sag"], None, "[user]Sag[assistant]"),
        ([], b"aus dem Rohr\n", "[user]aus dem Rohr[assistant]"),
        ([], b"zwei\n\n", "[user]zwei\n[assistant]"),
        ([], b"\xef\xbb\xbfmit BOM\r\n", "[user]mit BOM[assistant]"),
        (["Kürze:"], "größer\n".encode(), "[user]Kürze:\n\ngrößer[assistant]"),
        (["Sag"], b"", "[user]Sag[assistant]"),
        (["Sag", "--system", "Kurz."], None, "[system]Kurz.[user]Sag[assistant]"),
        (["Sag", "--raw"], None, "Sag"),
        (["--raw", "--", "-n 3"], None, "-n 3"),
    ],
)
def test_the_prompt(world: World, arguments: list[str], pipe: bytes | None, prompt: str) -> None:
    assert world.command("run", world.model, *arguments, pipe=pipe) == (0, TEXT + "\n", "")
    assert world.prompts() == [prompt]


def test_json_is_one_object(world: World) -> None:
    code, out, err = world.command("run", world.model, "Hallo?", "--json", "--seed", "7", "--logprobs", "2")
    assert (code, err) == (0, "")
    data = json.loads(out)
    timings, logprobs = data.pop("timings"), data.pop("logprobs")
    ids = data.pop("token_ids")
    assert data == {
        "text": TEXT,
        "reasoning": "",
        "finish_reason": "stop",
        "seed": 7,
        "usage": {"prompt": PROMPT, "cached": 0, "completion": IDS},
    }
    assert timings.keys() == {"load_s", "prefill_s", "prefill_tps", "decode_s", "decode_tps", "drafted", "accepted"}
    assert (timings["drafted"], timings["accepted"]) == (0, 0)
    assert all(timings[name] > 0 for name in ("load_s", "prefill_s", "prefill_tps", "decode_s", "decode_tps"))
    assert [entry["token"] for entry in logprobs] == ids
    assert [len(entry["top"]) for entry in logprobs] == [2] * IDS
    assert logprobs[0]["piece"] == "G"
    assert logprobs[0]["top"][0] == {"token": ids[0], "piece": "G", "logprob": logprobs[0]["logprob"]}


def test_json_without_logprobs_has_none(world: World) -> None:
    assert "logprobs" not in json.loads(world.command("run", world.model, "x", "--json")[1])


@pytest.mark.parametrize(
    ("arguments", "text", "reason"),
    [
        (["-n", "3"], "Gr\ufffd", "length"),
        (["--max-tokens", "4"], "Grü", "length"),
        (["--stop", "!", "--stop", "wei"], "Grüße", "stop"),
        (["--stop", "wei"], "Grüße!\nZ", "stop"),
        (["-c", str(PROMPT + 4)], "Grü", "length"),
    ],
)
def test_how_a_reply_ends(world: World, arguments: list[str], text: str, reason: str) -> None:
    data = json.loads(world.command("run", world.model, "Hallo?", "--json", *arguments)[1])
    assert (data["text"], data["finish_reason"]) == (text, reason)


def test_flag_beats_environment_beats_file(world: World) -> None:
    file = world.folder / "settings.toml"
    file.write_text('max-tokens = 1\nsystem = "Kurz."\n', encoding="utf-8")
    base = ("--config", str(file), "run", world.model, "x")
    assert world.command(*base)[1] == "G\n"
    assert world.command(*base, TENSORSHARP_MAX_TOKENS="2")[1] == "Gr\n"
    assert world.command(*base, "-n", "4", TENSORSHARP_MAX_TOKENS="2")[1] == "Grü\n"
    assert world.prompts() == ["[system]Kurz.[user]x[assistant]"] * 3


def test_every_sampling_flag_is_handed_over(world: World) -> None:
    from click.testing import CliRunner

    from tensorsharp import options
    from tensorsharp_app_cli import answer, run

    seen: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "answer", lambda llm, text, settings, status, as_json: seen.update(options.sampling(settings)))
        flags = {"--max-tokens": 5, "--temperature": 0.5, "--top-k": 3, "--top-p": 0.25, "--min-p": 0.125, "--seed": 9}
        flags |= {"--repeat-penalty": 1.5, "--repeat-last-n": 7, "--presence-penalty": 0.5, "--frequency-penalty": -0.5}
        words = [str(word) for pair in flags.items() for word in pair]
        done = CliRunner().invoke(run.run, [world.model, "x", *words, "--stop", "a"])
    assert (done.exit_code, done.output) == (0, "")
    names = [flag[2:].replace("-", "_") for flag in flags]
    assert seen == dict(zip(names, flags.values(), strict=True)) | {"stop": ("a",)}


def test_verbose_reports_on_stderr(world: World) -> None:
    code, out, err = world.command("run", world.model, "Hallo?", "-v", "--threads", "5")
    assert (code, out) == (0, TEXT + "\n")
    lines = err.splitlines()
    assert lines[1:4] == ["starting ...", "opening the file ...", "loading the weights ..."]
    report = {line[:17].strip(): line[18:] for line in lines}
    assert report["backend"] == "scripted on stage, 5 threads"
    assert report["arithmetic"] == "scripted/1"
    assert report["bitwise"] == "does not hold: it recites"
    assert report["voice"] == "clear"
    assert report["fallbacks"] == f"conv {IDS + 1}"
    (speeds,) = [line for line in lines if line.startswith("prompt ")]
    assert speeds.startswith(f"prompt {PROMPT} tokens, ")
    assert f"; reply {IDS} tokens, " in speeds
    assert speeds.endswith("; stop")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{tmp}/absent.gguf", "x"], 3, "{tmp}/absent.gguf does not exist; expected a .gguf file."),
        (["{tmp}", "x"], 3, "{tmp} is a folder; expected a .gguf file."),
        (["{tmp}/text.gguf", "x"], 3, "{tmp}/text.gguf: starts with b'hell'; a GGUF file starts with b'GGUF'."),
        (["{tmp}/short.gguf", "x"], 3, "{tmp}/short.gguf: "),
        (["", "x"], 3, "MODEL is empty; expected the path of a .gguf file, user/repo[:QUANT] or an alias."),
        (["~/absent.gguf", "x"], 3, "{tmp}/absent.gguf does not exist"),
        (["some/model:Q4_K_M", "x", "--offline"], 3, "The cache has no model of some/model. Nothing is downloaded offline."),
        (["model", "x"], 3, "'model' is no file and no alias."),
        (["{tmp}/other.gguf", "x"], 2, "No model plugin serves 'otherling'."),
        (["{model}", "x", "--backend", "none"], 2, "No backend plugin is called 'none'."),
        (["{model}", "x", "--threads", "-1"], 2, "--threads is '-1'; expected a whole number from 1 to 1024."),
        (["{model}", "x", "-n", "0"], 2, "--max-tokens is '0'; expected a number of tokens, 1 or more."),
        (["{model}", "x", "--temp", "warm"], 2, "--temp is 'warm'; expected a number from 0"),
        (["{model}", "x", "--stop", ""], 2, "--stop is ['']; expected strings that are not empty."),
        (["{model}", "x", "--kv-type", "q8"], 2, "--kv-type is 'q8'; expected f16, bf16 or f32."),
        (["{model}", "x", "-c", "501"], 2, "ctx_size is 501; expected 2 to 500"),
        (["{model}", ""], 2, "The prompt is empty; expected a text as PROMPT or from a pipe."),
        (["{model}", "x" * 500], 2, "The prompt has 516 tokens; at most 499 fit in the context of 500"),
        (["{model}", "x", "--logprobs", "1"], 2, "--logprobs needs --json"),
        (["{model}", "x", "--ggml-lib", "y"], 2, "--ggml-lib is for the backend ggml; the backend is 'scripted'."),
        (["{model}", "x", "--raw", "--system", "y"], 2, "A system prompt needs a chat template"),
    ],
)
def test_wrong_input_gets_one_sentence(world: World, arguments: list[str], code: int, message: str) -> None:
    (world.folder / "text.gguf").write_text("hello", encoding="utf-8")
    (world.folder / "short.gguf").write_bytes(Path(world.model).read_bytes()[:3000])
    world.write_model("other.gguf", architecture="otherling")
    places = {"{tmp}": str(world.folder), "{model}": world.model}
    for mark, place in places.items():
        arguments = [argument.replace(mark, place) for argument in arguments]
        message = message.replace(mark, place)
    done = world.command("run", *arguments, HOME=str(world.folder), USERPROFILE=str(world.folder))
    assert done[:2] == (code, "")
    assert done[2].startswith(f"error: {message}")
    assert len(done[2].splitlines()) <= 2


def test_only_a_v_before_the_command_asks_where_an_error_came_from(world: World) -> None:
    behind = world.command("run", "absent.gguf", "x", "-v")[2].splitlines()
    assert behind[-1] == "error: absent.gguf does not exist; expected a .gguf file."
    assert all(line.endswith(" ...") for line in behind[:-1])
    assert "Traceback" in world.command("-v", "run", "absent.gguf", "x")[2]


def test_a_pipe_that_is_no_text(world: World) -> None:
    code, out, err = world.command("run", world.model, pipe=b"ab\xff")
    assert (code, out, err) == (2, "", "error: The pipe holds no UTF-8 text: byte 2 is 0xff.\n")


def test_a_model_without_a_template_gets_the_prompt_as_it_is(world: World) -> None:
    world.model = str(world.write_model("plain.gguf", template=None))
    assert world.command("run", world.model, "Hallo?")[0] == 0
    assert world.prompts() == ["Hallo?"]


def test_a_failure_keeps_what_was_printed(world: World) -> None:
    code, out, err = world.command("run", world.model, "x", BREAK="4")
    assert (code, out, err) == (1, "Grü", "error: the lamp went out\n")


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be sent Ctrl-C one by one there")
def test_interrupting_keeps_what_was_printed(world: World) -> None:
    with world.start("run", world.model, "x", PAUSE="0.05", SCRIPT="a" * 400) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"aaa"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"\n")
    assert set(out) <= set(b"a")
    assert len(out) < 390


@pytest.mark.skipif(sys.platform == "win32", reason="pipes do not break there")
def test_a_reader_that_leaves_ends_it_quietly(world: World) -> None:
    with world.start("run", world.model, "x", PAUSE="0.05", SCRIPT="a\n" * 200) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 1)


def test_what_a_reply_does_not_need_is_not_imported(world: World) -> None:
    code = "import sys\nfrom tensorsharp.cli import run\nassert run(sys.argv[1:]) == 0\nprint(*sorted(sys.modules))"
    out = world.python(code, "run", world.model, "x")
    loaded = set(out.split("\n")[-2].split())
    heavy = {"rich", "prompt_toolkit", "structlog", "matplotlib", "asyncio", "tokenizers", "gguf", "tensorsharp_app_cli.show"}
    assert "tensorsharp_app_cli.answer" in loaded
    assert not heavy & loaded
