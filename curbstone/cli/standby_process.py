"""The process of `curbstone standby`: it keeps a copy of a server up to date until it is promoted or stopped.

It has three threads: one receives and applies, one acknowledges, and one polls for the request of `curbstone promote`,
which is a file in the data directory, so only users who may write there can promote. Two more poll the lease, if there
is one, and compare the copy with the server at intervals. `figures` may be called on any thread.
"""

from __future__ import annotations

import errno
import json
import logging
import shutil
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curbstone.backup.receive import private_files
from curbstone.cli.client import Client, Refused
from curbstone.cli.copy_verifier import CopyVerifier
from curbstone.cli.follow import FINAL, SILENT_S
from curbstone.cli.output import size
from curbstone.core.disk import OsDisk, sync_path
from curbstone.core.errors import DataDirectoryError
from curbstone.exit_codes import WRONG, CommandFailed
from curbstone.gateway.resources.server.standby_status import StandbyFigures
from curbstone.http_client import Backoff
from curbstone.standby.applying import DiskFull, SyncFailed
from curbstone.standby.clock import boot_id, now_ms
from curbstone.standby.frames import BadFrame
from curbstone.standby.lag import Lag
from curbstone.standby.restoring import FILES_MAX
from curbstone.standby.scope import NO_DATA, STATE_DIR
from curbstone.standby.second_copy import CannotFollow, NotPromoted, SecondCopy
from curbstone.standby.state_files import STATE_FILE, State, StateFiles
from curbstone.standby.threads import SyncThreads

if TYPE_CHECKING:
    from curbstone.standby.lease_watch import LeaseWatch

ACK_S = 0.2
"""The interval of acknowledgements if something has changed and the server does not wait for them."""
ACK_S_MAX = 1.0
"""The interval of acknowledgements if nothing has changed."""
POLL_S = 0.1
REPLY_S_MAX = 60
BEHIND_BYTES = 8 * 1024 * 1024
"""After so many bytes without a pause of the server, the copy counts as far behind."""
PAUSE_S = 0.005
"""The shortest time without data that counts as a pause of the server."""

REQUEST, REPLY = "promote", "promoted"

log = logging.getLogger("curbstone.standby")


class _DiskFailed(Exception):
    """The disk of the copy has failed. It is no OSError, because that would be an error of the connection."""


