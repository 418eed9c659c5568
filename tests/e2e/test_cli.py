"""The command over real files, families and backends: what it prints is what the library gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.goldens.records import Greedy
from tests.realmodels import SMOLLM2, needs

import tensorsharp
from tensorsharp.testing.tinygguf import tiny, write_tiny

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
)
"""What SmolLM2's template makes of that question, in the recorded answers."""
QUESTION = "the rain in the town"


def command(*arguments: str, pipe: str = "") -> str:
    """Stdout of the command, which must end well and write nothing to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "tensorsharp", *arguments], input=pipe.encode(), capture_output=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return done.stdout.decode()


def answered(path: Path, *arguments: str) -> dict[str, Any]:
    """The object that `run --json` prints."""
    data: dict[str, Any] = json.loads(command("run", str(path), QUESTION, "--json", *arguments))
    return data


@pytest.mark.parametrize("backend", ["ggml", "reference"])
def test_an_answer_is_the_one_of_the_library(model: Path, backend: str) -> None:
    data = answered(model, "--backend", backend, "--seed", "3", "-n", "20", "--system", "s")
    with tensorsharp.load(model, backend=backend) as llm:
        reply = llm.generate(QUESTION, system="s", seed=3, max_tokens=20)
    assert (data["text"], tuple(data["token_ids"])) == (reply.text, reply.token_ids)
    assert data["finish_reason"] == reply.finish_reason
    assert data["usage"] == {"prompt": reply.usage.prompt, "cached": 0, "completion": len(reply.token_ids)}


def test_text_is_the_one_of_json(model: Path) -> None:
    flags = ("--seed", "5", "-n", "20")
    assert command("run", str(model), QUESTION, *flags) == answered(model, *flags)["text"] + "\n"
    assert command("run", str(model), *flags, pipe=QUESTION + "\n") == answered(model, *flags)["text"] + "\n"


def test_the_bits_do_not_depend_on_threads(model: Path) -> None:
    one, two = (answered(model, "--seed", "4", "-n", "16", "--logprobs", "3", "--threads", n) for n in ("1", "2"))
    assert (one["token_ids"], one["logprobs"]) == (two["token_ids"], two["logprobs"])


def test_the_memory_that_show_tells_is_what_bench_measures(model: Path) -> None:
    memory = json.loads(command("show", str(model), "--json", "-c", "64"))["memory"]
    steps = ("--ctx-start", "64", "--ctx-max", "64", "--gen-tokens", "2")
    for kv_type in ("f16", "bf16", "f32"):
        (row,) = json.loads(command("bench", str(model), "--json", "--kv-type", kv_type, *steps))["rows"]
        assert row["kvcache_bytes"] == memory["state"][kv_type]


@pytest.mark.parametrize("architecture", ["gemma3", "qwen3", "mistral3"])
def test_every_family_can_be_measured(tmp_path: Path, architecture: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", tiny(architecture, tokenizer="bytes"))
    out = command("bench", str(path), "--ctx-start", "32", "--ctx-max", "96", "--step-incr", "32", "--gen-tokens", "4")
    assert [line.split(",")[:2] for line in out.splitlines()[1:]] == [["32", "32"], ["64", "32"], ["96", "32"]]


def test_a_real_model_goes_on_as_llama_cpp_does() -> None:
    """Both tokens are at least 1.2 ahead of the next best one in llama.cpp's logits."""
    assert command("run", str(needs(SMOLLM2)), "The capital of France is", "--raw", "--temp", "0", "-n", "2") == " Paris.\n"


def test_a_real_model_is_asked_through_its_template() -> None:
    golden = Greedy.of("smollm2")
    index, question = golden.text.index(CHAT), "Why is the sky blue?"
    begin = int(golden.prompt[index])
    data = json.loads(command("run", str(needs(SMOLLM2)), question, "--json", "--temp", "0", "-n", "1"))
    assert data["usage"]["prompt"] == begin
    assert data["token_ids"] == golden.ids[index, begin : begin + 1].tolist()
