"""From tokens to text that can be shown: whole characters only, and nothing that may become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from tensorsharp.errors import RequestError
from tensorsharp.protocols.tokenizer import Tokenizer


class TextStream:
    """The text of one reply, token by token.

    A reply stands in the middle of a text, after its prompt, so a token counts with all its bytes (`bytes_of`): a space at the
    start of the reply stays, and control tokens give nothing, but for those in `shown` (token -> its text). The pieces joined
    are the UTF-8 of all bytes, invalid ones as U+FFFD, cut before the stop string that ends first (:class:`StopStrings`).
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), shown: Mapping[int, str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = StopStrings(stop)
        self._shown = {token: text.encode() for token, text in (shown or {}).items()}

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None. From then on tokens give no text."""
        return self._stop.found

    def push(self, token: int) -> str:
        """The text that is certain after one more token."""
        shown = self._shown.get(token)
        return self._stop.push(self._decoder.decode(self._tokenizer.bytes_of(token) if shown is None else shown))

    def finish(self) -> str:
        """What was held back, once no token follows; a character that never became whole is U+FFFD."""
        return self._stop.push(self._decoder.decode(b"", True)) + self._stop.release()


class StopStrings:
    """Lets a text through up to the stop string that ends first; of those that end together the longest counts.

    What comes through depends on the text alone, not on how it falls into pieces.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if not all(stop):
            raise RequestError(
                "stop has an empty string; expected strings that are not empty.", param="stop", code="invalid_value"
            )
        self._matchers = [_Matcher(text) for text in sorted(set(stop), key=len, reverse=True)]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that cannot be part of a stop string any more; nothing once one was found."""
        if self.found is not None:
            return ""
        known = len(self._held)
        self._held += text
        if not self._matchers:
            shown, self._held = self._held, ""
            return shown
        for end, char in enumerate(text, known + 1):
            # Longest first, so that the longest of those that end here is found.
            for matcher in self._matchers:
                if matcher.feed(char):
                    self.found = matcher.text
                    shown, self._held = self._held[: end - len(matcher.text)], ""
                    return shown
        keep = max(matcher.matched for matcher in self._matchers)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def release(self) -> str:
        """What was held back; a stop string that has begun is forgotten."""
        rest, self._held = self._held, ""
        for matcher in self._matchers:
            matcher.matched = 0
        return rest


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
