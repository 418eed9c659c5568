"""Whether this backend can run on this machine, for listings."""

from __future__ import annotations


def why_not() -> str | None:
    """None if a usable ggml library loads here, else one sentence that says why not."""
    from tensorsharp.errors import TensorSharpError
    from tensorsharp_backend_ggml.library import load

    try:
        load(None)
    except TensorSharpError as error:
        return str(error)
    return None
