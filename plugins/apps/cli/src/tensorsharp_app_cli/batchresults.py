"""The results of a batch: one line of JSON each, appended as soon as it is known, and what is there from an earlier run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from tensorsharp.errors import BackendError, ConfigError, RequestError, TensorSharpError
from tensorsharp_app_cli.batchlines import Asked

if TYPE_CHECKING:
    from tensorsharp.chat import ChatReply
    from tensorsharp.generation import Reply


class Results:
    """The output file, open to append. answered: the keys that have an answer from an earlier run.

    What is not an answer there, errors and a last line that was cut off, is taken out first and tried again. ConfigError if
    the file holds anything else, which is left as it is, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.answered = self._repair()
            self._file: IO[str] = path.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error

    def _repair(self) -> frozenset[str]:
        if not self._path.exists():
            return frozenset()
        lines = self._path.read_bytes().splitlines(keepends=True)
        found = [self._result(line, number, last=number == len(lines)) for number, line in enumerate(lines, 1)]
        kept = [(key, line) for key, line in zip(found, lines, strict=True) if key is not None]
        if len(kept) < len(lines):
            repaired = self._path.with_name(self._path.name + ".repaired")
            repaired.write_bytes(b"".join(line for _, line in kept))
            os.replace(repaired, self._path)
        return frozenset(key for key, _ in kept)

    def _result(self, line: bytes, number: int, *, last: bool) -> str | None:
        """The key of an answer; None for what is to be tried again."""
        try:
            data = json.loads(line)
            key, response = data["custom_id"], data["response"]
        except (ValueError, KeyError, TypeError):
            if last and not line.endswith(b"\n"):
                return None
            raise ConfigError(
                f"{self._path}: line {number} is no result of a batch, and the file is left as it is.", hint="Name another file."
            ) from None
        return key if response is not None and line.endswith(b"\n") else None

    def add(self, asked: Asked, body: dict[str, Any] | None, error: TensorSharpError | None = None) -> None:
        """Append one result. TensorSharpError if it cannot be written."""
        response = None if body is None else {"status_code": 200, "request_id": asked.key, "body": body}
        line = {"custom_id": asked.key, "line": asked.number, "response": response, "error": error and _error(error)}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as failure:
            raise TensorSharpError(f"{self._path} cannot be written: {failure.strerror or failure}.") from failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _error(error: TensorSharpError) -> dict[str, Any]:
    if isinstance(error, RequestError):
        return {"code": error.code or "invalid_request", "message": str(error), "param": error.param}
    return {"code": "backend_error" if isinstance(error, BackendError) else "error", "message": str(error), "param": None}


def chat_body(asked: Asked, model: str, answer: ChatReply) -> dict[str, Any]:
    """A chat completion."""
    message = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    return _body(f"chatcmpl-{asked.key}", "chat.completion", model, choice, answer.reply)


def completion_body(asked: Asked, model: str, reply: Reply) -> dict[str, Any]:
    """A completion."""
    choice = {"index": 0, "text": reply.text, "finish_reason": reply.finish_reason}
    return _body(f"cmpl-{asked.key}", "text_completion", model, choice, reply)


def _body(id: str, kind: str, model: str, choice: dict[str, Any], reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "id": id,
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
        },
        "seed": reply.seed,
    }
