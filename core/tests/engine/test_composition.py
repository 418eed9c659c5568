"""A composition log is enough to compute every step again, and a replay notices whatever is not the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_bench import FULL, MODEL, SLIDING, prompt, request, runner_and_store, sizes
from engine_rig import Gate, Rig

from tensorsharp.engine.composition import Composition, RecordedStore, batch_data, batch_from
from tensorsharp.engine.config import CacheConfig
from tensorsharp.engine.replay import Replayed, replay
from tensorsharp.errors import ConfigError
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.replay import read_log
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import GenerationRequest

EVERY = pytest.mark.parametrize("model", [FULL, SLIDING, MODEL], ids=["full", "sliding", "recurrent"])
COUNTS = {"blocks": 9, "window_blocks": 9, "sequences": 3}


def asked(length: int, salt: int, tokens: int, **params: Any) -> GenerationRequest:
    return request(prompt(length, salt), max_tokens=tokens, seed=salt, **params)


def record(path: Path, model: FakeModel, *, fail: int | None = None) -> list[dict[str, Any]]:
    """The log of traffic with shared prefixes, preemption, a cancelled request and an evaluation."""
    composition = Composition(path, {"model": "fake"})
    rig = Rig(model=model, step=48, chunk=48, context=160, composition=composition, **COUNTS)
    gate = Gate(rig.runner)
    with rig.engine as engine:
        rig.runner.fail = fail
        handles = [
            engine.submit(asked(70 + i, 5, 40, temperature=1.0, logit_bias={3: 1.5}, repeat_penalty=1.2)) for i in range(3)
        ]
        handles += [engine.submit(asked(33, 9, 20, temperature=0.0, stop_token_ids=(7,)))]
        gate.open(6)
        for _ in range(6):
            gate.wait()
        handles[1].cancel()
        gate.open()
        for handle in handles:
            handle.result(30)
        again = engine.submit(asked(75, 5, 5, temperature=1.0))
        again.result(30)
        assert again.result().usage.cached > 0
        engine.logits(prompt(40, 9))
    composition.close()
    return [dict(r) for r in read_log(path).records]


def played(records: list[dict[str, Any]], model: FakeModel, poison: Any = None) -> list[Replayed]:
    runner, store = runner_and_store(sizes(**COUNTS), model)
    if poison is not None:
        runner.poison = poison
    return list(replay(records, runner, store))


@EVERY
def test_every_step_is_the_same_again(tmp_path: Path, model: FakeModel) -> None:
    records = record(tmp_path / "log", model)
    done = played(records, model)
    assert [d.number for d in done] == list(range(1, len(done) + 1))
    assert [d for d in done if d.differences] == []
    assert {id for d in done for id in d.requests} == {
        "request-1",
        "request-2",
        "request-3",
        "request-4",
        "request-5",
        "evaluation",
    }
    assert sum(len(tokens) for r in records for _, tokens in r.get("chosen", [])) > 60
    if model is MODEL:
        assert any("restore" in r for r in records), "saved state came back"


@EVERY
def test_one_bit_in_one_row_is_noticed_where_it_is(tmp_path: Path, model: FakeModel) -> None:
    records = record(tmp_path / "log", model)
    count = 0

    def flip(batch: Batch, logits: F32) -> None:
        nonlocal count
        count += 1
        if count == 5 and len(logits):
            logits.view(np.uint32)[0, 0] ^= 1

    done = played(records, model, flip)
    assert [d.number for d in done if d.differences] == [5]
    assert "the logits of wanted row 0 (" in done[4].differences[0]


@pytest.mark.parametrize("what", ["token", "block", "seed", "snapshot"])
def test_what_was_changed_in_the_log_is_noticed(tmp_path: Path, what: str) -> None:
    records = record(tmp_path / "log", MODEL)
    if what == "token":
        record_ = next(r for r in records if "step" in r)
        record_["batch"]["tokens"][2][0] ^= 1
    elif what == "block":
        steps = [r for r in records if "step" in r and r["batch"]["start"][2][0] > 64]
        steps[0]["batch"]["tables"][0][1][0][:2] = steps[0]["batch"]["tables"][0][1][0][1::-1]
    elif what == "seed":
        next(r for r in records if "request" in r)["seed"] += 1
    else:
        next(r for r in records if "snapshot" in r)["digest"] = "00"
    if what == "snapshot":
        assert any("snapshot" in s for d in played(records, MODEL) for s in d.differences)
    else:
        expected = "token " if what == "seed" else "the logits of wanted row"
        assert any(s.startswith(expected) for d in played(records, MODEL) for s in d.differences)


def test_tokens_under_a_mask_are_taken_as_they_were(tmp_path: Path) -> None:
    records = record(tmp_path / "log", FULL)
    asked = next(r for r in records if "request" in r)
    asked["seed"] += 1
    assert any(d.differences for d in played(records, FULL))
    asked["masked"] = True
    assert not any(d.differences for d in played(records, FULL))


def test_a_log_with_lines_missing_is_not_replayed(tmp_path: Path) -> None:
    records = record(tmp_path / "log", MODEL)
    with pytest.raises(ConfigError, match="The log is not whole: state comes back that was never read before"):
        played([r for r in records if "snapshot" not in r], MODEL)


def test_state_from_outside_is_in_the_log_and_what_was_read_before_is_not(tmp_path: Path) -> None:
    composition = Composition(tmp_path / "log", {})
    _, store = runner_and_store(sizes(**COUNTS), MODEL)
    recorded = RecordedStore(store, composition)
    rng = np.random.default_rng(3)
    block, slot = rng.bytes(store.block_bytes(None)), rng.bytes(store.slot_bytes())
    recorded.write(None, 2, block)
    recorded.restore(1, 1, slot)
    recorded.copy(None, 2, 3)
    assert recorded.read(None, 3) == block
    recorded.write(None, 4, block)
    composition.close()
    log = read_log(tmp_path / "log").records
    assert [("data" in r) for r in log] == [True, True, False, False, False]
    runner, fresh = runner_and_store(sizes(**COUNTS), MODEL)
    assert list(replay(log, runner, fresh)) == []
    assert all(fresh.read(None, number) == block for number in (2, 3, 4))
    assert fresh.snapshot(1, 1) == slot


def test_a_log_of_a_second_process_that_begins_after_checkpoints_is_replayed(tmp_path: Path) -> None:
    """Files hold what the first one computed; the second one's log alone is enough for its steps."""
    cache = CacheConfig(ssd=tmp_path / "kv")
    for number in range(2):
        composition = Composition(tmp_path / f"log{number}", {})
        with Rig(model=MODEL, composition=composition, cache=cache, **COUNTS).engine as engine:
            usage = engine.submit(asked(75, 5, 5)).result(30).usage
        composition.close()
    assert usage.cached > 0, "what the files hold was used"
    records = [dict(r) for r in read_log(tmp_path / "log1").records]
    assert any("data" in r for r in records)
    assert [d for d in played(records, MODEL) if d.differences] == []


