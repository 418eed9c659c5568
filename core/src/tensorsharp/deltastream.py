"""From the text of a conversation's reply to its deltas, up to where the reply ends."""

from __future__ import annotations

from collections.abc import Sequence

from tensorsharp.engine.handle import Ending, Watch
from tensorsharp.engine.stream import StopStrings, TextStream
from tensorsharp.text.channels import ReplyParser
from tensorsharp.text.deltas import ContentDelta, Delta, ReasoningDelta


class DeltaStream:
    """The deltas of one reply, token by token. one_call: it ends with its first call.

    Stop strings are looked for in the content alone: not in reasoning, not in calls, and not across them. ending: None as long as
    neither has ended it; from then on there are no more deltas. reasoning_tokens: those that gave reasoning, with the markup
    before it.
    """

    def __init__(self, parser: ReplyParser, stop: Sequence[str], *, one_call: bool) -> None:
        self.ending: Ending | None = None
        self.reasoning_tokens = 0
        self._parser = parser
        self._stops = StopStrings(stop)
        self._one_call = one_call
        self._silent = 0  # tokens since the last delta

    def push(self, text: str) -> list[Delta]:
        """The deltas that are certain after one more token; text: what it adds."""
        self._silent += 1
        return self._taken(self._parser.feed(text) if text else [])

    def finish(self, text: str) -> list[Delta]:
        """What was held back, once no token follows; text: what the tokens held back."""
        made = self._taken([*(self._parser.feed(text) if text else ()), *self._parser.finish()])
        return made if self.ending else [*made, *self._released()]

    def _taken(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Tokens belong to the delta that they made certain."""
        if deltas:
            self.reasoning_tokens += self._silent if any(isinstance(delta, ReasoningDelta) for delta in deltas) else 0
            self._silent = 0
        made: list[Delta] = []
        for delta in deltas:
            if self.ending is None:
                made += self._let_through(delta)
        return made

    def _let_through(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, ContentDelta):
            made = _content(self._stops.push(delta.text))
            if self._stops.found:
                self.ending = "stop", self._stops.found
            return made
        if self._one_call and not isinstance(delta, ReasoningDelta) and delta.id is None:
            self.ending = "stop", None
        return [*self._released(), delta]

    def _released(self) -> list[Delta]:
        return _content(self._stops.release())


def watch_deltas(text: TextStream, deltas: DeltaStream) -> Watch:
    """Ends a reply where its deltas end."""

    def watch(token: int) -> Ending | None:
        deltas.push(text.push(token))
        return deltas.ending

    return watch


def _content(text: str) -> list[Delta]:
    return [ContentDelta(text)] if text else []
