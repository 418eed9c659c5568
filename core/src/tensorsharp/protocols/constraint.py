"""What the engine sees of a constraint on a reply: which tokens may come next. It knows no grammar and no text."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class Matcher(Protocol):
    """Where one reply stands in its grammar: a pure function of the tokens that it took. Used by one thread at a time."""

    def mask(self) -> Mask | None:
        """[n] bool: False for a token that cannot come next; ids from n on cannot either. None if every token can.

        Tokens that end a reply are True only where the grammar names them; otherwise `accepting` decides about them.
        """
        ...

    @property
    def accepting(self) -> bool:
        """Whether the reply may end here."""
        ...

    @property
    def complete(self) -> bool:
        """Whether it ends here, because nothing can follow."""
        ...

    def accept(self, token: int) -> None:
        """Go on after `token`, which the mask allows."""
        ...

    def rollback(self, count: int) -> None:
        """Take the latest `count` tokens back."""
        ...


class Grammar(Protocol):
    """A compiled constraint. Immutable and safe to share between threads and requests."""

    def start(self) -> Matcher:
        """A matcher at the beginning of a reply."""
        ...