class StandbyProcess:
    """See the module's docstring."""

    def __init__(
        self, data: Path, *, discards: bool, lease: LeaseWatch | None = None, verify_every_s: int | None = None
    ) -> None:
        """`discards`: whether data that only a former server has may be overwritten.

        `lease`: the lease that the copy needs to become a server. `verify_every_s`: the interval of comparisons with
        the server.
        """
        self._data = data
        self._lease = lease
        self._verify_every_s = verify_every_s
        self._discards = discards
        self._threads = SyncThreads(self._synced)
        self._client: Client | None = None
        self._more = threading.Event()
        """Set when there may be something to acknowledge."""
        self._wake = threading.Event()
        """Set when a promotion is requested."""
        self._promotion: bool | None = None
        """The requested promotion: whether it accepts loss; None if none is requested."""
        self._is_ended = False
        self._must_compare = False
        self._has_connected = False
        self._lag = Lag()
        self._applied_bytes = 0
        self._trouble = ""
        """Why it can't apply the stream; "" if it can."""
        self._disk = OsDisk(data, FILES_MAX)
        self._copy = self._opened()
        self._verifier = CopyVerifier(data, lambda: self._copy)

    def _opened(self) -> SecondCopy:
        return SecondCopy(self._disk, boot_id(), self._threads, now_ms)

    def _synced(self) -> None:
        self._more.set()

    def figures(self) -> StandbyFigures:
        """Return the state of the copy."""
        copy, lag, now = self._copy, self._lag, now_ms()
        applier, state = copy.applier, copy.state
        lag.reached(applier.durable)
        return StandbyFigures(
            server=state.server,
            term=state.term,
            is_connected=copy.attached is not None,
            is_usable=applier.is_usable,
            possible_loss=copy.possible_loss if self._lease is None else self._lease.loss_on_failover(copy),
            is_catching_up=state.is_catching_up,
            position=applier.applied,
            applied_bytes=self._applied_bytes,
            lag_bytes=lag.behind_bytes(applier.applied),
            lag_ms=None if lag.current_ms is None else now - lag.current_ms,
            disk_free_bytes=shutil.disk_usage(self._data).free,
            trouble=self._trouble,
            syncs=self._disk.sync_times.took_us,
            verified_bytes=self._verifier.verified_bytes,
            different_blocks=self._verifier.different_blocks,
        )

    def run(self) -> None:
        """Return when the copy is promoted. Raise CommandFailed if the server refuses for good; KeyboardInterrupt."""
        runs = [self._acknowledge, self._watch_requests, *([self._watch_lease] if self._lease is not None else [])]
        if self._verify_every_s is not None:
            runs.append(partial(self._verifier.run_every, self._verify_every_s, lambda: self._is_ended))
        helpers = [threading.Thread(target=run, daemon=True) for run in runs]
        pauses = Backoff(0.2, 10)
        try:
            with private_files():
                for name in (REQUEST, REPLY):
                    (self._data / STATE_DIR / name).unlink(missing_ok=True)
                for helper in helpers:
                    helper.start()
                while not self._is_promoted():
                    try:
                        self._follow(pauses)
                    except (CommandFailed, BadFrame, CannotFollow) as error:
                        self._failed(error)
                        if self._promotion is None:
                            pause_s = pauses.next_s()
                            log.warning("%s; retrying in %g s", error, pause_s)
                            self._wake.wait(pause_s)
                        self._wake.clear()
                    except (_DiskFailed, SyncFailed) as error:
                        log.error("%s", error)
                        self._trouble = str(error)
                        self._reopen()
        finally:
            self._is_ended = True
            if self._lease is not None:
                self._lease.close()
            self._threads.close()
            self._copy.close()
            self._disk.close()

    def _failed(self, error: Exception) -> None:
        """Raise the error if another attempt would not help."""
        self._must_compare = isinstance(error, BadFrame)
        if isinstance(error, CannotFollow):
            raise CommandFailed(f"{self._data} can't follow {self._url()}: {error}") from None
        if isinstance(error, Refused) and error.status in FINAL and not self._has_connected:
            raise error
        if isinstance(error, CommandFailed) and error.code == WRONG and not self._has_connected:
            raise error

    def _url(self) -> str:
        return self._client.url if self._client is not None else "the server"

    def _reopen(self) -> None:
        """Record the failure of the disk, and open the copy again, as a new process would."""
        while True:
            try:
                self._copy.applier.record_failure()
                self._copy.close()
                self._copy = self._opened()
                return
            except (OSError, SyncFailed) as error:
                log.error("the disk failed: %s; retrying in 1 s", error)
                time.sleep(1)

    # --- the connection

    def _follow(self, pauses: Backoff) -> None:
        with Client(self._lease.holder_url if self._lease is not None else "") as client:
            self._client = client
            facts = client.call("GET", "/v2/standby", timeout=SILENT_S).json()
            if facts.get("role") == "standby":
                raise CommandFailed(f"{client.url} is a standby itself and can't be followed")
            if not facts["enabled"]:
                raise Refused(501, f"followers are not enabled on {client.url}: start it with --standby-backlog 64MiB")
            self._has_connected = True
            self._assign(facts["server"], facts["term"])
            life = int(facts["life"], 16)
            try:
                request = self._request(life, compares=self._must_compare)
                self._receive(client, request, pauses)
            except Refused as error:
                if error.status != 410:
                    raise
                self._receive(client, self._request(life, compares=True), pauses)
            finally:
                self._copy.attached = None
                self._lag.begin()

    def _assign(self, server: str, term: int) -> None:
        state = self._copy.state
        if state.is_server and state.server == server and term > state.term and not self._discards:
            self._set_aside(state.term)
        self._copy.assign(server, term)

    def _set_aside(self, term: int) -> None:
        """Move the data of a former server aside: some may have been confirmed, and be on no other disk."""
        kept = self._data.with_name(f"{self._data.name}.kept-{term}")
        if kept.exists():
            raise CannotFollow(f"{kept} exists already; move it, or add --discard")
        self._copy.close()
        self._disk.close()
        try:
            self._data.rename(kept)
            sync_path(kept.parent)
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EXDEV):
                raise CannotFollow(
                    f"it is a mount point, so what a former server left there can't be moved to {kept}; copy that"
                    " elsewhere, then add --discard, which overwrites it"
                ) from None
            raise CannotFollow(f"it can't be moved to {kept}: {error.strerror}; or add --discard") from None
        log.warning("this was a server of term %d; its data were moved to %s", term, kept)
        self._disk = OsDisk(self._data, FILES_MAX)
        self._copy = self._opened()

    def _request(self, life: int, *, compares: bool) -> dict[str, Any]:
        try:
            return {"name": socket.gethostname()[:100], **self._copy.request(life, compares=compares)}
        except OSError as error:
            raise _DiskFailed(f"the copy can't be read: {error.strerror or error}") from error

    def _receive(self, client: Client, request: dict[str, Any], pauses: Backoff) -> None:
        copy = self._copy
        was_attached = was_complete = False
        in_a_row, applied_s = 0, time.monotonic()
        with client.stream("POST", "/v2/standby/stream", json=request, timeout=SILENT_S) as pieces:
            for piece in pieces:
                has_paused = time.monotonic() - applied_s > PAUSE_S
                self._apply(piece)
                applied_s = time.monotonic()
                self._applied_bytes += len(piece)
                self._trouble = ""
                if copy.is_handed_over:
                    log.info("%s has handed over", client.url)
                    return
                attached = copy.attached
                if attached is None:
                    continue
                if attached.confirms_wait:
                    self._more.set()
                else:
                    in_a_row = 0 if has_paused else in_a_row + len(piece)
                    self._switch_syncs(is_behind=in_a_row > BEHIND_BYTES)
                if not was_attached:
                    was_attached = True
                    pauses.reset()
                    self._must_compare = False
                    how = "comparing" if request.get("had") else "receiving a full copy"
                    log.info("following %s: %s", client.url, "resuming" if attached.is_resumed else how)
                if not was_complete and copy.applier.is_usable:
                    was_complete = True
                    log.info("the copy is complete, at position %s of the stream", size(copy.applier.applied))
        raise CommandFailed(f"{client.url} ended the stream")

    def _switch_syncs(self, *, is_behind: bool) -> None:
        """Apply without syncs while the copy is far behind, unless confirms wait for it."""
        applier = self._copy.applier
        is_catching_up = self._copy.state.is_catching_up
        try:
            if is_behind and not is_catching_up and applier.is_usable:
                log.info("far behind: catching up without syncs")
                applier.catch_up()
            elif is_catching_up and not is_behind:
                applier.caught_up()
                log.info("caught up")
        except OSError as error:
            raise _DiskFailed(f"the disk failed: {error}") from error

    def _apply(self, piece: bytes) -> None:
        is_full = False
        while True:
            try:
                if is_full:
                    self._copy.applier.apply_waiting()
                else:
                    self._copy.receive(piece)
                return
            except DiskFull as error:
                if not is_full:
                    log.error("disk full: %s; retrying every second", error)
                    self._trouble = f"disk full: {error}"
                is_full = True
                if self._wake.wait(1):
                    raise _DiskFailed(str(error)) from None
            except OSError as error:
                raise _DiskFailed(f"the disk failed: {error}") from error

    def _acknowledge(self) -> None:
        client: Client | None = None
        last: dict[str, Any] = {}
        last_ms = 0
        while not self._is_ended:
            self._more.wait(ACK_S)
            self._more.clear()
            copy, begun_ms = self._copy, now_ms()
            attached = copy.attached
            ack = copy.ack()
            # Nothing is sent without a change, because the next change would have to wait for the reply.
            has_changed = any(ack[name] != last.get(name) for name in ("durable", "is_usable"))
            if attached is None or not (has_changed or begun_ms - last_ms >= ACK_S_MAX * 1000):
                continue
            try:
                client = client or Client()
                reply = client.call("POST", "/v2/standby/stream/acks", json=ack, timeout=SILENT_S).json()
                if reply["believed"]:
                    copy.note_in_sync(begun_ms)
                self._lag.replied(reply.get("position", 0), begun_ms)
                self._lag.reached(copy.applier.durable)
                last, last_ms = ack, begun_ms
            except (CommandFailed, OSError) as error:
                if isinstance(error, Refused) and error.status != 409:  # other errors are reported by the stream
                    log.warning("can't send an acknowledgement: %s", error)
                if client is not None:
                    client.__exit__(None, None, None)
                client, last = None, {}
                time.sleep(ACK_S)

    # --- promotion

    def _watch_requests(self) -> None:
        """Poll for requests of `curbstone promote`."""
        request_file = self._data / STATE_DIR / REQUEST
        while not self._is_ended:
            time.sleep(POLL_S)
            if self._promotion is not None or not request_file.exists():
                continue
            try:
                accepts_loss = json.loads(request_file.read_bytes())["accepts_loss"] is True
                request_file.unlink()
                self._check(accepts_loss=accepts_loss)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # it is being written
            except NotPromoted as error:
                self._reply("refused", error)
            else:
                self._request_promotion(accepts_loss=accepts_loss)

    def _watch_lease(self) -> None:
        """Poll the lease, and request a promotion when the copy may take the lease."""
        lease, reported = self._lease, ""
        assert lease is not None
        while not self._is_ended:
            reason = ""
            try:
                lease.refresh()
                if self._promotion is None and not self._copy.is_handed_over:
                    self._check(accepts_loss=False)
                    self._request_promotion(accepts_loss=False)
            except NotPromoted as error:
                reason = f"the lease has expired, but this copy does not take it: {error}" if lease.is_expired else ""
            except (OSError, ValueError) as error:
                reason = f"the lease can't be read: {error}"
            if reason and reason != reported:
                log.warning("%s", reason)
            reported = reason
            time.sleep(lease.poll_s)

    def _check(self, *, accepts_loss: bool) -> None:
        """Raise NotPromoted if the copy must not be promoted now."""
        if self._lease is not None:
            self._lease.possible_loss(self._copy, self._lag.current_ms, accepts_loss=accepts_loss)
        else:
            self._copy.check(accepts_loss=accepts_loss)

    def _request_promotion(self, *, accepts_loss: bool) -> None:
        """Have the receiving thread promote the copy."""
        self._promotion = accepts_loss
        self._wake.set()
        if self._client is not None:
            self._client.interrupt()

    def _is_promoted(self) -> bool:
        accepts_loss, self._promotion = self._promotion, None
        if self._copy.is_handed_over:
            accepts_loss = False
        if accepts_loss is None:
            return False
        copy = self._copy
        try:
            if self._lease is not None:
                possible_loss = self._lease.take(copy, self._lag.current_ms, accepts_loss=accepts_loss)
                copy.take_over(possible_loss)
            else:
                possible_loss = copy.promote(accepts_loss=accepts_loss)
        except (NotPromoted, SyncFailed, OSError) as error:
            log.error("not promoted: %s", error)
            self._reply("refused", error)
            return False
        text = promoted(self._copy, possible_loss)
        log.warning("%s", text)
        self._reply("done", text)
        return True

    def _reply(self, kind: str, text: object) -> None:
        fresh = self._data / STATE_DIR / f"{REPLY}.new"
        with suppress(OSError):
            fresh.write_text(json.dumps({kind: str(text)}), encoding="utf-8")
            fresh.rename(self._data / STATE_DIR / REPLY)


