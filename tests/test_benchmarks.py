"""The benchmarks run, and their ratios point the right way. What they measure here means nothing."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorsharp.testing.tinygguf import tiny, write_tiny
from tests.oracle.llamacpp import find_library

FOLDER = Path(__file__).parent.parent / "benchmarks"


def run(script: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, FOLDER / script, *arguments, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("higher", "ratio"), [(True, 2.0), (False, 0.5)])
def test_a_ratio_above_one_says_that_we_are_better(higher: bool, ratio: float) -> None:
    measure = runpy.run_path(str(FOLDER / "vs_llama_cpp.py"))["Measure"]("x", "s", higher, {})
    for ours, theirs in ((40, 10), (20, 10), (1, 10)):
        measure.add("ours", ours)
        measure.add("peer", theirs)
    assert measure.ratio("peer") == ratio


def test_startup() -> None:
    found = run("startup.py", "--rounds", "1")
    assert found["empty_ms"] > 0
    assert found["over_ms"].keys() == found["targets_ms"].keys()


def test_sampling(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", tiny("llama", tokenizer="bytes"))
    found = run("sampling.py", str(model), "--streams=3", "--steps=2", "--rounds=1", "--prompt=5")
    assert found["streams"] == 3
    assert found["vocabulary"] > 256
    assert found["step_ms"] > 0
    assert all(way["ms"] / found["step_ms"] == pytest.approx(way["part"]) for way in found["ways"])
    aims = {way["name"]: way["most"] for way in found["ways"] if way["most"] is not None}
    assert aims == {"greedy": 0.1, "temperature 0.8, top-k 40, top-p 0.95": 0.1, "temperature 1": 0.5}


def test_masks(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", tiny("llama", tokenizer="bytes"))
    found = run("masks.py", str(model), "--streams=3", "--tokens=8", "--rounds=1", "--threads=1")
    assert (found["streams"], found["threads"], found["most"]) == (3, 1, 0.1)
    assert found["masks"] > 0
    assert found["mask_us"] > 0
    assert found["all"] > 0


@pytest.mark.oracle
def test_a_comparison_on_a_tiny_model(tmp_path: Path) -> None:
    if find_library() is None:
        pytest.skip("llama.cpp is not installed; pip install xllamacpp")
    model = write_tiny(tmp_path / "tiny.gguf", tiny("llama", tokenizer="bytes", context=8192))
    sizes = ["--rounds", "1", "--prefill", "40", "--decode-at", "8", "33", "--decode-tokens", "4"]
    found = run("vs_llama_cpp.py", str(model), *sizes)
    names = [row["name"] for row in found["measures"]]
    assert names[:4] == ["decode at 8", "decode at 33", "prefill of 40", "start to first token"]
    for row in found["measures"]:
        assert row["median"].keys() == {"ours", "llama.cpp"}
        assert row["ratio"]["llama.cpp"] > 0
    assert found["sides"]["ours"]["threads"] == found["sides"]["llama.cpp"]["threads"] == found["threads"]


@pytest.mark.oracle
def test_many_streams_on_a_tiny_model(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    model = write_tiny(tmp_path / "tiny.gguf", tiny("llama", tokenizer="bytes", context=8192))
    sizes = {
        "streams": 2,
        "rounds": 1,
        "context": 512,
        "words": 5,
        "tokens": 24,
        "prefix-words": 30,
        "own-words": 3,
        "prefix-tokens": 24,
    }
    found = run("concurrency.py", str(model), *(f"--{name}={value}" for name, value in sizes.items()))
    peers = {row["name"]: set(row["ratio"]) for row in found["measures"]}
    assert peers.pop("one stream") == {"llama.cpp", "alone"}
    assert list(peers) == [
        "2 streams: total",
        *(f"{p}: {w}" for p in ("shared prefix", "same prefix again") for w in ("first token", "all done")),
    ]
    assert all(names == {"llama.cpp"} for names in peers.values())
    cached = {(wave["scenario"], wave["side"]): wave["cached"] for wave in found["waves"]}
    assert cached["apart", "ours"] == cached["apart", "llama.cpp"] == 0
    assert cached["shared prefix", "ours"] > cached["shared prefix", "llama.cpp"] == 0
    assert all(cached["same prefix again", side] > 0 for side in ("ours", "llama.cpp"))
    assert found["sides"]["ours"]["slots"] == found["sides"]["llama.cpp"]["slots"] == 2


def test_an_engine_soaks(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", tiny("llama", tokenizer="bytes", context=8192))
    below = ["--ram=60000", "--ssd=300000"]  # bytes: few of its blocks
    found = run(
        "soak.py", str(model), "--minutes=0.1", "--warm=0", "--context=256", "--blocks=12", "--verify=10", "--threads=1", *below
    )
    alone, tiers = found["phases"]
    for half in (alone, tiers):
        assert half["wrong"] == []
        assert half["verified"] == 10
        assert half["tokens"] > 0
        assert half["requests"]["cancelled"] > 0
    assert alone["tier_hits"] == {}
    assert tiers["tier_hits"].keys() == {"ram", "ssd"}


TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def test_a_server_soaks(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", tiny("llama", tokenizer="bytes", context=8192, chat_template=TEMPLATE))
    few = ["--clients=16", "--distinct=12", "--parallel=4", "--context=256", "--threads=1"]
    found = run("server_soak.py", str(model), "--minutes=0.1", "--warm=0", *few)
    assert found["wrong"] == []
    assert found["counts"].keys() == {"survived", "sent", "told", "middle", "reset", "half"}
    assert found["requests"]["cancelled"] > 0


def test_the_servers_share(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", tiny("llama", tokenizer="bytes", context=8192, chat_template=TEMPLATE))
    few = ["--streams=3", "--rounds=1", "--firsts=2", "--words=5", "--tokens=24", "--context=256", "--threads=1"]
    found = run("overhead.py", str(model), *few)
    assert found["first_ms"].keys() == {"server", "library", "added", "most"}
    assert found["token_cpu_ms"]["server"] > 0
    assert {side: len(values) for side, values in found["samples"]["first_ms"].items()} == {"server": 2, "library": 2}
