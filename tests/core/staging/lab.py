"""What tests of staged transactions share: staging and committing in a `Lab`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from curbstone.core.errors import CurbstoneError, NoSuchTransaction
from curbstone.core.frames import encode_frame
from curbstone.core.message import Message
from curbstone.core.options import MIB
from curbstone.core.staging.files import Part
from curbstone.core.staging.upload import Upload
from tests.kit.lab import Lab

PROJECT = "default"
Contents = Mapping[str, Sequence[bytes | Message]]


def start_with_two_queues(cap: int = MIB) -> Lab:
    """Return a lab with the queues a and b."""
    lab = Lab(cap=cap)
    lab.queue("a")
    lab.queue("b")
    return lab


def frames_of(contents: Contents, per_frame: int = 1000) -> bytes:
    """Return frames with these messages, so many in one at most."""
    frames = []
    for name, bodies in contents.items():
        messages = [body if isinstance(body, Message) else Message(body) for body in bodies]
        for start in range(0, len(messages), per_frame):
            frames.append(encode_frame(name, messages[start : start + per_frame]))
    return b"".join(frames)


def upload(lab: Lab, identifier: str, part: str) -> Upload:
    return lab.broker.staging.upload(PROJECT, identifier, part, MIB)


def stage(lab: Lab, identifier: str, part: str, contents: Contents, *, per_frame: int = 1000, step: int = 4096) -> Part:
    """Stage a part, a few bytes at a time as they would come from a socket; raise what was said."""
    coming = upload(lab, identifier, part)
    data = frames_of(contents, per_frame)
    try:
        for start in range(0, len(data), step):
            coming.feed(data[start : start + step])
            if coming.is_behind:
                (error,) = lab.answer(coming.when_written)
                assert error is None
        error, staged = lab.answer(coming.finish)
    finally:
        coming.cancel()
    if error is not None:
        raise error
    assert isinstance(staged, Part)
    return staged


def commit(
    lab: Lab, identifier: str, parts: Sequence[str] | None = None, *, passing_ms: int = 0, content: str = ""
) -> tuple[CurbstoneError | None, bool, int]:
    answer = lab.answer(
        lambda done: lab.broker.staging.commit(PROJECT, identifier, parts, done, content=content), passing_ms=passing_ms
    )
    error, repeated, messages = answer
    assert error is None or isinstance(error, CurbstoneError)
    return error, bool(repeated), int(messages)


def drop(lab: Lab, identifier: str) -> CurbstoneError | None:
    """Drop what is staged; return the error."""
    (error,) = lab.answer(lambda done: lab.broker.staging.drop(PROJECT, identifier, done))
    assert error is None or isinstance(error, CurbstoneError)
    return error


def state(lab: Lab, identifier: str) -> str:
    """Return the state of a transaction, "" for none."""
    try:
        return lab.broker.staging.status(PROJECT, identifier).state.value
    except NoSuchTransaction:
        return ""


def staged_files(lab: Lab) -> list[str]:
    """Return the files below `staging`, but for the lists of ids."""
    paths = [path for path in lab.disk.names if path.startswith("staging/")]
    return sorted(path for path in paths if not path.startswith("staging/committed"))


def same(found: Any, wanted: Any, what: str) -> None:
    assert found == wanted, f"{what}: {len(found)} found, {len(wanted)} wanted"
