"""Files that lie. Each is refused with one sentence, quickly and without taking memory for what it claims."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest

from tensorsharp.errors import ModelError
from tensorsharp.weights.gguf import open_gguf

HUGE = 2**63 - 8


def string(text: str | bytes, length: int | None = None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data) if length is None else length) + data


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, elements: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + elements


def tensor(name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


ARCHITECTURE = key("general.architecture", 8, string("llama"))


def gguf(
    *,
    keys: tuple[bytes, ...] = (ARCHITECTURE,),
    tensors: tuple[bytes, ...] = (),
    data: int = 0,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    key_count: int | None = None,
) -> bytes:
    """A file in which anything can be wrong: `data` zero bytes of tensor data after the padding."""
    counts = (len(tensors) if tensor_count is None else tensor_count, len(keys) if key_count is None else key_count)
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return header + (bytes(-len(header) % 32 + data) if data else b"")


WHOLE = gguf(
    keys=(
        ARCHITECTURE,
        key("a.flag", 7, b"\x01"),
        key("a.words", 9, array(8, 3, string("x") + string("") + string("yz"))),
        key("a.numbers", 9, array(5, 2, bytes(8))),
        key("a.float", 12, bytes(8)),
    ),
    tensors=(tensor("one", [32, 2], 3), tensor("two", [3], 0, 64)),
    data=64 + 12,
)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    sentence = str(caught.value)
    assert caught.value.exit_code == 3
    assert sentence.startswith(str(path))
    assert "\n" not in sentence
    return sentence


CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "short magic": (b"GG", "starts with b'GG'; a GGUF file starts with b'GGUF'"),
    "bad magic": (b"PK\x03\x04" + bytes(99), "a GGUF file starts with b'GGUF'"),
    "version 1": (gguf(version=1), "is GGUF version 1; versions 2 and 3 are read"),
    "version 4": (gguf(version=4), "is GGUF version 4"),
    "version 0": (gguf(version=0), "is GGUF version 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is big-endian"),
    "tensor count": (gguf(tensor_count=HUGE), f"claims {HUGE} tensors, which cannot fit"),
    "key count": (gguf(key_count=2**64 - 1), f"claims {2**64 - 1} metadata keys, which cannot fit"),
    "one key too many": (gguf(key_count=2, data=8), "metadata key 1 is empty"),
    "key length": (gguf(keys=(string("x", HUGE) + bytes(8),)), f"the name of metadata key 0 claims {HUGE} bytes"),
    "key past the end": (gguf(keys=(string("x", 60_000) + bytes(8),)), "the name of metadata key 0 at byte 32 needs 60000 bytes"),
    "empty key": (gguf(keys=(key("", 4, bytes(4)),)), "the name of metadata key 0 is empty"),
    "key not UTF-8": (gguf(keys=(key(b"\xff\xfe", 4, bytes(4)),)), "metadata key 0 is b'\\xff\\xfe', which is not UTF-8"),
    "duplicate key": (gguf(keys=(ARCHITECTURE, ARCHITECTURE)), "has the metadata key 'general.architecture' twice"),
    "value type": (gguf(keys=(key("x", 13, bytes(8)),)), "the metadata key 'x' has the unknown value type 13"),
    "element type": (gguf(keys=(key("x", 9, array(99, 1, bytes(8))),)), "'x' has the unknown value type 99"),
    "element type of an empty array": (gguf(keys=(key("x", 9, array(99, 0)),)), "'x' has the unknown value type 99"),
    "nested array": (gguf(keys=(key("x", 9, array(9, 1, array(4, 1, bytes(4)))),)), "'x' is an array of arrays"),
    "string length": (gguf(keys=(key("x", 8, string("abc", HUGE)),)), f"the value of 'x' at byte 45 needs {HUGE} bytes"),
    "array count": (gguf(keys=(key("x", 9, array(12, HUGE)),)), f"the value of 'x' ({HUGE} elements)"),
    "string array count": (gguf(keys=(key("x", 9, array(8, HUGE)),)), f"the value of 'x' ({HUGE} strings)"),
    "element length": (
        gguf(keys=(key("x", 9, array(8, 3, string("a") + string("b", HUGE) + bytes(8))),)),
        "the value of 'x': the file ends within string 1 of 3",
    ),
    "element length of all ones": (
        gguf(keys=(key("x", 9, array(8, 2, string("a") + string("b", 2**64 - 1))),)),
        "the value of 'x': the file ends within string 1 of 2",
    ),
    "elements that run out": (gguf(keys=(key("x", 9, array(8, 3, string("a" * 20))),)), "the file ends within string 1 of 3"),
    "no architecture": (gguf(keys=(key("x", 4, bytes(4)),)), "has no 'general.architecture'"),
    "architecture a number": (gguf(keys=(key("general.architecture", 4, bytes(4)),)), "'general.architecture' is 0"),
    "architecture empty": (gguf(keys=(key("general.architecture", 8, string("")),)), "'general.architecture' is ''"),
    "tensor name empty": (gguf(tensors=(tensor("", [1]),), data=4), "the name of tensor 0 is empty"),
    "tensor name not UTF-8": (
        gguf(tensors=(tensor(b"\xff", [1]),), data=4),
        "the name of tensor 0 is b'\\xff', which is not UTF-8",
    ),
    "duplicate tensor": (gguf(tensors=(tensor("t", [1]), tensor("t", [1], 0, 32)), data=36), "lists the tensor 't' twice"),
    "five dimensions": (gguf(tensors=(tensor("t", [1] * 5),), data=4), "tensor 't' has 5 dimensions; at most 4"),
    "dimension count": (gguf(tensors=(string("t") + b"\xff" * 20,), data=4), "tensor 't' has 4294967295 dimensions"),
    "dimension of 2^63": (gguf(tensors=(tensor("t", [2**63]),), data=4), "cannot be addressed"),
    "dimension beside a zero": (gguf(tensors=(tensor("t", [2**60, 0]),), data=4), f"tensor 't' has the shape [0, {2**60}]"),
    "dimension product": (
        gguf(tensors=(tensor("t", [2**32, 2**32]),), data=4),
        "tensor 't' has the shape [4294967296, 4294967296]",
    ),
    "product behind a zero": (gguf(tensors=(tensor("t", [0, 2**32, 2**32]),), data=4), "cannot be addressed"),
    "row not of whole blocks": (
        gguf(tensors=(tensor("t", [33, 2], 3),), data=99),
        "rows of 33 values, which is not a multiple of Q4_1's",
    ),
    "scalar of blocks": (gguf(tensors=(tensor("t", [], 3),), data=99), "rows of 1 values, which is not a multiple of Q4_1's"),
    "unknown tensor type": (gguf(tensors=(tensor("t", [32], 43),), data=99), "tensor 't' has the unknown tensor type 43"),
    "withdrawn tensor type": (
        gguf(tensors=(tensor("t", [32], 31),), data=99),
        "tensor 't' has type Q4_0_4_4 (31), which ggml has withdrawn",
    ),
    "negative tensor type": (gguf(tensors=(tensor("t", [32], 2**32 - 1),), data=99), "the unknown tensor type 4294967295"),
    "tensor outside": (gguf(tensors=(tensor("t", [9]),), data=32), "tensor 't' needs bytes 128 to 164, but the file has 160"),
    "offset of 2^63": (gguf(tensors=(tensor("t", [1], 0, 2**63),), data=32), f"tensor 't' needs bytes {2**63 + 128}"),
    "huge tensor": (gguf(tensors=(tensor("t", [2**59]),), data=32), "tensor 't' needs bytes"),
    "empty tensor outside": (gguf(tensors=(tensor("t", [0], 0, 2**40),), data=32), "tensor 't' needs bytes"),
    "offset not aligned": (
        gguf(tensors=(tensor("t", [1], 0, 4),), data=32),
        "lies at offset 4, which is not a multiple of the alignment 32",
    ),
    "overlap": (gguf(tensors=(tensor("t", [9]), tensor("u", [1], 0, 32)), data=99), "the data of tensors 't' and 'u' overlap"),
    "same place": (gguf(tensors=(tensor("t", [1]), tensor("u", [1])), data=99), "the data of tensors 't' and 'u' overlap"),
}
for value, shown in ((struct.pack("<I", 0), "0 (u32)"), (struct.pack("<I", 33), "33 (u32)"), (struct.pack("<I", 48), "48 (u32)")):
    CASES[f"alignment {shown}"] = (
        gguf(keys=(ARCHITECTURE, key("general.alignment", 4, value))),
        f"'general.alignment' is {shown}; expected a power of two",
    )
CASES["alignment a string"] = (gguf(keys=(ARCHITECTURE, key("general.alignment", 8, string("32")))), "is '32' (str)")
CASES["alignment a flag"] = (gguf(keys=(ARCHITECTURE, key("general.alignment", 7, b"\x01"))), "is True (bool)")
CASES["alignment negative"] = (gguf(keys=(ARCHITECTURE, key("general.alignment", 5, struct.pack("<i", -32)))), "is -32 (i32)")
CASES["alignment beyond the file"] = (
    gguf(keys=(ARCHITECTURE, key("general.alignment", 4, struct.pack("<I", 2**31))), tensors=(tensor("t", [1]),), data=4),
    f"tensor 't' needs bytes {2**31} to {2**31 + 4}",
)


@pytest.mark.parametrize("case", CASES)
def test_a_lie_is_refused_with_a_sentence_and_without_memory(tmp_path: Path, case: str) -> None:
    content, expected = CASES[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        sentence = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert expected in sentence
    # Small objects and pytest's own; the smallest claim above that could be allocated for is far larger.
    assert peak < 1_000_000


def test_the_whole_file_opens_and_every_cut_of_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(WHOLE)
    assert list(open_gguf(path).tensors) == ["one", "two"]
    for size in range(len(WHOLE)):
        cut = tmp_path / f"{size}.gguf"
        cut.write_bytes(WHOLE[:size])
        refusal(cut)


def test_a_long_name_is_cut_in_the_sentence(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(gguf(keys=(key("k" * 60_000, 13, b""),)))
    assert len(refusal(path)) < 400


def test_a_pointer_of_git_lfs_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "pointer.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    assert caught.value.hint is not None
    assert "git lfs pull" in caught.value.hint


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "none.gguf")
    assert "cannot be read" in refusal(tmp_path / ("x" * 5000))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is not a regular file" in refusal(tmp_path / "pipe.gguf")


def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(WHOLE)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    assert "no permission to read it" in refusal(path)
