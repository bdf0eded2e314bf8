"""A copy of a server in a directory, which is kept up to date over a connection, and may become a server itself.

`assign` a server, `request` its stream, `receive` what it sends, and acknowledge by `ack`. Whether a confirmed message
may be missing is decided here, from the last report of the server and its age.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from curbstone.core.disk import Disk
from curbstone.standby.applying import Applier, Syncs
from curbstone.standby.copying import digests
from curbstone.standby.frames import ATTACHED_BYTES, Attached, BadFrame, InSync
from curbstone.standby.scope import NO_DATA
from curbstone.standby.state_files import State, StateFiles

DIGESTS_BYTES_MAX = 24 * 1024 * 1024
"""The limit of the digests that are sent; what they do not cover is copied."""
DIGITS = 16


class CannotFollow(Exception):
    """The directory can't become or stay a copy of the server. The text says what to do."""


class NotPromoted(Exception):
    """The copy was not promoted. The text says why."""


class SecondCopy:
    """See the module's docstring. `ack` may be called on any thread, all else on one; it blocks."""

    def __init__(self, disk: Disk, boot: bytes, syncs: Syncs, now_ms: Callable[[], int]) -> None:
        """`now_ms` is a clock that also runs while the machine sleeps."""
        self.state_files = StateFiles(disk, boot)
        self.applier = Applier(disk, syncs, self.state_files)
        self.key = secrets.token_hex(DIGITS)
        """Identifies its acknowledgements."""
        self.attached: Attached | None = None
        """The first frame of the connection; None if it was not received yet."""
        self._disk = disk
        self._now_ms = now_ms
        self._head = b""
        self._requested: tuple[int, int] | None = None
        """The life and the position from which it has asked to resume."""
        self._in_sync_ms: int | None = None
        """When the last acknowledgement was sent after which the server did not confirm alone."""

    @property
    def state(self) -> State:
        return self.state_files.state

    @property
    def is_empty(self) -> bool:
        """Whether the directory has no data."""
        return set(self._disk.list_dir("")) <= NO_DATA

    # --- connections

    def assign(self, server: str, term: int) -> None:
        """Become a copy of a server, or stay one. Raise CannotFollow."""
        state = self.state
        if not state.server and not self.is_empty:
            raise CannotFollow("it has data that are not a copy of a server; use an empty directory")
        if state.server and state.server != server:
            raise CannotFollow(f"it has data of server {state.server[:8]}, not of {server[:8]}; use an empty directory")
        if state.is_server and term <= state.term:
            raise CannotFollow(
                f"it is the directory of a server of term {state.term}, and the other server, of term {term}, was not"
                " promoted after this one. Start this one with curbstone serve"
            )
        if term >= state.term:  # a server of a lower term is notified by the request, and shuts down
            self.state_files.assign(server, term)

    def request(self, life: int, *, compares: bool) -> dict[str, Any]:
        """Return the request for the stream of a server, in its current life. `compares` reads the whole copy."""
        state, position = self.state, self.state_files.position
        asked: dict[str, Any] = {"server": state.server, "term": state.term, "copy_id": state.copy, "key": self.key}
        self.attached, self._head, self._requested = None, b"", None
        if not compares and self.state_files.can_resume and position is not None and position.life == life:
            position = self.applier.resume()
            self._requested = life, position.applied
            return asked | {"life": f"{life:016x}", "position": position.applied, "only_resume": True}
        if state.wants_full_copy:
            return asked | {"copy_all": True}
        return asked | {"had": _encoded(digests(self._disk))}

    def receive(self, data: bytes) -> None:
        """Apply what was received. Raise BadFrame, DiskFull, SyncFailed or OSError."""
        if self.attached is None:
            data = self._head + data
            if len(data) < ATTACHED_BYTES:
                self._head = data
                return
            self._begin(Attached.decode(data[:ATTACHED_BYTES]))
            data = data[ATTACHED_BYTES:]
        self.applier.receive(data)

    def _begin(self, attached: Attached) -> None:
        if attached.is_resumed:
            if (attached.life, attached.position) != self._requested:
                raise BadFrame(f"the server resumes at {attached.position}; requested: {self._requested}")
        else:
            self.applier.begin(attached.life, attached.position)
        if attached.is_out_of_sync:
            self.state_files.change(in_sync=InSync.NO)
        self.attached = attached

    def ack(self) -> dict[str, Any]:
        """Return the acknowledgement to send."""
        applier = self.applier
        return {
            "key": self.key,
            "durable": applier.durable,
            "applied": applier.applied,
            "is_usable": applier.is_usable,
        }

    def note_in_sync(self, sent_ms: int) -> None:
        """Note that the server did not confirm alone when it received an acknowledgement sent at this time."""
        self._in_sync_ms = sent_ms

    # --- the end

    @property
    def is_handed_over(self) -> bool:
        """Whether the server has handed over to this copy."""
        return self.state.in_sync is InSync.HANDED_OVER

    @property
    def possible_loss(self) -> str:
        """Why a confirmed message may be missing; "" if none can be."""
        state = self.state
        if self.is_handed_over:
            return ""
        if state.in_sync == InSync.NO:
            return "the server did not wait for this copy before it confirmed"
        if not state.alone_after_ms:
            return ""
        after = f"and it confirms alone after {state.alone_after_ms / 1000:g} s"
        if self._in_sync_ms is None:
            return f"this process has received no reply from the server, {after}"
        silent_ms = self._now_ms() - self._in_sync_ms
        if silent_ms >= state.alone_after_ms:
            return f"the last reply of the server was {silent_ms / 1000:.1f} s ago, {after}"
        return ""

    def check(self, *, accepts_loss: bool) -> str:
        """Return why a confirmed message may be missing, or "". Raise NotPromoted if the copy must not be promoted."""
        if self.state.is_server:
            raise NotPromoted("it is a server already; start it with curbstone serve")
        if not self.applier.is_usable:
            raise NotPromoted(
                "the copy is not complete, so no server can start on it; let it follow until it is, or restore a backup"
            )
        possible_loss = self.possible_loss
        if possible_loss and not accepts_loss:
            raise NotPromoted(
                f"something that was confirmed may be missing: {possible_loss}; --accept-loss promotes the copy anyway"
            )
        return possible_loss

    def promote(self, *, accepts_loss: bool) -> str:
        """Become a server: make everything durable, and increase the term. Return what `check` returns.

        Raise NotPromoted, SyncFailed or OSError.
        """
        possible_loss = self.check(accepts_loss=accepts_loss)
        self.applier.promote(skips_ids=bool(possible_loss))
        return possible_loss

    def take_over(self, possible_loss: str) -> None:
        """Become a server that holds the lease. Raise SyncFailed or OSError."""
        self.applier.promote(skips_ids=bool(possible_loss))

    def close(self) -> None:
        self.applier.close()


def _encoded(digests: Mapping[str, list[bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    left = DIGESTS_BYTES_MAX
    for path, blocks in digests.items():
        text = b64encode(b"".join(blocks)).decode()
        left -= len(path) + len(text) + 8
        if left < 0:
            break
        found[path] = text
    return found
