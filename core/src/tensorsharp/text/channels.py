"""From the text of a reply to content, reasoning and tool calls, while the text is being written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tensorsharp.text.deltas import Delta, Writer
from tensorsharp.text.reading import Markers, Source, Steps
from tensorsharp.text.toolcalls import Call, Tool, Tools
from tensorsharp.types import Constraint

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter, WriteCall

ReadCalls = Callable[[Source, str, Tools], Steps[list[Call]]]
"""Reads the calls behind an opening marker: (source, marker, tools) -> calls. UnreadableError if they are none."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The texts around reasoning, and around the answer that follows it, if that has its own."""

    open: str
    close: str
    answer: tuple[str, str] | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """The texts that a template of this kind has; it need not open what the model opens itself."""
        return (self.close, *(self.answer or ()))

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, self.close, *(self.answer or ()))


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How calls stand in a text. openers: what they begin with. markers: all texts that may be control tokens.

    careless: openers that some models use instead; they count in the content alone. bare: the character with which calls without
    any opener begin; they count where nothing was said yet.
    write: the grammar of what follows the first opener, where a call can be required. repeats: whether several calls are
    written behind one opener each, and not in one block.
    """

    openers: tuple[str, ...]
    markers: tuple[str, ...]
    read: ReadCalls
    write: WriteCall | None = None
    repeats: bool = True
    careless: tuple[str, ...] = ()
    bare: str | None = None


class WriteReply(Protocol):
    """Writes the start rule of replies that call tools: several: more than one call; free: or none, and any other text.

    form: what that text has to be, and then calls stand alone. UnsupportedError for one that cannot be told from calls.
    """

    def __call__(
        self, writer: GrammarWriter, tools: Sequence[Tool], several: bool, free: bool, form: Constraint | None = None
    ) -> str: ...


ReadReply = Callable[[Source, Writer, Tools, bool, bool], Steps[None]]
"""Reads a whole reply: (source, writer, tools, whether the prompt has opened the reasoning, whether no call follows content)."""


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a reply is written. markers: texts that have to be seen even where they are control tokens.

    calls: writes the start rule of replies that call tools, where a call can be required; free: that may call them, or not.
    reasoning: the texts around reasoning that stands before all else. answer: the text behind which the content begins, if
    the reply does not begin with it.
    """

    markers: tuple[str, ...]
    read: ReadReply
    calls: WriteReply | None = None
    reasoning: Reasoning | None = None
    answer: str = ""


def tagged_reply(calls: CallFormat | None, reasoning: Reasoning | None) -> ReplyFormat:
    """A reply that is text, with reasoning and calls between markers.

    Reasoning may open where nothing was said yet, or behind a call; a call may stand in the reasoning, which goes on behind it
    until its end. Without tools the markup of calls is text, as nobody expects a call.
    """
    markers = (calls.markers if calls else ()) + (reasoning.markers if reasoning else ())

    def read(source: Source, writer: Writer, tools: Tools, thinking: bool, formed: bool) -> Steps[None]:
        return _Tagged(source, writer, tools, calls if tools else None, reasoning, formed=formed).read(thinking)

    write = calls.write if calls else None
    if calls is None or write is None:
        return ReplyFormat(markers, read, None, reasoning)

    def write_reply(
        writer: GrammarWriter, tools: Sequence[Tool], several: bool, free: bool, form: Constraint | None = None
    ) -> str:
        return _write_tagged(writer, calls, write(writer, tools, several), several and calls.repeats, free, form)

    return ReplyFormat(markers, read, write_reply, reasoning)


def _write_tagged(writer: GrammarWriter, calls: CallFormat, body: str, several: bool, free: bool, form: Constraint | None) -> str:
    """body: of one call behind its opener."""
    opener = calls.openers[0]
    call = writer.rule(f"{writer.literal(opener)} {body}")
    more = f' ("\\n"? {call})*' if several else ""
    if form is not None or not free:
        alone = f"/\\n{{0,2}}/ {call}{more}"
        return alone if form is None else f"{alone} | {writer.form(form, *calls.openers)}"
    if writer.is_control(opener):
        return f"{writer.without(opener)} ({call}{more})?"
    return f"{writer.without(opener)} | {writer.until(opener)} {body}{more}"


