"""The conformance kit for model plugins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from tensorsharp.errors import ModelError
from tensorsharp.ops import OUTPUT
from tensorsharp.protocols.layout import Format, Paged
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.testing.memoryfile import AlteredFile
from tensorsharp.testing.plugincheck import PluginChecks
from tensorsharp.testing.recording import tensors_read
from tensorsharp.testing.running import Subject, available_backends, open_backend
from tensorsharp.testing.stepchecks import DRAFTS, StepChecks
from tensorsharp.testing.tinygguf import tiny, write_tiny
from tensorsharp.weights.gguf import GGUFFile, open_gguf


class ModelConformance(PluginChecks, StepChecks):
    """Everything a model family promises, on a small checkpoint and on every backend that can run here.

    Write a class with `plugin`, the architecture's name in GGUF files. `tiny_file` may be overridden to write the
    checkpoint (for an architecture that `tensorsharp.testing.tinygguf` does not know); it should exceed its windows
    and strides within 90 tokens. agreement: largest difference from the reference, relative to the largest logit.
    """

    kind: ClassVar[str] = "model"
    agreement: ClassVar[float] = 1e-4

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "backend_name" in metafunc.fixturenames:
            metafunc.parametrize("backend_name", available_backends())

    @pytest.fixture
    def tiny_file(self, tmp_path: Path) -> Path:
        """A small checkpoint of the architecture."""
        return write_tiny(tmp_path / "tiny.gguf", tiny(self.plugin))

    @pytest.fixture
    def opened(self, tiny_file: Path) -> Iterator[GGUFFile]:
        with open_gguf(tiny_file) as file:
            yield file

    @pytest.fixture
    def subject(self, opened: GGUFFile, backend_name: str) -> Iterator[Subject]:
        found = Subject(opened, self.from_file(opened), open_backend(backend_name))
        yield found
        found.close()

    @classmethod
    def from_file(cls, file: Any) -> IBatchedPagedModel:
        return cast("IBatchedPagedModel", cls.implementation().from_file(file))

    def test_the_file_is_understood(self, opened: GGUFFile) -> None:
        model = self.from_file(opened)
        assert model.architecture == opened.architecture == self.plugin
        assert model.context_length == opened.metadata[f"{self.plugin}.context_length"]
        assert min(model.vocab_size, model.layers, model.width) >= 1

    @pytest.mark.parametrize("fmt", ["f16", "bf16", "f32"])
    def test_the_layout_follows_from_the_configuration(self, opened: GGUFFile, fmt: Format) -> None:
        one, two = self.from_file(opened), self.from_file(opened)
        assert one.layout(fmt) == two.layout(fmt) == one.layout(fmt)
        assert {kind.format for kind in one.layout(fmt).values() if isinstance(kind, Paged)} <= {fmt, "f32"}

    def test_another_architecture_is_refused(self, opened: GGUFFile) -> None:
        with pytest.raises(ModelError, match="no-such-architecture"):
            self.from_file(AlteredFile(opened, architecture="no-such-architecture"))

    def test_a_missing_tensor_is_named(self, opened: GGUFFile) -> None:
        """Without a tensor the file is refused by the tensor's name, or the model does not ask for it."""
        for name in sorted(self.from_file(opened).weights()):
            refusal, asked = self._without(opened, name)
            assert name in refusal or not refusal, f"the refusal does not name {name}: {refusal}"
            assert name not in asked, f"{name} is missing, and the model asks for it all the same"

    def _without(self, opened: GGUFFile, name: str) -> tuple[str, frozenset[str]]:
        """The sentence of the refusal, or the tensors that the model asks for instead."""
        try:
            return "", self.from_file(AlteredFile(opened, without=frozenset({name}))).weights()
        except ModelError as error:
            return str(error), frozenset()

    def test_the_tensors_declared_are_the_tensors_read(self, opened: GGUFFile) -> None:
        model = self.from_file(opened)
        declared = set(model.weights())
        read = tensors_read(model, opened)
        assert declared >= read, f"read but not declared: {sorted(read - declared)}"
        # Frequency factors become constants of the rotary table.
        unread = {name for name in declared - read if not name.startswith("rope_")}
        assert not unread, f"declared but never read: {sorted(unread)}"

    @pytest.mark.capability("truncate")
    @pytest.mark.parametrize("drafts", DRAFTS)
    def test_verifying_drafts_is_taking_steps(self, subject: Subject, drafts: int) -> None:
        super().test_verifying_drafts_is_taking_steps(subject, drafts)

    @pytest.mark.capability("embedding")
    def test_the_rows_that_logits_are_made_from(self, subject: Subject) -> None:
        """A row for each that is wanted, the same alone and in a batch, and where logits differ they differ too."""
        tokens = subject.tokens()
        with subject.running() as running:
            batch = running.result([(0, tokens), (1, tokens[:5]), (2, tokens[:40])], wanted="last", taps=(OUTPUT,))
            together, logits = batch.taps[OUTPUT].copy(), batch.logits.copy()
        assert together.shape == (3, subject.model.width)
        assert np.isfinite(together).all()
        assert len(np.unique(together, axis=0)) == len(np.unique(logits, axis=0)) == 3
        for stream, length in enumerate((len(tokens), 5, 40)):
            with subject.running() as running:
                alone = running.result([(0, tokens[:length])], wanted="last", taps=(OUTPUT,)).taps[OUTPUT]
                assert np.array_equal(alone[0], together[stream])

    def test_it_agrees_with_the_reference(self, subject: Subject) -> None:
        if subject.backend.name == "reference":
            pytest.skip("it is the reference")
        reference = Subject(subject.file, subject.model, open_backend("reference"), "f32")
        tokens = subject.tokens()
        with subject.running(kv_format="f32") as running:
            found = running.feed(0, tokens, 30)
        expected = reference.expected(tokens)
        bound = self.agreement * float(np.abs(expected).max())
        assert float(np.abs(found - expected).max()) <= bound
        reference.close()
