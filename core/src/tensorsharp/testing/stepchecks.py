"""The bitwise contract as tests of a model on a backend: whatever surrounds a row, its logits are the same bits.

Each test compares with the whole prompt in one step, alone, on fresh state. State memory starts as NaN, and what is
given up becomes NaN again, so reading a row that does not belong to the sequence shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tensorsharp.errors import UnsupportedError
from tensorsharp.protocols.batch import F32
from tensorsharp.testing.running import Running, Subject

DRAFTS = (1, 3, 7)
"""Drafts that one step verifies, with as many rows of slack in the state."""


def assert_same(found: F32, expected: F32, what: str) -> None:
    """Bit for bit, NaN never. AssertionError names the first row that differs and by how much."""
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    wrong = np.flatnonzero(~(found == expected).all(axis=tuple(range(1, found.ndim))))
    if len(wrong):
        row = int(wrong[0])
        distance = float(np.abs(found[row] - expected[row]).max())
        raise AssertionError(f"{what}: {len(wrong)} of {len(found)} rows differ; row {row} by up to {distance:.3g}")


def require_bitwise(subject: Subject) -> None:
    """Skip where the backend itself says that it does not promise the contract for these weights."""
    promise = subject.backend.bitwise({subject.file.tensors[name].type_name for name in subject.model.weights()})
    if not promise.holds:
        pytest.skip(f"backend {subject.backend.name!r} does not promise it: {promise.reason}")


class StepChecks:
    """Needs a fixture `subject` (:class:`Subject`)."""

    def test_logits_are_finite_numbers(self, subject: Subject) -> None:
        tokens = subject.tokens()
        logits = subject.expected(tokens)
        assert logits.dtype == np.float32
        assert logits.shape == (len(tokens), subject.model.vocab_size)
        assert np.isfinite(logits).all()
        assert len({row.tobytes() for row in logits}) > len(tokens) // 2, "most rows have the same logits"

    @pytest.mark.parametrize("chunk", ["1", "3", "block-1", "block", "block+1"])
    def test_chunks_change_nothing(self, subject: Subject, chunk: str) -> None:
        require_bitwise(subject)
        block = subject.block
        size = {"1": 1, "3": 3, "block-1": block - 1, "block": block, "block+1": block + 1}[chunk]
        tokens = subject.tokens()
        with subject.running(seed=size) as running:
            assert_same(running.feed(1, tokens, size), subject.expected(tokens), f"chunks of {size}")

    @pytest.mark.parametrize("others", [1, 2, 5, 16])
    def test_other_sequences_change_nothing(self, subject: Subject, others: int) -> None:
        require_bitwise(subject)
        tokens = subject.tokens()
        place = others // 2
        with subject.running(count=others + 1, seed=others) as running:
            prompts = [subject.tokens(salt, 1 + (7 * salt) % 40) for salt in range(1, others + 1)]
            neighbours = [s for s in range(others + 1) if s != place]
            found: dict[int, list[F32]] = {s: [] for s in range(others + 1)}
            for start in range(0, len(tokens), 8):
                rows: list[tuple[int, Sequence[int]]] = [(place, tokens[start : start + 8])]
                for s, prompt in zip(neighbours, prompts, strict=True):
                    done = running.streams.done[s]
                    part = prompt[done : done + 1 + s % 3]
                    if part:
                        rows.insert(0 if s < place else len(rows), (s, part))
                logits = running.step(rows)
                first = 0
                for s, own in rows:
                    found[s].append(logits[first : first + len(own)])
                    first += len(own)
            assert_same(np.concatenate(found[place]), subject.expected(tokens), f"beside {others} other sequences")
            for s, prompt in list(zip(neighbours, prompts, strict=True))[:2]:
                done = running.streams.done[s]
                assert_same(np.concatenate(found[s]), subject.expected(prompt)[:done], f"sequence {s} of {others + 1}")

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_physical_blocks_change_nothing(self, subject: Subject, seed: int) -> None:
        require_bitwise(subject)
        tokens = subject.tokens()
        with subject.running(count=4, seed=seed) as running:
            running.feed(2, subject.tokens(9))
            running.streams.release(2)
            assert_same(running.feed(2, tokens, 20), subject.expected(tokens), f"blocks in order {seed}, used before")

    def test_a_copied_prefix_serves_another_sequence(self, subject: Subject) -> None:
        require_bitwise(subject)
        first, second = subject.tokens(0), subject.tokens(1)
        second[: subject.block] = first[: subject.block]
        with subject.running() as running:
            running.feed(0, first[: subject.block])
            running.streams.fork(0, 2)
            rest = slice(subject.block, None)
            logits = running.step([(2, second[rest]), (0, first[rest])])
            length = subject.length - subject.block
            assert_same(logits[:length], subject.expected(second)[rest], "after a copied prefix")
            assert_same(logits[length:], subject.expected(first)[rest], "after its prefix was copied")

    @pytest.mark.parametrize("drafts", DRAFTS)
    def test_verifying_drafts_is_taking_steps(self, subject: Subject, drafts: int) -> None:
        """k drafts in one step, of which some are right: rows up to the first wrong one equal single steps, and taking
        the rest back leaves no trace."""
        require_bitwise(subject)
        tokens = subject.tokens()
        expected = subject.expected(tokens)
        with subject.running(slack=drafts) as running:
            running.feed(1, tokens[:5])
            done, turn = 5, 0
            while done < len(tokens) - drafts:
                right = turn % (drafts + 1)
                guess = tokens[done : done + 1 + right]
                guess += [(t + 1) % subject.model.vocab_size for t in tokens[done + len(guess) : done + 1 + drafts]]
                logits = running.step([(0, [turn % subject.model.vocab_size]), (1, guess)], keep=False)
                running.streams.keep(0, 0)
                running.streams.keep(1, 1 + right)
                assert_same(logits[1 : 2 + right], expected[done : done + 1 + right], f"{right} of {drafts} drafts right")
                running.streams.evict()
                done, turn = done + 1 + right, turn + 1

    def test_state_that_was_written_out_comes_back(self, subject: Subject) -> None:
        require_bitwise(subject)
        tokens = subject.tokens()
        for cut in (subject.block, subject.block + 5):
            with subject.running() as running:
                running.feed(1, tokens[:cut])
                running.streams.fill(2, running.streams.spill(1))
                assert_same(running.feed(2, tokens[cut:]), subject.expected(tokens)[cut:], f"restored at {cut}")

    def test_padding_changes_nothing(self, subject: Subject) -> None:
        require_bitwise(subject)
        tokens = subject.tokens()
        with subject.running() as running:
            found = []
            for start in range(0, len(tokens), 13):
                batch = running.streams.batch([(0, tokens[start : start + 13])])
                padded = batch.padded(batch.rows + 5, 3, len(batch.wanted) + 2)
                found.append(running.runner.step(padded).logits[: batch.rows].copy())
            assert_same(np.concatenate(found), subject.expected(tokens), "with padding rows and sequences")

    def test_a_replayed_step_takes_everything_from_its_batch(self, subject: Subject) -> None:
        """The same number of rows, sequences and wanted rows with other tokens, positions, blocks and slots."""
        require_bitwise(subject)
        first, second = subject.tokens(0), subject.tokens(1)
        with subject.running(count=4) as running:
            found: dict[int, list[F32]] = {1: [], 3: []}
            for start in range(0, 40, 4):
                for stream, tokens, at in ((3, second, start), (1, first, start)):
                    logits = running.step([(stream, tokens[at : at + 4]), (0, [at])])
                    found[stream].append(logits[:4])
            assert_same(np.concatenate(found[1]), subject.expected(first)[:40], "one of two that share a signature")
            assert_same(np.concatenate(found[3]), subject.expected(second)[:40], "the other of two that share a signature")

    def test_only_the_rows_asked_for_come_back(self, subject: Subject) -> None:
        require_bitwise(subject)
        tokens = subject.tokens()
        expected = subject.expected(tokens)
        with subject.running() as running:
            assert len(running.step([(0, tokens[:20])], wanted="none")) == 0
            assert_same(running.step([(0, tokens[20:50])], wanted="last"), expected[49:50], "the last row only")
            assert_same(running.step([(0, tokens[50:])]), expected[50:], "all rows after steps without some")

    def test_two_runners_do_not_meet(self, subject: Subject) -> None:
        require_bitwise(subject)
        first, second = subject.tokens(0), subject.tokens(1)
        with subject.running(seed=1) as one, subject.running(seed=2) as other:
            found: list[tuple[Running, list[int], list[F32]]] = [(one, first, []), (other, second, [])]
            for start in range(0, len(first), 10):
                for running, tokens, logits in found:
                    logits.append(running.step([(0, tokens[start : start + 10])]))
            for _, tokens, logits in found:
                assert_same(np.concatenate(logits), subject.expected(tokens), "two runners in turn")

    def test_taps_are_published_for_every_row(self, subject: Subject) -> None:
        tokens, names = subject.tokens(), ["layer.0", f"layer.{subject.model.layers}"]
        with subject.running() as running, subject.running() as cut:
            whole = running.result([(0, tokens)], wanted="none", taps=names).taps
            parts = [
                {name: tap.copy() for name, tap in cut.result([(0, tokens[a : a + 9])], wanted="none", taps=names).taps.items()}
                for a in range(0, len(tokens), 9)
            ]
            for name in names:
                assert whole[name].shape == (len(tokens), subject.model.width)
                assert np.isfinite(whole[name]).all()
                if subject.backend.bitwise({info.type_name for info in subject.file.tensors.values()}).holds:
                    assert_same(np.concatenate([part[name] for part in parts]), whole[name], f"tap {name} in chunks")

    def test_a_tap_that_nobody_publishes_is_refused(self, subject: Subject) -> None:
        with subject.running() as running, pytest.raises(UnsupportedError, match="no-such-tap"):
            running.result([(0, subject.tokens(0, 3))], taps=["no-such-tap"])
