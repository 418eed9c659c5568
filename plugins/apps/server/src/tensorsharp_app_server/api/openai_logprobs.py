"""Log-probabilities as the two kinds of completion have them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from tensorsharp.types import TokenEvent
from tensorsharp_app_server.host import Served


def token_text(served: Served, token: int) -> str:
    """A token's own text; bytes that are no whole character are U+FFFD, a control token has its name."""
    raw = served.llm.tokenizer.bytes_of(token)
    return raw.decode("utf-8", "replace") if raw else served.llm.tokenizer.piece(token)


def chat_entries(served: Served, tokens: Iterable[TokenEvent]) -> list[dict[str, Any]]:
    """Entries of `logprobs.content` of a chat completion; the bytes of all tokens joined are the reply's text in UTF-8."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        raw = list(served.llm.tokenizer.bytes_of(token))
        return {"token": token_text(served, token), "logprob": logprob, "bytes": raw}

    return [entry(t.token, t.logprob) | {"top_logprobs": [entry(o.token, o.logprob) for o in t.top]} for t in tokens]


class TextLogprobs:
    """`logprobs` of a completion of a text, for its tokens in order."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def entries(self, tokens: Iterable[TokenEvent]) -> dict[str, Any]:
        """Columns: tokens, their log-probabilities, alternatives (text -> log-probability), and where each begins in the text.

        The first token of a text has no log-probability; control tokens have no width.
        """
        columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for t in tokens:
            columns["tokens"].append(token_text(self._served, t.token))
            columns["token_logprobs"].append(t.logprob)
            alternatives = {token_text(self._served, o.token): o.logprob for o in t.top}
            columns["top_logprobs"].append(None if t.logprob is None else alternatives)
            columns["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(self._served.llm.tokenizer.bytes_of(t.token)))
        return columns