def should_serve(data: Path, lease: LeaseWatch | None = None) -> bool:
    """Return whether a directory was promoted, and the configured server was not promoted later.

    With a lease, the lease decides instead, even for the directory of a server that never had a copy.
    """
    if not (data / STATE_FILE).is_file():
        has_data = data.is_dir() and any(each.name not in NO_DATA for each in data.iterdir())
        return lease is not None and has_data and lease.may_serve(State())
    state = StateFiles(OsDisk(data, is_shared=True), b"").state
    if lease is not None:
        return state.is_server and lease.may_serve(state)
    if not state.is_server or state.term == 1:
        return False
    try:
        with Client() as client:
            facts = client.call("GET", "/v2/standby", timeout=SILENT_S).json()
    except CommandFailed as error:
        log.warning("%s; serving %s, which was promoted", error, data)
        return True
    return not (facts.get("server") == state.server and facts["term"] > state.term)


def promote(data: Path, *, accepts_loss: bool) -> str:
    """Promote a copy, or request that of its running process; return the result as text. Raise CommandFailed."""
    if not (data / STATE_FILE).is_file():
        raise CommandFailed(f"{data} is not a copy of a server; create one with curbstone standby")
    try:
        disk = OsDisk(data, FILES_MAX)
    except DataDirectoryError:
        return _request_and_wait(data, accepts_loss)
    threads = SyncThreads(lambda: None)
    try:
        copy = SecondCopy(disk, boot_id(), threads, now_ms)
        possible_loss = copy.promote(accepts_loss=accepts_loss)
        copy.close()
        return f"{promoted(copy, possible_loss)}; start it with curbstone serve --data {data}"
    except (NotPromoted, SyncFailed) as error:
        raise CommandFailed(f"{data} was not promoted: {error}") from None
    finally:
        threads.close()
        disk.close()


