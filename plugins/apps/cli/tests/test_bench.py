"""`tensorsharp bench` from the outside, over the model that recites."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tensorsharp_app_cli import benchtext
from tensorsharp_app_cli.ladder import Row
from tensorsharp_app_cli.plot import save_plot

if TYPE_CHECKING:
    from conftest import World

HEADER = "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes"
LADDER = ("--ctx-start", "40", "--ctx-max", "100", "--step-incr", "25", "--gen-tokens", "3")


def columns(text: str) -> list[list[str]]:
    header, *lines = text.splitlines()
    assert header == HEADER
    return [line.split(",") for line in lines]


def test_csv_on_stdout(world: World) -> None:
    code, out, err = world.command("bench", world.model, *LADDER)
    assert (code, err) == (0, "")
    rows = columns(out)
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("40", "40", "3"),
        ("65", "25", "3"),
        ("90", "25", "3"),
        ("100", "10", "3"),
    ]
    assert all(float(row[2]) > 0 and float(row[4]) > 0 for row in rows)
    assert [row[5] for row in rows] == [str(blocks * 32 * 4) for blocks in (2 + 2, 3 + 3, 3 + 2, 4 + 3)]


def test_speed_is_that_of_the_new_tokens_alone(world: World) -> None:
    """A step of this model takes as long as it is told to, whatever it computes, and each interval is one step."""
    _, out, _ = world.command("bench", world.model, *LADDER, PAUSE="0.2")
    for row in columns(out):
        assert float(row[2]) <= int(row[1]) / 0.2
        assert float(row[4]) <= 1 / 0.2


def test_json_and_files(world: World) -> None:
    csv, plot = world.folder / "rows.csv", world.folder / "speed.svg"
    code, out, _ = world.command("bench", world.model, *LADDER, "--json", "--csv", str(csv), "--plot", str(plot))
    assert code == 0
    data = json.loads(out)
    rows = data.pop("rows")
    assert [Row(**row).csv().split(",") for row in rows] == columns(csv.read_text(encoding="utf-8"))
    assert data == {
        "model": world.model,
        "architecture": "scripted",
        "backend": "scripted",
        "device": "stage",
        "threads": 3,
        "arithmetic_id": "scripted/1",
        "kv_type": "f16",
    }
    assert "<svg" in plot.read_text(encoding="utf-8")


def test_with_a_file_stdout_is_empty(world: World) -> None:
    assert world.command("bench", world.model, *LADDER, "--csv", str(world.folder / "rows.csv")) == (0, "", "")


def test_the_text_of_a_file_is_read(world: World) -> None:
    text = world.folder / "text.txt"
    text.write_text("ä" * 60, encoding="utf-8")
    assert world.command("bench", world.model, *LADDER, "--prompt-file", str(text))[0] == 0
    last = max(world.asked.read_text(encoding="utf-8").splitlines(), key=len)
    assert len(json.loads(last)) == 100
    assert len(set(json.loads(last))) == 2


def test_defaults_fit_the_model(world: World) -> None:
    code, out, _ = world.command("bench", world.model)
    assert code == 0
    assert [row[:2] for row in columns(out)] == [["372", "372"]]  # 500 positions less 128 to write


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--ctx-max", "498", "--gen-tokens", "3"],
            "--ctx-max is 498; the model's context of 500 allows 497 beside 3 --gen-tokens.",
        ),
        (["--gen-tokens", "500"], "--gen-tokens is 500; the model's context of 500 leaves nothing to read then."),
        (["--ctx-start", "51", "--ctx-max", "50"], "--ctx-start is 51; expected at most --ctx-max, which is 50."),
        (["--prompt-file", "{tmp}/none.txt"], "--prompt-file {tmp}/none.txt cannot be read: "),
        (["--prompt-file", "{tmp}/short.txt"], "--prompt-file has 3 tokens; 372 are needed."),
        (["--prompt-file", "{tmp}/bytes.txt"], "--prompt-file {tmp}/bytes.txt is no UTF-8 text: "),
        (["--csv", "{tmp}/no/rows.csv"], "--csv {tmp}/no/rows.csv cannot be written: "),
        (["--plot", "speed.pdf"], "--plot is speed.pdf; expected a name that ends in .svg or .png."),
        (["--shared-prefix", "4"], "--shared-prefix is for requests that arrive together; expected --concurrency too."),
        (["--kv-type", "q4"], "--kv-type is 'q4'; expected f16, bf16 or f32."),
    ],
)
def test_wrong_input_gets_one_sentence(world: World, arguments: list[str], message: str) -> None:
    (world.folder / "short.txt").write_text("abc", encoding="utf-8")
    (world.folder / "bytes.txt").write_bytes(b"a\xff")
    arguments = [argument.replace("{tmp}", str(world.folder)) for argument in arguments]
    code, out, err = world.command("bench", world.model, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: " + message.replace("{tmp}", str(world.folder)))


@pytest.mark.parametrize("flag", ["--ctx-start", "--ctx-max", "--step-incr", "--gen-tokens", "--step-mul"])
def test_steps_are_at_least_one(world: World, flag: str) -> None:
    code, out, err = world.command("bench", world.model, flag, "0")
    assert (code, out) == (2, "")
    assert f"Invalid value for '{flag}': 0" in err


def test_without_matplotlib_it_says_what_to_install(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorsharp.errors import ConfigError
    from tensorsharp_app_cli import plot

    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--plot needs matplotlib") as caught:
        plot.check_plot(world.folder / "speed.png")
    assert caught.value.hint == "Try: pip install 'tensorsharp-app-cli[plot]'"


def test_a_png_can_be_drawn(world: World) -> None:
    save_plot(world.folder / "speed.png", [Row(10, 10, 5.0, 3, 2.0, 1), Row(20, 10, 4.0, 3, 1.0, 1)], "title")
    assert (world.folder / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_no_two_notes_are_alike() -> None:
    assert len({benchtext.note(number).partition(".")[2] for number in range(1, 1000)}) == 999


STREAMS = ("--concurrency", "1,4", "--shared-prefix", "64", "--prompt-tokens", "10", "--gen-tokens", "5")


def test_requests_that_arrive_together(world: World) -> None:
    text = world.folder / "text.txt"
    text.write_text("s" * 64 + "".join(own * 10 for own in "abcd"), encoding="utf-8")  # they part at once, behind the prefix
    asked = (*STREAMS, "--prompt-file", str(text))
    code, out, err = world.command("bench", world.model, *asked, PAUSE="0.01")  # so that three digits tell times apart
    assert (code, err) == (0, "")
    header, *lines = out.splitlines()
    assert header == "streams,prompt_tokens,cached_tokens,gen_tokens,wall_s,total_tps,stream_tps,ttft_s"
    rows = [line.split(",") for line in lines]
    # the prefix is computed once a measurement, and nothing is kept from the one before
    assert [row[:4] for row in rows] == [["1", "74", "0", "5"], ["4", "296", "192", "20"]]
    for row in rows:
        wall, total, stream, first = map(float, row[4:])
        assert min(wall, total, stream, first) > 0
        assert first < wall
        assert total == pytest.approx(int(row[3]) / wall, rel=0.2), "three digits are shown"


def test_requests_that_arrive_together_as_json(world: World) -> None:
    csv = world.folder / "rows.csv"
    code, out, _ = world.command("bench", world.model, *STREAMS, "--json", "--csv", str(csv))
    assert code == 0
    data = json.loads(out)
    assert [row["streams"] for row in data["rows"]] == [1, 4]
    assert (data["shared_prefix"], data["prompt_tokens"], data["gen_tokens"], data["backend"]) == (64, 10, 5, "scripted")
    assert len(csv.read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--concurrency", "1,x"], "--concurrency is '1,x'; expected whole numbers from 1 to 1024 with commas between them."),
        (["--concurrency", "0"], "--concurrency is '0'; expected whole numbers"),
        (["--concurrency", "1", "--ctx-max", "9"], "--ctx-max is for growing contexts; --concurrency measures something else."),
        (["--concurrency", "2", "--gen-tokens", "900"], "ctx_size is 1028; expected 2 to 500"),
        (["--concurrency", "4", "--prompt-file", "{text}"], "--prompt-file has 5 tokens; 4 requests need 512."),
    ],
)
def test_what_cannot_be_measured_together(world: World, flags: list[str], message: str) -> None:
    text = world.folder / "text.txt"
    text.write_text("short", encoding="utf-8")
    code, out, err = world.command("bench", world.model, *(flag.format(text=text) for flag in flags))
    assert (code, out) == (2, "")
    assert f"error: {message}" in err