def test_a_failed_step_is_in_the_log_and_harms_no_other(tmp_path: Path) -> None:
    records = record(tmp_path / "log", FULL, fail=9)
    failed = [r for r in records if "error" in r]
    assert [r["error"] for r in failed] == ["BackendError: step 9 was told to fail"]
    assert [d for d in played(records, FULL) if d.differences] == []


def test_a_batch_comes_back_as_it_was() -> None:
    batch = Batch(
        tokens=np.array([5, -1, 7], np.int32),
        pos=np.array([0, 1, 9], np.int32),
        seq=np.array([0, 0, 1], np.int32),
        first_row=np.array([0, 2], np.int32),
        start=np.array([0, 9], np.int32),
        length=np.array([2, 1], np.int32),
        tables={None: np.array([[3, -1], [1, 2]], np.int32), 40: np.array([[-1, 0], [2, -1]], np.int32)},
        tail_slot=np.array([0, 1], np.int32),
        slot_in=np.array([-1, 1], np.int32),
        slot_out=np.array([-1, 0, 1], np.int32),
        wanted=np.zeros(0, np.int32),
        rope_pos=np.array([[0, 1], [2, 3], [4, 5]], np.int32),
        rows_in=np.array([[0.1, -3e38], [1e-45, 2.0], [np.pi, 0.0]], np.float32),
        previous=np.zeros((3, 0), np.int32),
    )
    back = batch_from(json.loads(json.dumps(batch_data(batch))))
    for name in batch.__dataclass_fields__:
        if name != "tables":
            was, now = getattr(batch, name), getattr(back, name)
            assert (was.dtype, was.shape, was.tobytes()) == (now.dtype, now.shape, now.tobytes()), name
    assert all((back.tables[group] == table).all() for group, table in batch.tables.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not begin as a composition log"),
        ('{"composition":99}\n', "does not begin as a composition log of version 1"),
        ('{"composition":1}\nx\n{"step":1}\n', "line 2 is no JSON object"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        read_log(path)


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"composition":1}\n{"request":1}\n{"ste', encoding="utf-8")
    assert read_log(path).records == ({"request": 1},)


def test_a_log_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"composition_log .* cannot be written: Is a directory"):
        Composition(tmp_path, {})


def test_a_disk_that_fills_up_ends_the_log_and_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    composition = Composition(tmp_path / "log", {})

    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    assert composition._file is not None
    composition._file.close()
    composition._file = Full()  # type: ignore[assignment]
    with Rig(composition=composition).engine as engine:
        assert engine.submit(asked(9, 1, 5)).result(20).reason == "length"
    assert caplog.messages == ["The composition log ends here, as it cannot be written: [Errno 28] No space left on device"]
