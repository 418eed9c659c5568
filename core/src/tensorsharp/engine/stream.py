"""From tokens to text that can be shown: whole characters only, and nothing that may become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tensorsharp.errors import RequestError
from tensorsharp.protocols.tokenizer import Tokenizer


class TextStream:
    """The text of one reply, token by token.

    A reply stands in the middle of a text, after its prompt, so a token counts with all its bytes (`bytes_of`): a space at the
    start of the reply stays, and control tokens give nothing. The pieces joined are the UTF-8 of all bytes, invalid ones
    as U+FFFD, cut before the stop string that ends first; of those that end together the longest counts. This depends on
    the text alone, not on how it falls into tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if not all(stop):
            raise RequestError(
                "stop has an empty string; expected strings that are not empty.", param="stop", code="invalid_value"
            )
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers = [_Matcher(text) for text in sorted(set(stop), key=len, reverse=True)]
        self._held = ""
        self._stopped: str | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None. From then on tokens give no text."""
        return self._stopped

    def push(self, token: int) -> str:
        """The text that is certain after one more token."""
        if self._stopped is not None:
            return ""
        return self._take(self._decoder.decode(self._tokenizer.bytes_of(token)))

    def finish(self) -> str:
        """What was held back, once no token follows; a character that never became whole is U+FFFD."""
        if self._stopped is not None:
            return ""
        shown = self._take(self._decoder.decode(b"", True))
        rest, self._held = self._held, ""
        return shown + rest

    def _take(self, text: str) -> str:
        """Text that cannot be part of a stop string any more."""
        known = len(self._held)
        self._held += text
        if not self._matchers:
            shown, self._held = self._held, ""
            return shown
        for end, char in enumerate(text, known + 1):
            # Longest first, so that the longest of those that end here is found.
            for matcher in self._matchers:
                if matcher.feed(char):
                    self._stopped = matcher.text
                    shown, self._held = self._held[: end - len(matcher.text)], ""
                    return shown
        keep = max(matcher.matched for matcher in self._matchers)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown


class _Matcher:
    """Follows one string through a text, one character at a time, in constant time on average (Knuth, Morris, Pratt 1977).

    matched: how many of its first characters the text ends with.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = [0, 0]
        for char in text[1:]:
            self._shorter.append(self._advance(self._shorter[-1], char))

    def feed(self, char: str) -> bool:
        """True if the text now ends with the whole string."""
        self.matched = self._advance(self.matched, char)
        return self.matched == len(self.text)

    def _advance(self, matched: int, char: str) -> int:
        while matched and self.text[matched] != char:
            matched = self._shorter[matched]
        return matched + (self.text[matched] == char)
