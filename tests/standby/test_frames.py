"""The stream as bytes: what is encoded is decoded, and nothing else is."""

from __future__ import annotations

import pytest

from curbstone.standby.frames import FRAME_BYTES_MAX, BadFrame, Decoder, Frame, Kind, encode


def bytes_of(kind: Kind, path: str = "", a: int = 0, b: int = 0, payload: bytes = b"", flag: int = 0) -> bytes:
    return b"".join(encode(kind, path, a, b, [payload] if payload else [], flag))


def decoded(data: bytes) -> list[Frame]:
    return list(Decoder(0).feed(data))


def test_frames_do_not_depend_on_splitting() -> None:
    data = bytes_of(Kind.WRITE, "queues/a/meta", 7, 4096, b"bytes") + bytes_of(Kind.RENAME, "a", payload=b"b", flag=1)
    whole = decoded(data)
    assert [frame[:6] for frame in whole] == [
        (Kind.WRITE, 0, 7, 4096, "queues/a/meta", b"bytes"),
        (Kind.RENAME, 1, 0, 0, "a", b"b"),
    ]
    decoder = Decoder(0)
    assert [frame for byte in data for frame in decoder.feed(bytes([byte]))] == whole


def test_positions_exclude_copies() -> None:
    write, block = bytes_of(Kind.WRITE, "a", payload=b"12"), bytes_of(Kind.COPY_DATA, "a", payload=b"1234567")
    frames = list(Decoder(100).feed(write + block + write))
    ends = [(frame.start, frame.end) for frame in frames]
    size = len(write)
    assert ends == [(100, 100 + size), (100 + size, 100 + size), (100 + size, 100 + 2 * size)]


def test_flipped_bit_is_detected() -> None:
    data = bytes_of(Kind.WRITE, "queues/a/meta", 7, 0, b"bytes")
    for at in range(4, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(BadFrame):
            decoded(bytes(damaged))


@pytest.mark.parametrize("length", [0, 27, FRAME_BYTES_MAX + 1, (1 << 32) - 1])
def test_invalid_frame_length_is_refused_before_buffering(length: int) -> None:
    data = bytearray(bytes_of(Kind.WRITE, "a"))
    data[:4] = length.to_bytes(4, "little")
    with pytest.raises(BadFrame, match=f"a length of {length} bytes"):
        decoded(bytes(data))


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "queues/../../x", "queues//x", ".", "a\0b", "a\nb", "x" * 600])
def test_path_outside_the_directory_is_refused(path: str) -> None:
    with pytest.raises(BadFrame):
        decoded(bytes_of(Kind.CREATE, path))


def test_frame_kind_of_a_later_version_is_reported() -> None:
    data = b"".join(encode(99, "a"))  # type: ignore[arg-type]
    with pytest.raises(BadFrame, match="kind 99, unknown to this version"):
        decoded(data)
