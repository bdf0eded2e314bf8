"""The state of a server or a copy, in the directory `standby` of the data directory.

All copies of a server have its id. The term increases with each promotion, so of two servers with one id the one with
the lower term was replaced.

`state` is replaced durably. `position` says how far the stream is applied, and is overwritten without a sync. So it
survives a crash of the process, and not one of the machine; then the copy is still consistent, but its position is
unknown, and it has to be compared.
"""

from __future__ import annotations

import json
import secrets
import struct
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from curbstone.core.disk import Disk, File, file_contents, replace_file
from curbstone.core.errors import DataDirectoryError
from curbstone.standby.frames import InSync
from curbstone.standby.scope import STATE_DIR

FORMAT = 1
STATE_FILE, POSITION_FILE = f"{STATE_DIR}/state", f"{STATE_DIR}/position"

_POSITION = struct.Struct("<QQQ32s")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class State:
    """The durable state."""

    is_complete: bool = False
    """Whether a server may start on the copy."""
    in_sync: InSync = InSync.NO
    """The last report of the server."""
    wants_full_copy: bool = False
    """Whether a sync has failed. Then data that are read may not be on the disk, so a comparison is not reliable."""
    is_catching_up: bool = False
    """Whether the stream is applied without syncs, so that files may be inconsistent after a power cut."""
    server: str = ""
    """The id of the server; "" if it is not known yet."""
    term: int = 0
    is_server: bool = False
    """Whether the directory is that of a server, not of a copy."""
    believed: str = ""
    """For a server: the id of the copy that may assume it is in sync; "" if the server has confirmed alone."""
    copy: str = ""
    """The id of this directory, among those of the server and its copies; "" if it has none yet."""
    skips_ids: bool = False
    """For a server: whether it was promoted without some ids that clients may have seen."""
    alone_after_ms: int = 0
    """For a copy that is in sync: after how long without it the server confirms alone; 0 for never."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far the stream of one life is applied."""

    life: int = 0
    applied: int = 0
    """Everything before this position is applied."""
    at_most: int = 0
    """Nothing after this position is applied."""


class StateFiles:
    """See the module's docstring. All methods block."""

    def __init__(self, disk: Disk, boot: bytes) -> None:
        """`boot` identifies this boot of the machine."""
        self.state = State()
        self.position: Position | None = None
        """The position of the copy, if it is known."""
        self._disk = disk
        self._boot = boot[:32].ljust(32, b"\0")
        self._file: File | None = None
        with suppress(FileExistsError):
            disk.make_dir(STATE_DIR)
            disk.sync_dir("")
        self._load()

    def _load(self) -> None:
        with suppress(FileNotFoundError):
            self.state = _state_in(file_contents(self._disk, STATE_FILE))
        try:
            self._file = self._disk.open(POSITION_FILE)
        except FileNotFoundError:
            self._file = self._disk.open(POSITION_FILE, create=True)
        data = self._file.read(0, _POSITION.size + _CRC.size)
        if len(data) == _POSITION.size + _CRC.size and _CRC.unpack(data[_POSITION.size :])[0] == zlib.crc32(
            data[: _POSITION.size]
        ):
            *numbers, boot = _POSITION.unpack(data[: _POSITION.size])
            if boot == self._boot:
                self.position = Position(*numbers)
        if self.position is None and self.state.in_sync == InSync.IN_MEMORY:
            self.change(in_sync=InSync.NO)
        if self.position is None and self.state.is_catching_up:
            self.change(is_complete=False, is_catching_up=False)

    @property
    def can_resume(self) -> bool:
        """Whether the copy can resume from its position, if the server has kept the stream from there on."""
        return self.state.is_complete and not self.state.wants_full_copy and self.position is not None

    def change(self, **changes: Any) -> None:
        """Change the state durably."""
        state = replace(self.state, **changes)
        if state != self.state:
            data = json.dumps({"format": FORMAT, **asdict(state)}).encode()
            replace_file(self._disk, STATE_FILE, data).close()
            self.state = state

    def assign(self, server: str, term: int) -> None:
        """Make the directory a copy of a server.

        If it was a server that did not hand over, it needs a full copy, because one of its syncs may have failed.
        """
        state = self.state
        is_same = not state.is_server and (state.server, state.term) == (server, term)
        if not is_same:
            self.change(
                server=server,
                term=term,
                is_server=False,
                copy=state.copy or secrets.token_hex(16),
                believed="",
                skips_ids=False,
                is_complete=state.is_complete and state.server == server,
                wants_full_copy=state.wants_full_copy or state.is_server,
                in_sync=InSync.NO,
            )

    def save_position(self, position: Position) -> None:
        """Record how far the stream is applied, without a sync."""
        if position != self.position and self._file is not None:
            data = _POSITION.pack(position.life, position.applied, position.at_most, self._boot)
            self._file.write(0, [data + _CRC.pack(zlib.crc32(data))])
            self.position = position

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _state_in(data: bytes) -> State:
    """Decode the state. Raise DataDirectoryError."""
    try:
        facts: dict[str, Any] = json.loads(data)
        if facts.pop("format") != FORMAT:
            raise ValueError
        return State(**{**facts, "in_sync": InSync(facts["in_sync"])})
    except (ValueError, KeyError, TypeError):
        raise DataDirectoryError(
            f"{STATE_FILE} in the data directory is damaged, or of a newer version of Curbstone"
        ) from None


def server_state_files(disk: Disk) -> StateFiles:
    """Return the state files of a server. The first time, an id is created. Blocks."""
    files = StateFiles(disk, b"")
    if not files.state.server:
        files.change(server=secrets.token_hex(16), term=1, is_server=True)
    return files
