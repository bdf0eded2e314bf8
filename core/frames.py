"""Messages as bytes for programs: frames of log entries, in pages that are read and in parts that are staged.

Frames lie back to back. Numbers are little-endian::

    u32 bytes after this number, u8 kind, u8 0, u16 bytes of name, u64 first seq, u32 entries, u32 bytes of mask,
    u32 tries; then the name, the mask (bit i, lowest first, is entry i; no mask means all), tries times (u32 entry,
    u32 tries), and the entries

Kind 1 is a stretch of a queue, and has no name. Kind 2 is for a staged transaction: it has the name of the queue, and
first seq, mask and tries are 0. Entries are those of the log (see `core.engine.log.format`). In a staged one, the
place in the frame is in the field of the seq, and the delay in ms in that of the timestamp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from curbstone.core.engine.index.runs import seqs_of
from curbstone.core.engine.log.format import ENTRY, ENTRY_BYTES, decode_entries, encode_entries
from curbstone.core.message import Message
from curbstone.core.orders import changed
from curbstone.core.positions import Frame

KIND_MESSAGES = 1
KIND_STAGED = 2

FRAME = struct.Struct("<IBBHQIII")
_TRIES = struct.Struct("<II")
_LENGTH_BYTES = 4


def encode_frames(frames: list[Frame]) -> bytes:
    parts: list[bytes | memoryview] = []
    for first_seq, count, mask, tries, entries in frames:
        mask_bytes = b"" if mask is None else mask.to_bytes((count + 7) // 8, "little")
        tried = b"".join([_TRIES.pack(*pair) for pair in tries])
        size = FRAME.size - _LENGTH_BYTES + len(mask_bytes) + len(tried) + len(entries)
        head = FRAME.pack(size, KIND_MESSAGES, 0, 0, first_seq, count, len(mask_bytes), len(tries))
        parts += (head, mask_bytes, tried, entries)
    return b"".join(parts)


def decode_frame(frame: Frame) -> Iterator[tuple[Message, int]]:
    """Yield the messages that the frame's mask names, with their tries."""
    tries = dict(frame.tries)
    messages = decode_entries(bytes(frame.entries), 0, frame.span, frame.first_seq)
    meant = range(frame.span) if frame.mask is None else seqs_of(0, frame.mask)
    for index in meant:
        yield messages[index], tries.get(index, 0)


def strip(frame: Frame, *, headers: bool, body: bool) -> Frame:
    """Return a frame without the headers or bodies of its entries, unless they are wanted; their extras stay."""
    if headers and body:
        return frame
    view = memoryview(frame.entries)
    parts: list[bytes | memoryview] = []
    offset = 0
    for _ in range(frame.span):
        size, delta, timestamp_ms, headers_bytes, flags, extras_bytes = ENTRY.unpack_from(view, offset)
        block = offset + ENTRY_BYTES + extras_bytes
        kept = view[block : block + headers_bytes] if headers else view[block + headers_bytes : offset + size]
        if not headers and not body:
            kept = view[:0]
        small = ENTRY_BYTES + extras_bytes + len(kept)
        parts.append(ENTRY.pack(small, delta, timestamp_ms, headers * headers_bytes, flags, extras_bytes))
        if extras_bytes:
            parts.append(view[offset + ENTRY_BYTES : block])
        parts.append(kept)
        offset += size
    return frame._replace(entries=b"".join(parts))


def pick(frame: Frame, is_wanted: Callable[[Message], bool]) -> Frame:
    """Return a frame with only those of its messages that are wanted."""
    wanted = [message.seq for message, _ in decode_frame(frame) if is_wanted(message)]
    seqs = frozenset(wanted)
    tries = dict(frame.tries)
    view = memoryview(frame.entries)
    parts: list[memoryview] = []
    tried: list[tuple[int, int]] = []
    offset = 0
    for index in range(frame.span):
        size, delta, *_ = ENTRY.unpack_from(view, offset)
        is_meant = frame.mask is None or frame.mask >> index & 1
        if is_meant and frame.first_seq + delta in seqs:
            if index in tries:
                tried.append((len(parts), tries[index]))
            parts.append(view[offset : offset + size])
        offset += size
    return Frame(frame.first_seq, len(parts), None, tried, b"".join(parts))


def encode_frame(name: str, messages: list[Message]) -> bytes:
    """Return one frame to be staged. The ttl and the groups of a message go into its extras."""
    for place, message in enumerate(messages):
        message.seq = place
        if message.level:  # its header says so
            message.orders = changed(message.orders, level=0)
        message.timestamp_ms = message.delay_ms
        message.expires_ms = message.ttl_ms
    parts: list[bytes] = []
    encode_entries(messages, 0, parts)
    label = name.encode()
    size = FRAME.size - _LENGTH_BYTES + len(label) + sum(map(len, parts))
    return FRAME.pack(size, KIND_STAGED, 0, len(label), 0, len(messages), 0, 0) + label + b"".join(parts)
