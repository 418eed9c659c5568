"""What is timed at every step of a ladder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tensorsharp.errors import ConfigError
from tensorsharp.opening import Opened
from tensorsharp_app_cli import benchtext
from tensorsharp_app_cli.ladder import Ladder, Row, frontiers
from tensorsharp_app_cli.stepper import held_bytes, stepper

if TYPE_CHECKING:
    from tensorsharp.protocols.batch import I32
    from tensorsharp.protocols.layout import Format
    from tensorsharp.protocols.tokenizer import Tokenizer

LONGEST = 32768
WARM = 32


def measure(this: Opened, kv_type: Format, ladder: Ladder, tell: Callable[[str], None]) -> Iterator[Row]:
    """One row a context length, as soon as it is measured. `tell` hears what is being done.

    ConfigError if the ladder is longer than the model's context or than the text.
    """
    from tensorsharp.text.tokenizer import load_tokenizer

    last = _last(ladder, this.model.context_length)
    tokenizer = load_tokenizer(this.file)
    ids = _tokens(tokenizer, ladder.text, last)
    layout = this.model.layout(kv_type)
    with stepper(this, kv_type, last + ladder.written, ladder.written) as run:
        tell("warming up")
        run.write(run.read(ids[:WARM]), min(2, ladder.written), tokenizer.end_tokens)
        run.reset()
        for frontier in frontiers(ladder.start, last, ladder.increment, ladder.factor):
            new = ids[run.computed : frontier]
            tell(f"reading {len(new)} tokens up to {frontier}")
            began = time.perf_counter()
            logits = run.read(new)
            read_s = time.perf_counter() - began
            saved = run.save()
            tell(f"writing {ladder.written} tokens after {frontier}")
            began = time.perf_counter()
            run.write(logits, ladder.written, tokenizer.end_tokens)
            written_s = time.perf_counter() - began
            run.restore(saved)
            held = held_bytes(layout, frontier, run.block_tokens)
            yield Row(frontier, len(new), len(new) / read_s, ladder.written, ladder.written / written_s, held)


def _last(ladder: Ladder, longest: int) -> int:
    most = longest - ladder.written
    if most < 1:
        raise ConfigError(f"--gen-tokens is {ladder.written}; the model's context of {longest} leaves nothing to read then.")
    if ladder.last is None:
        return min(most, LONGEST)
    if ladder.last > most:
        raise ConfigError(
            f"--ctx-max is {ladder.last}; the model's context of {longest} allows {most} beside {ladder.written} --gen-tokens."
        )
    if ladder.start > ladder.last:
        raise ConfigError(f"--ctx-start is {ladder.start}; expected at most --ctx-max, which is {ladder.last}.")
    return ladder.last


def _tokens(tokenizer: Tokenizer, text: str | None, count: int) -> I32:
    if text is None:
        return benchtext.tokens(tokenizer, count)
    import numpy as np

    ids = tokenizer.encode(text)
    if len(ids) < count:
        raise ConfigError(
            f"--prompt-file has {len(ids)} tokens; {count} are needed.", hint="Give a longer text, or a smaller --ctx-max."
        )
    return np.array(ids[:count], np.int32)