class _Tagged:
    def __init__(
        self,
        source: Source,
        writer: Writer,
        tools: Tools,
        calls: CallFormat | None,
        reasoning: Reasoning | None,
        *,
        formed: bool,
    ) -> None:
        self.source, self.writer, self.tools, self.calls, self.reasoning = source, writer, tools, calls, reasoning
        self.formed = formed
        self.answering = False

    def read(self, thinking: bool) -> Steps[None]:
        while True:
            write = self.writer.reasoning if thinking else self.writer.content
            if not thinking and (yield from self._begins_bare()):
                yield from self._calls("", write)
            if self.formed and not thinking and not (yield from self._marked()):
                yield from self.source.text(Markers(), write)
                return
            openers = self._openers(thinking)
            found = yield from self.source.text(Markers(*openers, *self._marks(thinking)), write)
            if found is None:
                return
            if found in openers:
                yield from self._calls(found, write)
            elif self.reasoning is not None and found in (self.reasoning.open, self.reasoning.close):
                if self._opens_late(found):
                    write(found)
                else:
                    self.writer.boundary()
                    thinking = found == self.reasoning.open
            else:
                yield from self._answer(found, write)

    def _marked(self) -> Steps[bool]:
        """Whether markup follows, behind white space at most."""
        markup = (*self._openers(False), *self._marks(False))
        return bool(markup) and (yield from self.source.ahead(*markup))

    def _begins_bare(self) -> Steps[bool]:
        bare = self.calls.bare if self.calls else None
        return bare is not None and self.writer.silent and (yield from self.source.ahead(bare))

    def _openers(self, thinking: bool) -> tuple[str, ...]:
        if self.calls is None:
            return ()
        return self.calls.openers if thinking else (*self.calls.openers, *self.calls.careless)

    def _marks(self, thinking: bool) -> tuple[str, ...]:
        if self.reasoning is None:
            return ()
        if thinking:
            return (self.reasoning.close,)
        return (self.reasoning.open, *(self.reasoning.answer or ()))

    def _opens_late(self, found: str) -> bool:
        assert self.reasoning is not None
        return found == self.reasoning.open and not self.writer.silent

    def _answer(self, found: str, write: Callable[[str], None]) -> Steps[None]:
        """Markers around the answer count once each, the opening one before all content."""
        assert self.reasoning is not None
        assert self.reasoning.answer is not None
        opens = found == self.reasoning.answer[0]
        if opens == self.answering or (opens and not self.writer.silent):
            write(found)
        else:
            self.answering = opens
            self.writer.boundary()
        yield from ()

    def _calls(self, opener: str, write: Callable[[str], None]) -> Steps[None]:
        assert self.calls is not None
        found = yield from self.source.attempt(deliver(self.calls.read(self.source, opener, self.tools), self.writer))
        if found is None and opener:
            write(opener)


def deliver(reading: Steps[list[Call]], writer: Writer) -> Steps[bool]:
    """Read calls and write all of them, or none if one of them is none (UnreadableError)."""
    calls = yield from reading
    writer.call_all(calls)
    return True


PLAIN: Final = tagged_reply(None, None)


class ReplyParser:
    """Reads one reply. The deltas joined do not depend on how the text was cut.

    opened: the prompt ends inside the reasoning. formed: the content has a form, so that nothing in it is markup, and
    of white space before it only line breaks are left out. salt: see :class:`~tensorsharp.text.deltas.Writer`.
    """

    def __init__(
        self,
        format: ReplyFormat,
        tools: Tools | None = None,
        *,
        opened: bool = False,
        formed: bool = False,
        salt: bytes = b"",
    ) -> None:
        self._source = Source()
        self._writer = Writer(salt, formed=formed)
        self._steps = format.read(self._source, self._writer, tools or Tools(()), opened, formed)

    def feed(self, text: str) -> list[Delta]:
        """The deltas that more text makes certain."""
        self._source.feed(text)
        next(self._steps)
        return self._writer.drain()

    def finish(self) -> list[Delta]:
        """What was held back, once no text follows."""
        self._source.closed = True
        for _ in self._steps:
            raise AssertionError("a reader waits for text behind the end")
        self._writer.finish()
        return self._writer.drain()
