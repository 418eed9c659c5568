"""The bitwise contract on real models: every logit is the same whatever shares the batch, how the text was cut into
chunks, where its blocks lie and how many threads ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tensorsharp.protocols.batch import F32
from tests.driver import Driver
from tests.goldens.records import Float32
from tests.realmodels import REAL_MODELS, needs

ROWS = 512
FEW = 72
"""Rows of the everyday tests: more than two blocks and any chunk of theirs."""


class Case:
    """A model file, a text, and its logits computed one row at a time by one thread."""

    def __init__(self, key: str, rows: int) -> None:
        self.path: Path = needs(REAL_MODELS[key])
        self.text: list[int] = Float32.of(key).ids[:rows].tolist()
        with self.open(threads=1) as driver:
            assert driver.bitwise.holds, driver.bitwise.reason
            self.alone = driver.logits(self.text, chunk=1)

    def open(self, *, threads: int | None = None, sequences: int = 1, seed: int = 0) -> Driver:
        return Driver(self.path, backend="ggml", threads=threads, sequences=sequences, seed=seed)

    def same(self, begin: int, rows: F32) -> bool:
        return np.array_equal(rows, self.alone[begin : begin + len(rows)])


@pytest.fixture(scope="module")
def case() -> Iterator[Callable[[str, int], Case]]:
    """Makes a case, and keeps the last one: the logits of 512 rows are half a gigabyte.

    Tests therefore name the model in their innermost parameter, which varies slowest.
    """
    made: dict[tuple[str, int], Case] = {}

    def get(key: str, rows: int) -> Case:
        if (key, rows) not in made:
            made.clear()
            made[key, rows] = Case(key, rows)
        return made[key, rows]

    yield get
    made.clear()


def check_chunks(case: Case, driver: Driver, chunk: int) -> None:
    for begin in range(0, len(case.text), chunk):
        [rows] = driver.step([(0, case.text[begin : begin + chunk])])
        assert case.same(begin, rows), f"rows {begin} to {begin + len(rows) - 1} in chunks of {chunk}"


def check_batch(case: Case, sequences: int, chunk: int) -> None:
    """Stream 0 computes the text in chunks; the others begin at other places of a step and decode the same text."""
    with case.open(sequences=sequences, seed=sequences) as driver:
        for step, begin in enumerate(range(0, len(case.text), chunk)):
            others = [(s, [case.text[step]]) for s in range(1, sequences)]
            place = step % sequences
            given = [*others[:place], (0, case.text[begin : begin + chunk]), *others[place:]]
            for (stream, _), rows in zip(given, driver.step(given), strict=True):
                at = begin if stream == 0 else step
                assert case.same(at, rows), f"stream {stream} of {sequences}, row {at}"


@pytest.mark.parametrize("key", REAL_MODELS)
def test_chunks_blocks_and_threads(case: Callable[[str, int], Case], key: str) -> None:
    few = case(key, FEW)
    for seed, chunk in enumerate((3, 7, 32, FEW), start=1):
        with few.open(threads=1 + seed % 2, seed=seed) as driver:
            check_chunks(few, driver, chunk)


@pytest.mark.parametrize("key", REAL_MODELS)
def test_company_in_the_batch(case: Callable[[str, int], Case], key: str) -> None:
    check_batch(case(key, FEW), sequences=5, chunk=16)


@pytest.mark.heavy
@pytest.mark.parametrize("chunk", [1, 3, 7, 32, 64, 511, 512])
@pytest.mark.parametrize("key", REAL_MODELS)
def test_any_chunk(case: Callable[[str, int], Case], key: str, chunk: int) -> None:
    whole = case(key, ROWS)
    with whole.open(seed=chunk) as driver:
        check_chunks(whole, driver, chunk)


@pytest.mark.heavy
@pytest.mark.parametrize("sequences", range(1, 17))
@pytest.mark.parametrize("key", REAL_MODELS)
def test_any_number_of_sequences(case: Callable[[str, int], Case], key: str, sequences: int) -> None:
    check_batch(case(key, ROWS), sequences, chunk=32)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("key", REAL_MODELS)
def test_any_place_of_the_blocks(case: Callable[[str, int], Case], key: str, seed: int) -> None:
    whole = case(key, ROWS)
    with whole.open(sequences=4, seed=seed) as driver:
        check_chunks(whole, driver, 64)


@pytest.mark.heavy
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("key", REAL_MODELS)
def test_any_number_of_threads(case: Callable[[str, int], Case], key: str, threads: int) -> None:
    whole = case(key, ROWS)
    with whole.open(threads=threads) as driver:
        check_chunks(whole, driver, 64)
