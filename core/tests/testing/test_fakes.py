"""The stand-ins do what they say, and notice what they should notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorsharp.errors import BackendError
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.state import HostStateStore
from tensorsharp.testing.fakes import ByteTokenizer, FakeClock, FakeModel, FakeRunner
from tensorsharp.testing.streams import Streams

MODELS = [FakeModel(61), FakeModel(61, window=40), FakeModel(61, ring=3), FakeModel(61, window=8, ring=5, recurrent=True)]
PROMPT = [int(x) for x in np.random.default_rng(0).integers(0, 61, 80)]


def started(model: FakeModel, seed: int = 0, slack: int = 0) -> tuple[Streams, FakeRunner]:
    streams = Streams(model.layout(), count=2, seed=seed, slack=slack)
    assert isinstance(streams.store, HostStateStore)
    return streams, FakeRunner(model, streams.store)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chunk", [1, 7, 32, 80])
def test_logits_are_the_definition_whatever_the_chunks(model: FakeModel, chunk: int) -> None:
    streams, runner = started(model, seed=chunk)
    found = []
    for i in range(0, 80, chunk):
        found.append(runner.step(streams.batch([(1, PROMPT[i : i + chunk])])).logits)
        streams.evict()
    assert np.array_equal(np.concatenate(found), model.expected_logits(PROMPT))


@pytest.mark.parametrize("model", MODELS)
def test_rejected_rows_leave_no_trace(model: FakeModel) -> None:
    streams, runner = started(model, slack=2)
    for i, token in enumerate(PROMPT[:40]):
        batch = streams.batch([(0, [token, 60 - PROMPT[i], 7])], keep=False)
        assert np.array_equal(runner.step(batch).logits[0], model.expected_logits(PROMPT[: i + 1])[-1])
        streams.keep(0, 1)


@pytest.mark.parametrize("model", MODELS)
def test_wrong_state_is_noticed(model: FakeModel) -> None:
    streams, runner = started(model)
    runner.step(streams.batch([(0, PROMPT[:40])]))
    good = streams.batch([(0, PROMPT[40:41])])
    expected = model.expected_logits(PROMPT[:41])[-1]
    assert np.array_equal(runner.step(good).logits[0], expected)
    swapped = {group: table[:, [1, 0, 2]] for group, table in good.tables.items()}
    assert not np.array_equal(runner.step(replace(good, tables=swapped)).logits[0], expected)
    if model.ring:
        assert not np.array_equal(runner.step(replace(good, tail_slot=good.tail_slot + 1)).logits[0], expected)
    if model.recurrent:
        assert not np.array_equal(runner.step(replace(good, slot_in=good.slot_in * 0 - 1)).logits[0], expected)
    with pytest.raises(BackendError, match="position 41"):
        runner.step(replace(good, pos=good.pos + 1))


def test_reply_follows_the_logits() -> None:
    model = FakeModel(61)
    reply = model.reply(PROMPT[:5], 6)
    logits = model.expected_logits(PROMPT[:5] + reply)
    assert reply == logits[4:-1].argmax(1).tolist()
    assert len(set(reply)) > 1


def test_a_step_can_be_told_to_fail() -> None:
    streams, runner = started(FakeModel(61))
    runner.fail = 2
    runner.step(streams.batch([(0, [1])]))
    with pytest.raises(BackendError, match="step 2"):
        runner.step(streams.batch([(0, [1])]))
    assert len(runner.step(streams.batch([(0, [1])])).logits) == 1


def test_byte_tokenizer() -> None:
    tokenizer: Tokenizer = ByteTokenizer()
    text = "<s>Grüße</s> <s"
    assert tokenizer.encode(text) == [256, *"Grüße".encode(), 257, *b" <s"]
    assert tokenizer.encode(text, special=False) == list(text.encode())
    assert tokenizer.encode("a", bos=True) == [256, 97]
    assert tokenizer.decode(tokenizer.encode(text)) == "Grüße <s"
    assert tokenizer.decode(tokenizer.encode(text), special=True) == text
    assert tokenizer.decode([0xC3]) == "\ufffd"
    assert [tokenizer.piece(i) for i in (65, 10, 256, 257)] == ["A", "<0x0A>", "<s>", "</s>"]


def test_clock() -> None:
    clock = FakeClock()
    clock.sleep(1.5)
    clock.advance(1.0)
    assert (clock(), clock.slept) == (2.5, [1.5])
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1.0)
