"""Notifies systemd of the state of a server with `Type=notify`; see sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket

from curbstone.core.host import Host

log = logging.getLogger("curbstone")

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


def notify(state: str) -> None:
    """Send a state to the socket in NOTIFY_SOCKET, if it is set."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            out.send(state.encode())
    except OSError as error:  # serving continues; systemd acts on missing notifications
        log.warning("can't send %s to systemd at %s: %s", state, address, error.strerror)


def keep_alive(host: Host) -> None:
    """Notify the watchdog from the event loop, twice in each period of the unit's WatchdogSec, if it is set."""
    period_us = int(os.environ.get("WATCHDOG_USEC") or 0)
    if not period_us or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return

    def again() -> None:
        notify(ALIVE)
        host.call_later(max(period_us // 2000, 1), again)

    again()
