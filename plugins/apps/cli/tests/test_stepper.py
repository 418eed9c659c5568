"""What `bench` drives: reading on and taking back what was written gives the logits of a sequence that only read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorsharp.engine.seats import Seats
from tensorsharp.engine.sizing import plan_state
from tensorsharp.testing.fakes import FakeModel, fake_engine_parts
from tensorsharp_app_cli import stepper as module
from tensorsharp_app_cli.stepper import Stepper

CONTEXT, WRITTEN, ROWS = 220, 70, 16

Make = Callable[..., tuple[FakeModel, Stepper]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """A stepper over state that starts as NaN, which computes at most 16 rows a step and has not one block to spare."""
    monkeypatch.setattr(module, "STEP_TOKENS", ROWS)

    def built(**options: object) -> tuple[FakeModel, Stepper]:
        model = FakeModel(vocab_size=50, **options)  # type: ignore[arg-type]
        rows = max(ROWS, WRITTEN)
        sizes = plan_state(model.layout(), context=CONTEXT, sequences=1, rows=rows, available=1 << 30)
        runner, store = fake_engine_parts(model, sizes)
        return model, Stepper(runner, store, Seats(model.layout(), sizes, CONTEXT, rows))

    return built


KINDS = [{}, {"window": 33}, {"ring": 5}, {"recurrent": True}, {"window": 40, "ring": 3, "recurrent": True}]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_reading_on_after_taking_back(make: Make, options: dict[str, object]) -> None:
    model, stepper = make(**options)
    ids = np.random.default_rng(0).integers(0, 50, 150).astype(np.int32)
    expected = model.expected_logits(ids.tolist())
    begin = 0
    for frontier in (1, 31, 40, 97, 150):
        logits = stepper.read(ids[begin:frontier])
        assert stepper.computed == frontier
        assert np.array_equal(logits, expected[frontier - 1])
        saved = stepper.save()
        stepper.write(logits, WRITTEN, ())
        assert stepper.computed == frontier + WRITTEN
        stepper.restore(saved)
        assert stepper.computed == frontier
        begin = frontier


def test_writing_is_greedy(make: Make) -> None:
    model, stepper = make()
    prompt = [3, 1, 4, 1, 5]
    logits = stepper.write(stepper.read(np.array(prompt, np.int32)), 9, ())
    assert np.array_equal(logits, model.expected_logits(prompt + model.reply(prompt, 9))[-1])


def test_excluded_tokens_are_never_written(make: Make) -> None:
    model, stepper = make()
    prompt = [3, 1, 4, 1, 5]
    best = model.reply(prompt, 1)[0]
    last = model.expected_logits(prompt)[-1]
    second = int(np.argsort(-last)[1])
    logits = stepper.write(stepper.read(np.array(prompt, np.int32)), 1, {best})
    assert np.array_equal(logits, model.expected_logits([*prompt, second])[-1])


def test_reset_begins_anew(make: Make) -> None:
    model, stepper = make(window=33, ring=5, recurrent=True)
    stepper.write(stepper.read(np.arange(40, dtype=np.int32)), 3, ())
    stepper.reset()
    assert stepper.computed == 0
    assert np.array_equal(stepper.read(np.array([7, 8], np.int32)), model.expected_logits([7, 8])[-1])
