"""Watches the lease in a standby, and takes it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

from curbstone.exit_codes import CommandFailed
from curbstone.standby.clock import now_ms
from curbstone.standby.frames import InSync
from curbstone.standby.lease import (
    POLLS,
    BadLease,
    Candidate,
    Found,
    Holder,
    Lease,
    NotFree,
    Replaced,
    Watch,
    call_store,
)
from curbstone.standby.lease_keeper import store_at
from curbstone.standby.second_copy import NotPromoted, SecondCopy
from curbstone.standby.state_files import State

if TYPE_CHECKING:
    from curbstone.settings import Settings

log = logging.getLogger("curbstone.standby")


class LeaseWatch:
    """See the module's docstring. May be used on any thread. Methods that call the store block."""

    def __init__(self, settings: Settings) -> None:
        """Raise Unavailable if the store can't be used."""
        self._store = store_at(settings.lease, settings.lease_ttl)
        self._url = settings.advertise
        self._ttl_ms = int(settings.lease_ttl * 1000)
        self._lag_ms = None if settings.failover_lag is None else int(settings.failover_lag * 1000)
        self._watch = Watch(now_ms)
        self._lock = threading.RLock()
        self.poll_s = settings.lease_ttl / POLLS
        """The pause between two reads."""

    @property
    def found(self) -> Found | None:
        """The lease at the last read."""
        return self._watch.found

    @property
    def is_expired(self) -> bool:
        """See `Watch.is_expired`."""
        return self._watch.is_expired

    @property
    def holder_url(self) -> str:
        """The URL of the holder; "" if it was not given, or is the URL of this machine."""
        found = self._watch.found
        return "" if found is None or found.lease.url == self._url else found.lease.url

    def refresh(self) -> None:
        """Read the lease. Raise OSError or BadLease."""
        with self._lock:
            self._watch.observe(self._store.read())

    def possible_loss(self, copy: SecondCopy, reaches_ms: int | None, *, accepts_loss: bool = False) -> str:
        """Return why confirmed messages may be missing if a copy takes the lease now, or "". Raise NotPromoted."""
        state = copy.state
        is_in_sync, is_usable = state.in_sync != InSync.NO, copy.applier.is_usable
        candidate = Candidate(state.copy, state.server, state.term, is_usable, is_in_sync, reaches_ms)
        try:
            return self._watch.possible_loss(candidate, self._lag_ms, accepts_loss=accepts_loss)
        except NotFree as error:
            raise NotPromoted(str(error)) from None

    def loss_on_failover(self, copy: SecondCopy) -> str:
        """Return why a failover to a copy could lose confirmed messages if the holder failed now, or ""."""
        found, state = self._watch.found, copy.state
        is_named = found is not None and state.copy in (found.lease.holder, *found.lease.sync)
        if copy.is_handed_over or (is_named and state.in_sync != InSync.NO):
            return ""
        return "the lease does not name this copy as in sync"

    def take(self, copy: SecondCopy, reaches_ms: int | None, *, accepts_loss: bool = False) -> str:
        """Take the lease for a copy that is about to be promoted; return what `possible_loss` returns.

        Raise NotPromoted, or OSError if it is unknown whether it was taken: then call this again.
        """
        with self._lock:  # so that the version that is replaced is the one that was checked
            try:
                self.refresh()
                possible_loss = self.possible_loss(copy, reaches_ms, accepts_loss=accepts_loss)
                self._take(copy.state)
            except (BadLease, Replaced) as error:
                raise NotPromoted(str(error)) from None
        return possible_loss

    def _take(self, state: State) -> None:
        found = self._watch.found
        assert found is not None
        lease = Lease(
            server=state.server,
            term=state.term + 1,
            holder=state.copy,
            name=socket.gethostname()[:100],
            url=self._url,
            sync=(),
            ttl_ms=self._ttl_ms,
        )
        holder = Holder(lease, found.version, now_ms)
        call = holder.call()
        assert call is not None
        holder.answer(call_store(self._store, call))

    def close(self) -> None:
        with self._lock:
            self._store.close()

    def may_serve(self, state: State) -> bool:
        """Return whether the server of a directory may start: no other one has replaced it. Raise CommandFailed."""
        while True:
            try:
                self.refresh()
            except BadLease as error:
                raise CommandFailed(str(error)) from None
            except OSError as error:
                log.warning("the lease can't be read: %s", error)
                time.sleep(self.poll_s)
            else:
                found = self._watch.found
                return found is None or found.lease.server != state.server or found.lease.term <= state.term
