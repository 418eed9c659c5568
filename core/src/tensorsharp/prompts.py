"""From rendered conversations to what the engine takes: token ids, and where messages start in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from struct import pack
from typing import TYPE_CHECKING, Any

from tensorsharp.engine.checks import check_length
from tensorsharp.errors import RequestError
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.alignment import shown, tokens_before
from tensorsharp.text.replies import Replies, Said

if TYPE_CHECKING:
    from tensorsharp.text.rendering import Rendered

Keep = Callable[[str, Sequence[int]], None]
"""Takes the text and the ids of a whole reply."""

_LONGEST_MARK = 256
"""Characters in which a control token that ends a reply is looked for."""
_CHECKED = 4
"""Characters a token that fits, from which on a text is looked at before it is tokenized: many texts with less do fit."""


@dataclass(frozen=True, slots=True)
class History:
    """Said of a prompt in which remembered ids stand: of how many replies, and the SHA-256 of all ids (little-endian uint32)."""

    replies: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it.

    boundaries: offsets into `ids`, ascending: the end of what other conversations share, 0 for none, where the contents of
    messages begin, and where the reply does.
    history: None where the ids follow from the text alone. lost: tokens of the last reply whose state cannot be found, as
    re-tokenising cut its text otherwise than the model did. keep: what remembers the reply.
    """

    ids: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    history: History | None = None
    lost: int = 0
    keep: Keep | None = field(default=None, repr=False, compare=False)


class Prompts:
    """Makes the prompts of one model. Thread-safe.

    history_ids: whether remembered ids replace what re-tokenising past replies gives, unless a request says otherwise.
    boundaries: whether anybody needs them. limit: positions of a prompt and its reply. seam_tokens: what was lost to all
    prompts that were asked.
    """

    def __init__(self, tokenizer: Tokenizer, *, history_ids: bool, boundaries: Callable[[], bool], limit: int) -> None:
        self.seam_tokens = 0
        self._tokenizer = tokenizer
        self._history_ids = history_ids
        self._boundaries = boundaries
        self._limit = limit
        self._replies = Replies()
        self._lock = threading.Lock()

    def make(self, rendered: Rendered, *, scope: str | None = None, history_ids: Any = None) -> Prompt:
        """The prompt of a conversation. history_ids: None for the default.

        RequestError if that is no truth value, or if the text is far too long.
        """
        if history_ids is not None and not isinstance(history_ids, bool):
            raise RequestError(
                f"history_ids is {history_ids!r:.100}; expected true or false.", param="history_ids", code="invalid_value"
            )
        self.check(rendered.text)
        text, history, lost = rendered.text, None, 0
        said = [one for one in self._replies.find(scope, text) if self._ends(text[one.end :])]
        if said and (self._history_ids if history_ids is None else history_ids):
            ids = self._spliced(text, said)
            history = History(len(said), sha256(pack(f"<{len(ids)}I", *ids)).hexdigest())
        else:
            ids = self.encode(text)
            lost = self._lost(text, ids, said[-1]) if said else 0
        offsets = tokens_before(self._tokenizer, text, ids, rendered.marks()) if self._boundaries() else []
        starts = sorted({*offsets[1:]} - {0, *offsets[:1], len(ids)})
        return Prompt(tuple(ids), (*offsets[:1], *starts), history, lost, partial(self._keep, scope, text))

    def asked(self, prompt: Prompt) -> None:
        """A prompt goes to the engine."""
        with self._lock:
            self.seam_tokens += prompt.lost

    def check(self, text: str, *, reply: int = 1) -> None:
        """RequestError if a text has more tokens than fit beside `reply` ones, as far as that shows without tokenizing it.

        To tokenize a megabyte takes seconds, in which other threads hardly get on.
        """
        most = self._limit - reply
        if len(text) > _CHECKED * most:
            check_length(self._tokenizer.at_least(text, most), self._limit, reply=reply, exact=False)

    def encode(self, text: str) -> list[int]:
        """Ids of a text that a template made, in which the beginning-of-text token may stand already."""
        ids = self._tokenizer.encode(text)
        bos = self._tokenizer.bos
        return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids

    def _keep(self, scope: str | None, prompt: str, text: str, ids: Sequence[int]) -> None:
        """Remember a reply, if all of its tokens can be seen in its text."""
        said = b"".join(shown(self._tokenizer, token) for token in ids)
        if text and said == text.encode("utf-8", "surrogatepass"):
            self._replies.remember(scope, prompt, text, ids)

    def _ends(self, after: str) -> bool:
        """Whether a control token comes next: what stands before it is tokenized by itself then."""
        first = self._tokenizer.encode(after[:_LONGEST_MARK], bos=False)[:1]
        return bool(first) and not self._tokenizer.bytes_of(first[0])

    def _spliced(self, text: str, said: Sequence[Said]) -> list[int]:
        ids = self._before(text[: said[0].start])
        for one, stop in zip(said, [*(later.start for later in said[1:]), len(text)], strict=True):
            ids += one.ids + self._tokenizer.encode(text[one.end : stop], bos=False)
        return ids

    def _before(self, text: str) -> list[int]:
        """Ids of a text that goes on: without an end that the file puts behind a text."""
        ids = self.encode(text)
        closed = self._tokenizer.encode("a")[-1:] == [self._tokenizer.eos]
        return ids[:-1] if closed else ids

    def _lost(self, text: str, ids: list[int], last: Said) -> int:
        """How much of the last reply re-tokenising cut otherwise; of the ones before it was lost in their turn."""
        tail = last.ids + self._tokenizer.encode(text[last.end :], bos=False)
        if ids[-len(tail) :] == tail:
            return 0
        known = self._before(text[: last.start]) + last.ids
        same = next((i for i, (a, b) in enumerate(zip(known, ids, strict=False)) if a != b), min(len(known), len(ids)))
        return len(known) - same
