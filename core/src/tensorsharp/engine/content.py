"""What a block or a savepoint holds, on its way to where it is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorsharp.storage.entry import Entry, Head


@dataclass(frozen=True, slots=True)
class Content:
    """Read already, and encoded by whoever asks for the entry: on a thread for which no reply waits, if there is one."""

    head: Head
    data: bytes
    encode: Callable[[bytes], bytes]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds until then."""
        return len(self.data)

    def entry(self) -> Entry:
        """What the encoder raises goes on."""
        return Entry(self.head, self.encode(self.data))
