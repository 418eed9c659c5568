"""The library in a process of its own, for what a server adds to it; takes commands as `contender` does.

    python -m benchmarks.embedded MODEL --slots N --threads N --context N

Replies are read by asyncio, as a program would that serves them itself.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import tensorsharp as ts
from benchmarks.contender import serve
from tensorsharp.chat import ChatGeneration


class Embedded:
    """The commands."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._llm = ts.load(options.model, parallel=options.slots, threads=options.threads, ctx_size=options.context)

    def facts(self) -> dict[str, Any]:
        report = self._llm.report()
        return {name: report[name] for name in ("threads", "context", "arithmetic_id", "bitwise")}

    def first(self, prompt: str) -> float:
        """Seconds from a question to the first piece of its answer."""
        return asyncio.run(self._first(prompt))

    def streams(self, prompts: list[str], tokens: int) -> dict[str, Any]:
        """Processor seconds of this process for answers of so many tokens at the same time, and their texts."""
        began = time.process_time()
        texts = asyncio.run(self._texts(prompts, tokens))
        return {"cpu_s": time.process_time() - began, "texts": texts}

    async def _first(self, prompt: str) -> float:
        began = time.perf_counter()
        running = self._ask(prompt, 2)
        await anext(running)
        took = time.perf_counter() - began
        await running.wait()
        return took

    async def _texts(self, prompts: list[str], tokens: int) -> list[str]:
        return await asyncio.gather(*(self._text(self._ask(prompt, tokens)) for prompt in prompts))

    async def _text(self, running: ChatGeneration) -> str:
        async for _ in running:
            pass
        return (await running.wait()).content

    def _ask(self, prompt: str, tokens: int) -> ChatGeneration:
        messages = [{"role": "user", "content": prompt}]
        return self._llm.start_chat(messages, max_tokens=tokens, temperature=0.0, seed=0, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    serve(Embedded(parser.parse_args()))


if __name__ == "__main__":
    main()
