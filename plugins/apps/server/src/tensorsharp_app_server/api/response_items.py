"""The items of a response while it is made, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensorsharp.chat import ContentDelta, Delta, ReasoningDelta

Event = dict[str, Any]
NAMES = {"message": "output_text", "reasoning": "reasoning_text"}
"""Type of an item -> that of its one part."""


class Items:
    """output: the items that are whole, in order. id: of the request; those of items are made from it.

    namespaces: what the model calls a function -> the fields by which the client knows it, where they differ.
    """

    def __init__(self, id: str, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self.output: list[dict[str, Any]] = []
        self._id = id
        self._namespaces = namespaces
        self._open: dict[str, Any] | None = None

    def take(self, delta: Delta, logprobs: list[Any]) -> Iterator[Event]:
        """The events of one delta."""
        if isinstance(delta, ContentDelta | ReasoningDelta):
            kind = "message" if isinstance(delta, ContentDelta) else "reasoning"
            if self._open is None or self._open["type"] != kind:
                yield from self._begin(kind, f"{'msg' if kind == 'message' else 'rs'}_{self._id}_{len(self.output) + self._busy}")
            yield from self._more(delta.text, logprobs)
            return
        if delta.id is not None:
            id = f"fc_{self._id}_{len(self.output) + self._busy}"
            known = self._namespaces.get(delta.name or "", {"name": delta.name})
            yield from self._begin("function_call", id, call_id=delta.id, **known, arguments="")
        if delta.arguments and self._open is not None:
            self._open["arguments"] += delta.arguments
            yield self._event("response.function_call_arguments.delta", delta=delta.arguments)

    def finish(self, status: str = "completed") -> Iterator[Event]:
        """The item that is open is whole, or (`incomplete`) was cut."""
        item = self._open
        if item is None:
            return
        if item["type"] == "function_call":
            yield self._event("response.function_call_arguments.done", arguments=item["arguments"])
        else:
            part = item["content"][0]
            more = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._event(f"response.{part['type']}.done", content_index=0, text=part["text"], **more)
            yield self._event("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        self._open = None
        self.output.append(item)
        yield {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": item}

    @property
    def _busy(self) -> bool:
        return self._open is not None

    def _begin(self, kind: str, id: str, **fields: Any) -> Iterator[Event]:
        yield from self.finish()
        item = {"id": id, "type": kind, "status": "in_progress", **fields}
        if kind == "message":
            item |= {"role": "assistant", "content": []}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
        self._open = item
        yield {"type": "response.output_item.added", "output_index": len(self.output), "item": dict(item)}
        if kind in NAMES:
            texts: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "message" else {}
            item["content"] = [{"type": NAMES[kind], "text": "", **texts}]
            yield self._event("response.content_part.added", content_index=0, part=dict(item["content"][0]))

    def _more(self, text: str, logprobs: list[Any]) -> Iterator[Event]:
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        more = {}
        if self._open["type"] == "message":
            part["logprobs"] = [*part["logprobs"], *logprobs]
            more = {"logprobs": logprobs}
        yield self._event(f"response.{part['type']}.delta", content_index=0, delta=text, **more)

    def _event(self, name: str, **fields: Any) -> Event:
        assert self._open is not None
        return {"type": name, "item_id": self._open["id"], "output_index": len(self.output), **fields}
