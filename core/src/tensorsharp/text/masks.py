"""Token masks by llguidance, over any tokenizer's own tokens: it gets their bytes and needs no other library.

Tokens are taken as they come: nothing is forced, so a mask depends on the bytes of the reply alone, and never on how a tokenizer
would have cut them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from tensorsharp.errors import BackendError, RequestError, UnsupportedError
from tensorsharp.protocols.constraint import Mask
from tensorsharp.protocols.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

_BYTES: Final = 256
_LIMITS: Final = {
    "max_lexer_states": 50_000,
    "max_items_in_row": 20_000,
    "step_max_items": 2_000_000,
    "verbose_errors": False,
}
"""A state takes one to two kilobytes. An optional property is four items of a row. 20,000 items of a step are a millisecond; a
grammar of single characters over a large vocabulary takes many. The other limits are llguidance's own."""
_NO_FORCING: Final = '\n%llguidance {"no_forcing": true}\n'


class TokenTrie:
    """The tokens of a vocabulary, as llguidance wants them. Immutable. texts: the bytes of each, a control token's own name.

    Behind the vocabulary come one token for every byte, so that a part of a token can be taken too.
    UnsupportedError if llguidance is not installed, or the model file has no vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        llguidance = _llguidance()
        self.size = tokenizer.vocab_size
        self.texts = [tokenizer.bytes_of(token) for token in range(self.size)]
        special = [token for token, text in enumerate(self.texts) if not text]
        for token in special:
            self.texts[token] = tokenizer.piece(token).encode()
        self._made = llguidance.LLTokenizer(_Vocabulary(self.texts, special), slices=llguidance.LLTokenizer.json_slices())
        self._limits = llguidance.LLParserLimits(**_LIMITS)
        self._matcher = llguidance.LLMatcher

    def compile(self, lark: str) -> GuidedGrammar:
        """RequestError, in llguidance's words, for a grammar that it refuses."""
        matcher = self._matcher(self._made, lark + _NO_FORCING, log_level=0, limits=self._limits)
        if matcher.is_error():
            _refuse(f"The grammar is refused: {complaint(matcher.get_error())}.")
        try:
            return GuidedGrammar(matcher, self.size)
        except BackendError:
            _refuse("The grammar allows no text but the empty one, none that the vocabulary can write, or too many at once.")

    def refusal(self, lark: str) -> str:
        """What llguidance has against a grammar; empty if nothing."""
        wrong, messages = self._matcher.validate_grammar_with_warnings(lark, self._made, limits=self._limits)
        return complaint(messages[0]) if wrong else ""


class GuidedGrammar:
    """A :class:`~tensorsharp.protocols.constraint.Grammar` that llguidance compiled. BackendError if no token begins it."""

    def __init__(self, matcher: LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._size = size
        # every reply needs it, and it is where most of the lexer is built
        self._first = GuidedMatcher(matcher, size, None).mask()
        self._first.flags.writeable = False
        if not self._first.any():
            raise BackendError("The grammar has no beginning.")

    def start(self) -> GuidedMatcher:
        return GuidedMatcher(self._matcher.deep_copy(), self._size, self._first)


class GuidedMatcher:
    """A :class:`~tensorsharp.protocols.constraint.Matcher`. BackendError once the grammar goes over llguidance's limits.

    first: the mask of the beginning, if it is known.
    """

    def __init__(self, matcher: LLMatcher, size: int, first: Mask | None) -> None:
        self._matcher = matcher
        self._size = size
        self._first = first
        self._taken = 0

    def mask(self) -> Mask:
        """[size] bool."""
        if self._taken == 0 and self._first is not None:
            return self._first
        if self.complete:
            return np.zeros(self._size, np.bool_)
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(packed, count=self._size, bitorder="little").view(np.bool_)

    @property
    def accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_stopped())

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()
        self._taken += 1

    def accept_bytes(self, text: bytes) -> int:
        """Take the bytes one by one while they fit: how many did. Each counts as a token."""
        for number, byte in enumerate(text):
            if not self.allows(self._size + byte):
                return number
            self.accept(self._size + byte)
        return len(text)

    def allows(self, token: int) -> bool:
        """What the mask says of one token, for less."""
        return not self.complete and bool(self._matcher.validate_tokens([token]))

    def rollback(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)
            self._check()
            self._taken -= count

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BackendError(f"The constraint cannot be followed any further: {complaint(self._matcher.get_error())}.")


class _Vocabulary:
    """What llguidance reads a vocabulary from (its TokenizerWrapper). It adds an end token of its own as the last one."""

    is_tokenizer_wrapper = True
    eos_token_id = None
    bos_token_id = None

    def __init__(self, texts: list[bytes], special: list[int]) -> None:
        self.tokens = [*texts, *(bytes([byte]) for byte in range(_BYTES))]
        self.special_token_ids = special

    def __call__(self, text: str) -> NoReturn:
        raise BackendError("A grammar asked for a tokenizer, though nothing is forced.")


def quoted(text: str) -> str:
    """A text as a string of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def regular(regex: str) -> str:
    """A regular expression (Rust's syntax; `\\d` is 0-9) as part of a Lark grammar. It describes the whole text."""
    return f"/{_llguidance().regex_to_lark(regex, 'd')}/"


def complaint(message: str) -> str:
    """What llguidance has to say, in one sentence, without its quotation of the grammar."""
    first, *rest = message.strip().split("\n")
    inner = [line.removeprefix("error: ") for line in rest if line.startswith("error: ")]
    return " ".join([first, *inner]).removesuffix(".")


def _refuse(message: str) -> NoReturn:
    raise RequestError(message, param="constraint", code="invalid_grammar")


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UnsupportedError(
            "Constrained replies need the package llguidance, which is not installed.",
            param="constraint",
            code="missing_dependency",
            hint="Install it: pip install 'tensorsharp-core[constrain]'.",
        ) from None
    return llguidance
