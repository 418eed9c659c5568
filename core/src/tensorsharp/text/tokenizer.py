"""A model file's own tokenizer, with the token ids that llama.cpp gives.

Pure Python and numpy on the vocabulary as it lies in the file. Nothing is derived from it or cached on disk, so it is ready
within tens of milliseconds for 262k tokens, the first time as well. Libraries that encode faster want vocabulary and
merges converted and loaded first, which takes longer than most prompts do here; what is encoded is remembered word by word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, NoReturn, Protocol

from tensorsharp.errors import ModelError, UnsupportedError
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.bpe import BPE, BYTES, SPACE_MARK
from tensorsharp.text.fewest import FewestTokens
from tensorsharp.text.fragments import WHITE_SPACE, SpecialTokens
from tensorsharp.text.pretokenizers import PRETOKENIZERS, pretokenizer
from tensorsharp.text.roles import Roles, read_roles
from tensorsharp.text.spm import SPM
from tensorsharp.text.strings import Strings, read_strings
from tensorsharp.text.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary

_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_BYTE_TOKEN: Final = re.compile(rb"<0x([0-9A-Fa-f]{2})>")
_SPM_DEFAULTS: Final = {"bos": 1, "eos": 2, "unknown": 0}
_READ_MODELS: Final = ("gpt2", "gemma4", "llama", "none", "no_vocab")


def load_tokenizer(file: ModelFile) -> Tokenizer:
    """The tokenizer of a model file, from its `tokenizer.ggml.*` metadata.

    A file without a vocabulary (`tokenizer.ggml.model` is `none`) gives one that knows its size and no text. Raises
    ModelError if the metadata is missing or contradicts itself, UnsupportedError for a kind that is not read.
    """
    model = file.metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ModelError(f"{file.path}: has no 'tokenizer.ggml.model'; expected the kind of tokenizer, for example 'gpt2'.")
    if model in ("none", "no_vocab"):
        return NoVocabulary(file.path, _vocabulary_size(file))
    if model in ("gpt2", "gemma4"):
        return _load_bpe(file, "gemma4" if model == "gemma4" else file.metadata.get("tokenizer.ggml.pre"))
    if model == "llama":
        return _load_spm(file)
    raise UnsupportedError(
        f"{file.path}: 'tokenizer.ggml.model' is {model!r:.100}, which is not read; expected one of {', '.join(_READ_MODELS)}.",
        param="tokenizer.ggml.model",
        hint="Prompts can still be given as token ids by a program that tokenizes itself.",
    )


def _load_bpe(file: ModelFile, pre: Any) -> Tokenizer:
    recipe = pretokenizer(pre, file.path)
    vocabulary = Vocabulary(file)
    merges = read_strings(file, "tokenizer.ggml.merges")
    if merges is None:
        if recipe is not PRETOKENIZERS["kimi-k2"]:
            raise ModelError(f"{file.path}: has no 'tokenizer.ggml.merges'; expected the merges of its BPE vocabulary.")
        merges = Strings.of([])
    roles = read_roles(vocabulary, file.metadata, {})
    add_bos = _flag(file, "tokenizer.ggml.add_bos_token", recipe.add_bos) or recipe.newline_runs
    model = BPE(vocabulary, merges, recipe)
    return VocabularyTokenizer(file, vocabulary, roles, model, add_bos=add_bos, marks_spaces=recipe.raw)


def _load_spm(file: ModelFile) -> Tokenizer:
    vocabulary = Vocabulary(file)
    roles = read_roles(vocabulary, file.metadata, _SPM_DEFAULTS)
    model = SPM(vocabulary, vocabulary.scores(file.metadata), roles.unknown or 0)
    return VocabularyTokenizer(
        file,
        vocabulary,
        roles,
        model,
        add_bos=_flag(file, "tokenizer.ggml.add_bos_token", True),
        marks_spaces=True,
        space_prefix=_flag(file, "tokenizer.ggml.add_space_prefix", True),
    )


class Encoder(Protocol):
    """What turns a text without special tokens into ids."""

    def encode(self, text: str) -> list[int]: ...

    def spelled(self, text: str) -> bytes: ...

    def left_out(self) -> bytes: ...


class VocabularyTokenizer:
    """A :class:`~tensorsharp.protocols.tokenizer.Tokenizer` over a vocabulary. Made by :func:`load_tokenizer`.

    marks_spaces: the vocabulary writes U+2581 for a space. space_prefix: a space is put before a text that begins or follows
    a special token, and taken away when a text is decoded from its first token on.
    """

    def __init__(
        self,
        file: ModelFile,
        vocabulary: Vocabulary,
        roles: Roles,
        model: Encoder,
        *,
        add_bos: bool,
        marks_spaces: bool,
        space_prefix: bool = False,
    ) -> None:
        self.path = file.path
        self.add_bos = add_bos
        self.add_eos = _flag(file, "tokenizer.ggml.add_eos_token", False)
        self.space_prefix = space_prefix
        self._vocabulary = vocabulary
        self._roles = roles
        self._model = model
        self._marks_spaces = marks_spaces
        name = file.metadata.get("general.name")
        self._is_phi3 = isinstance(name, str) and re.search("phi-?3", name.lower()) is not None
        for role, wanted, token in (("bos", self.add_bos, roles.bos), ("eos", self.add_eos, roles.eos)):
            if wanted and token is None:
                raise ModelError(
                    f"{file.path}: 'tokenizer.ggml.add_{role}_token' is set, but there is no 'tokenizer.ggml.{role}_token_id'."
                )

    @cached_property
    def _all_special(self) -> SpecialTokens:
        return self._special_tokens(self._vocabulary.of_kind(UNKNOWN | CONTROL | USER_DEFINED))

    @cached_property
    def _user_defined(self) -> SpecialTokens:
        return self._special_tokens(self._vocabulary.of_kind(USER_DEFINED, but=UNKNOWN | CONTROL))

    def _special_tokens(self, tokens: list[int]) -> SpecialTokens:
        found: list[tuple[str, int]] = []
        for token in tokens:
            try:
                found.append((self._vocabulary.strings[token].decode(), token))
            except UnicodeDecodeError:
                continue
        # Phi-3 files do not say that white space after their special tokens is dropped; llama.cpp knows them by name.
        strips = [token for text, token in found if self._is_phi3 and text not in ("<unk>", "<s>", "<|endoftext|>")]
        return SpecialTokens(found, frozenset(strips))

    @cached_property
    def _fewest(self) -> FewestTokens:
        model, strings = self._model, self._vocabulary.strings
        texts = [strings, Strings.of([model.spelled(text) for text in self._all_special.texts])]
        if self.space_prefix:
            mark = model.spelled(" ")
            texts.append(Strings.of([text.removeprefix(mark) for text in strings.tolist() if text.startswith(mark)]))
        swallowed = model.spelled(WHITE_SPACE) if self._is_phi3 else b""
        return FewestTokens(texts, lambda text: model.spelled(_without_surrogates(text)), model.left_out() + swallowed)

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    @property
    def bos(self) -> int | None:
        return self._roles.bos

    @property
    def eos(self) -> int | None:
        return self._roles.eos

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._roles.end_tokens

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        """Ids of a text, those of llama.cpp's `llama_tokenize`.

        bos: None adds what the file says, at the start and at the end; True adds bos alone; False adds nothing. Lone
        surrogates, which are no text, count as U+FFFD.
        """
        out: list[int] = []
        if self.add_bos if bos is None else bos:
            if self._roles.bos is None:
                raise UnsupportedError(f"{self.path}: the vocabulary has no token for the beginning of a text.", param="bos")
            out.append(self._roles.bos)
        opens = True
        for fragment in (self._all_special if special else self._user_defined).split(_without_surrogates(text)):
            if isinstance(fragment, int):
                out.append(fragment)
                opens = True
            else:
                out += self._model.encode(f" {fragment}" if self.space_prefix and opens else fragment)
                opens = False
        if bos is None and self.add_eos and self._roles.eos is not None:
            out.append(self._roles.eos)
        return out

    def at_least(self, text: str, most: int) -> int:
        """A number of tokens that `encode` gives or exceeds, worked out in a few milliseconds; at most `most` + 1."""
        return self._fewest.count(text, most)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids: what `llama_detokenize` gives before it tidies spaces around punctuation, which would change text.

        If the vocabulary puts a space before a text, one space at the very start is dropped again.
        """
        pieces = [self._shown(token) if special else self.bytes_of(token) for token in ids]
        if self.space_prefix and pieces and pieces[0].startswith(b" "):
            pieces[0] = pieces[0][1:]
        return b"".join(pieces).decode("utf-8", "replace")

    def bytes_of(self, token: int) -> bytes:
        """The bytes one token stands for in the middle of a text; none for control and unknown tokens."""
        self._vocabulary.check(token)
        if self._vocabulary.flags[token] & (CONTROL | UNKNOWN):
            return b""
        return self._shown(token)

    def piece(self, token: int) -> str:
        """The token's text in the vocabulary, as the file writes it; bytes that are not UTF-8 become U+FFFD."""
        self._vocabulary.check(token)
        return self._vocabulary.strings[token].decode("utf-8", "replace")

    def _shown(self, token: int) -> bytes:
        self._vocabulary.check(token)
        flags, text = self._vocabulary.flags[token], self._vocabulary.strings[token]
        if flags & (CONTROL | UNKNOWN | USER_DEFINED):
            return text
        if flags & NORMAL:
            return text.replace(SPACE_MARK.encode(), b" ") if self._marks_spaces else _from_letters(text)
        if flags & BYTE:
            match = _BYTE_TOKEN.fullmatch(text)
            return bytes((int(match[1], 16),)) if match else b""
        return b""


