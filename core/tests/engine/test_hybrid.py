"""A model with a convolution, a recurrence, full, windowed and compressed attention, on every backend that is installed:
replies after a prefix that was found, shared or preempted are those of a cold engine."""

from __future__ import annotations

import pytest
from hybrid_rig import BACKENDS, BLOCK, TOGETHER, TOKENS, WAYS, cold, opened, run, text


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_found_alone_and_among_others(way: str, backend: str) -> None:
    prompts = [text(n, n) for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1)]
    want = cold(prompts, way, backend)
    whole = [(len(ids) - 1) // BLOCK * BLOCK for ids in prompts]
    with opened(backend) as engine:
        assert [run(engine, [ids], way)[0] for ids in prompts] == [(said, 0) for said in want]
        assert [run(engine, [ids], way)[0] for ids in prompts] == list(zip(want, whole, strict=True))
        assert run(engine, prompts, way) == list(zip(want, whole, strict=True))


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_computed_once_for_all_who_arrive_together(way: str, backend: str) -> None:
    prompts = [text(70) + text(9, i + 1) for i in range(TOGETHER)]
    with opened(backend) as engine:
        got = run(engine, prompts, way)
    assert [said for said, _ in got] == cold(prompts, way, backend)
    assert [cached for _, cached in got] == [0] + [64] * (TOGETHER - 1)


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_the_next_turn(way: str, backend: str) -> None:
    ids, known = text(50), 0
    with opened(backend) as engine:
        for turn in range(3):
            [(said, cached)] = run(engine, [ids], way)
            assert [said] == cold([ids], way, backend)
            # found are the full blocks of the last turn, whose newest token was not computed
            assert cached == known // BLOCK * BLOCK
            known = len(ids) + TOKENS - 1
            ids += tuple(e.token for e in said) + text(12, turn)


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_that_is_changed_in_the_middle(way: str, backend: str) -> None:
    whole, starts = text(215), (20, 135, 200, 208)
    changed = text(140) + text(20, 1)
    with opened(backend, context=256) as engine:
        [(said, cached), (again, found)] = run(engine, [whole], way, starts) + run(engine, [changed], way, (20, 135, 152))
    assert [said, again] == cold([whole, changed], way, backend, 256)
    assert (cached, found) == (0, 128), "where the message starts that is another one"


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_preempted_and_resumed(way: str, backend: str) -> None:
    prompts = [text(62, i) for i in range(TOGETHER)]
    with opened(backend, blocks=6) as engine:
        got = run(engine, prompts, way)
        assert engine.stats().preemptions > 0
    assert [said for said, _ in got] == cold(prompts, way, backend)
