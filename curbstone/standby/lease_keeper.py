"""Acquires the lease when a server starts, and renews it on a thread."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from curbstone.core.errors import Unavailable
from curbstone.exit_codes import REPLACED, CommandFailed
from curbstone.standby.clock import now_ms
from curbstone.standby.lease import (
    POLLS,
    RENEWALS,
    BadLease,
    Holder,
    Lease,
    LeaseStore,
    NotFree,
    Replaced,
    UnfitStore,
    Watch,
    call_store,
)
from curbstone.standby.state_files import StateFiles, server_state_files

if TYPE_CHECKING:
    from curbstone.core.disk import Disk
    from curbstone.settings import Settings

RETRY_S = 0.5
"""The pause after a failed call to the store."""
POLL_S = 0.02

logger = logging.getLogger("curbstone")


class LeaseFigures(NamedTuple):
    """The state of the lease of a server."""

    name: str
    valid_ms: int
    """How long the server may still confirm without a renewal."""
    standbys: int
    """How many standbys are in sync, so that they could take it."""
    ttl_ms: int
    failures: int
    """How many calls to the store have failed."""


class LeaseKeeper:
    """See the module's docstring."""

    def __init__(self, store: LeaseStore, holder: Holder) -> None:
        self.holder = holder
        self.replaced: Lease | None = None
        """The lease of another server, if there is one."""
        self._store = store
        self._handover_to = ""
        """The copy that it is being handed over to."""
        self._wake = threading.Event()
        self._heartbeat_ms: int | None = None
        """The time of the last `heartbeat`; None before the server serves."""

    def start(self) -> None:
        """Start renewing. The thread ends with the process."""
        threading.Thread(target=self._run, name="curbstone-lease", daemon=True).start()

    def _run(self) -> None:
        while self.replaced is None:
            try:
                if self.is_stuck:
                    raise OSError("the event loop of the server is stuck")
                self._call_store()
                pause_s = self.holder.pause_ms() / 1000
            except Replaced as error:
                self.replaced = error.lease
                self._store.close()
                return
            except (OSError, BadLease) as error:
                logger.warning("the lease can't be renewed: %s", error)
                pause_s = RETRY_S
            self._wake.wait(pause_s)
            self._wake.clear()

    def _call_store(self) -> None:
        """Make the calls to the store that are due. Raise Replaced, OSError or BadLease."""
        while (call := self.holder.call()) is not None:
            try:
                self.holder.answer(call_store(self._store, call))
            except (OSError, BadLease):
                self.holder.failed()
                raise

    def acquire(self) -> None:
        """Retry until the lease is held. Blocks. Raise Replaced."""
        while not self.holder.holds:
            try:
                self._call_store()
            except (OSError, BadLease) as error:
                logger.warning("the lease can't be acquired: %s", error)
                time.sleep(RETRY_S)

    @property
    def end_reason(self) -> str:
        """Why the server has to shut down, or ""."""
        if self.replaced is not None and self.replaced.holder != self._handover_to:
            return str(Replaced(self.replaced))
        if self.holder.is_expired:
            return "the lease could not be renewed in time, and a standby may take it"
        return ""

    @property
    def is_stuck(self) -> bool:
        """Whether the server has not called `heartbeat` for a third of the TTL, so that another one should serve."""
        heartbeat_ms = self._heartbeat_ms
        return heartbeat_ms is not None and now_ms() - heartbeat_ms > self.holder.lease.ttl_ms // RENEWALS

    def heartbeat(self) -> None:
        """Report that the server's thread is running. Called at least once a second."""
        self._heartbeat_ms = now_ms()

    def name_in_sync(self, *copies: str) -> None:
        """See `Holder.name_in_sync`."""
        if self.holder.lease.sync != copies:
            self.holder.name_in_sync(*copies)
            self._wake.set()

    def hand_over(self, copy: str, name: str) -> None:
        """Hand over the lease to a copy. Blocks. After Unavailable, the server continues once it holds it again."""
        self._handover_to = copy
        self.holder.hand_over(copy, name)
        self._wake.set()
        while not (self.holder.holds or self.holder.is_expired):
            if self.replaced is not None and self.replaced.holder == copy:
                return
            time.sleep(POLL_S)
        self._handover_to = ""
        raise Unavailable(f"the lease could not be handed over to {name}; nothing was changed")

    def figures(self) -> LeaseFigures:
        holder = self.holder
        lease = holder.lease
        valid_ms = max(holder.valid_until_ms - now_ms(), 0)
        return LeaseFigures(lease.name, valid_ms, len(lease.sync), lease.ttl_ms, holder.failures)


def store_at(url: str, ttl_s: float) -> LeaseStore:
    """Return the store at a URL. Raise Unavailable."""
    try:
        return _store_at(url, ttl_s / RENEWALS)
    except ImportError as error:
        raise Unavailable(f"--lease {url} needs obstore: pip install 'curbstone[objects]' ({error})") from error
    except OSError as error:
        raise Unavailable(f"--lease {url}: {error}") from error


def _store_at(url: str, timeout_s: float) -> LeaseStore:
    scheme, _, place = url.partition("://")
    if scheme == "k8s":
        from curbstone.standby.kubernetes_lease import KubernetesLease

        namespace, _, name = place.partition("/")
        return KubernetesLease(namespace, name, timeout_s)
    from curbstone.standby.object_lease import ObjectLease

    return ObjectLease(url, timeout_s)


def acquire(store: LeaseStore, server: Lease) -> LeaseKeeper:
    """Acquire the lease of a server. Blocks. Raise Unavailable or CommandFailed if it can't be acquired.

    `server.sync` are the copies that the record may name from the start.
    """
    watch = Watch(now_ms)
    is_checked = is_waiting = False
    while True:
        try:
            if not is_checked:
                store.check()
                is_checked = True
            watch.observe(store.read())
            lease = watch.lease_for(server)
            if lease is not None:
                version = watch.found.version if watch.found is not None else None
                keeper = LeaseKeeper(store, Holder(lease, version, now_ms))
                with suppress(Replaced):  # by another server in the meantime: read again
                    keeper.acquire()
                    keeper.start()
                    return keeper
        except Replaced as error:
            raise CommandFailed(
                f"{error}: it has replaced this one. Follow it with curbstone standby", REPLACED
            ) from None
        except (NotFree, BadLease, UnfitStore) as error:
            raise Unavailable(f"the lease can't be used: {error}") from error
        except OSError as error:
            logger.warning("the lease can't be read: %s", error)
        else:
            if not is_waiting:
                is_waiting = True
                logger.warning(
                    "waiting for the lease: %s holds it", watch.found.lease.name if watch.found else "nobody"
                )
        time.sleep(server.ttl_ms / 1000 / POLLS)


def acquired(disk: Disk, settings: Settings) -> LeaseKeeper:
    """Acquire the lease of the server of a directory; see `acquire`."""
    assert settings.lease
    files = server_state_files(disk)
    try:
        return acquire(store_at(settings.lease, settings.lease_ttl), lease_of(files, settings))
    finally:
        files.close()


def lease_of(files: StateFiles, settings: Settings) -> Lease:
    """Return the lease as the server of a directory would hold it."""
    if not files.state.copy:
        files.change(copy=secrets.token_hex(16))
    state = files.state
    is_sync = settings.confirm_with == "standby" and state.believed
    return Lease(
        server=state.server,
        term=state.term,
        holder=state.copy,
        name=socket.gethostname()[:100],
        url=settings.advertise,
        sync=(state.believed,) if is_sync else (),
        ttl_ms=int(settings.lease_ttl * 1000),
    )