def _request_and_wait(data: Path, accepts_loss: bool) -> str:
    if StateFiles(OsDisk(data, is_shared=True), b"").state.is_server:
        raise CommandFailed(f"{data} is the directory of a running server already")
    request_file, reply_file = data / STATE_DIR / REQUEST, data / STATE_DIR / REPLY
    reply_file.unlink(missing_ok=True)
    fresh = request_file.with_suffix(".new")
    fresh.write_text(json.dumps({"accepts_loss": accepts_loss}), encoding="utf-8")
    fresh.rename(request_file)
    until_s = time.monotonic() + REPLY_S_MAX
    while time.monotonic() < until_s:
        time.sleep(POLL_S)
        with suppress(FileNotFoundError):
            found = json.loads(reply_file.read_bytes())
            reply_file.unlink()
            if "done" in found:
                return str(found["done"])
            raise CommandFailed(f"{data} was not promoted: {found['refused']}")
    request_file.unlink(missing_ok=True)
    raise CommandFailed(f"the curbstone standby process of {data} did not reply in {REPLY_S_MAX} s")


def promoted(copy: SecondCopy, possible_loss: str) -> str:
    """Return the result of a promotion as text."""
    what = (
        f"something that was confirmed may be missing: {possible_loss}"
        if possible_loss
        else "nothing that was confirmed is missing"
    )
    return f"promoted to term {copy.state.term}; {what}"