class NoVocabulary:
    """The tokenizer of a file that has no vocabulary: for use with token ids; whatever needs text is refused."""

    bos: int | None = None
    eos: int | None = None
    end_tokens: frozenset[int] = frozenset()

    def __init__(self, path: str, vocab_size: int) -> None:
        self.path = path
        self.vocab_size = vocab_size

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        self._refuse()

    def at_least(self, text: str, most: int) -> int:
        self._refuse()

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        self._refuse()

    def bytes_of(self, token: int) -> bytes:
        self._refuse()

    def piece(self, token: int) -> str:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"{self.path}: the file has no vocabulary, so there is no text; give and take token ids instead.", param="text"
        )


def _without_surrogates(text: str) -> str:
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _from_letters(text: bytes) -> bytes:
    """Bytes of a byte-level token. A character that stands for no byte, which no sound vocabulary has, stands for itself."""
    return b"".join(bytes((BYTES[char],)) if char in BYTES else char.encode() for char in text.decode("utf-8", "replace"))


def _flag(file: ModelFile, key: str, default: bool) -> bool:
    value = file.metadata.get(key, default)
    if not isinstance(value, bool):
        raise ModelError(f"{file.path}: '{key}' is {value!r:.100}; expected true or false.")
    return value


def _vocabulary_size(file: ModelFile) -> int:
    size = file.metadata.get(f"{file.architecture}.vocab_size")
    if isinstance(size, int):
        return size
    embedding = file.tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding else 0
