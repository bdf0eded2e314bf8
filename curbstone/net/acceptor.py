"""The listeners of all protocols, and the steps of a new connection before its protocol starts.

The connection is counted (`connection_limits`). On a listener for proxies, the proxy then sends the address of its
client (`proxy_protocol`), and on a listener for TLS the handshake follows (`tls`). All steps share one deadline. The
address of the listener says what is expected; nothing is guessed from the first byte.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Hashable
from typing import cast

from curbstone.net.address import Address
from curbstone.net.certificates import Contexts
from curbstone.net.connection_limits import FULL, Admission, Slot
from curbstone.net.limits import BACKLOG, GREETING_S_MAX, KEEPALIVE, RETRANSMITS_MAX
from curbstone.net.peer import Certificate, Networks, Peer, plain_host
from curbstone.net.proxy_protocol import BadHeader, read_header
from curbstone.net.repeats import BriefLog
from curbstone.net.tls import Handshakes, TlsConnection

SWEEP_S = 1
"""How often all connections are checked."""
SWEEPS_VANISHED = 15
"""Every so many checks also ask the system whether peers have vanished."""
TURNS_TO_BEGIN = 3
"""After so many turns of the loop, each connection that asyncio has accepted has a slot."""

_INFO_BYTES, _RETRANSMITS_AT = 8, 2
"""How many bytes of struct tcp_info are read, and the offset of tcpi_retransmits in it."""

Serve = Callable[[Peer, Slot], asyncio.Protocol]
"""Returns the protocol of a new connection, which must call `Slot.leave` when the connection has ended."""
Refusal = Callable[[str], bytes]
"""Returns the reply to a refused client with this reason, encoded for the protocol."""

log = logging.getLogger("curbstone.net")


class Acceptor:
    """The process's acceptor. Needs a running event loop."""

    def __init__(
        self,
        admission: Admission | None = None,
        certificates: Contexts | None = None,
        trusted_proxies: Networks | None = None,
    ) -> None:
        """By default there are no limits, no TLS and no trusted proxies."""
        self.admission = admission or Admission()
        self.certificates = certificates
        self.trusted_proxies = trusted_proxies or Networks()
        self.handshakes = Handshakes()
        self._sweep: asyncio.TimerHandle | None = None
        self._sweeps = 0
        self.refusals = BriefLog(_call_later, log)
        """Logs why connections ended before their protocol started, and which users have used up their share."""
        self.admission.budget.on_held = self._report_full_share

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count unsent output. Abort connections whose peer has vanished or does not read its output.

        The system itself gives up a vanished peer only after a quarter of an hour.
        """
        self._sweep = loop.call_later(SWEEP_S, self._check, loop)
        self._sweeps += 1
        checks_vanished = self._sweeps % SWEEPS_VANISHED == 0
        now_s = self._sweeps * SWEEP_S  # a clock that stands still while the process is stopped
        for slot in list(self.admission.slots):
            transport = cast(asyncio.Transport, slot.transport)
            if transport is None:
                continue
            if slot.account.is_stuck(transport.get_write_buffer_size(), now_s) or (
                checks_vanished and is_vanished(transport.get_extra_info("socket"))
            ):
                transport.abort()
        self.admission.budget.check()

    def _report_full_share(self, who: Hashable) -> None:
        text = "its connections have reached the limit of unfinished input and unread output"
        self.refusals.info(who, str(who), text)

    async def close(self) -> None:
        """Abort all connections that are left. Call this when the listeners are closed and the process continues.

        Those whose protocol has not begun are in no server's set of clients.
        """
        for _ in range(TURNS_TO_BEGIN):
            await asyncio.sleep(0)
        for slot in list(self.admission.slots):
            if slot.transport is not None:
                cast(asyncio.Transport, slot.transport).abort()
        await asyncio.sleep(0)  # in this turn their sockets are closed

    async def listen(
        self, address: tuple[str, int] | Address, serve: Serve, refusal: Refusal, *, has_reserve: bool = False
    ) -> Listener:
        """Listen on an address; raise OSError if that fails. `has_reserve`: see `Admission.open_slot`."""
        at = Address(*address)
        assert self.certificates or not at.tls, "TLS without a certificate"
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Incoming(self, at, serve, refusal, has_reserve), at.host, at.port, backlog=BACKLOG
        )
        if self._sweep is None:
            self._sweep = loop.call_later(SWEEP_S, self._check, loop)
        host, port = server.sockets[0].getsockname()[:2]
        return Listener(server, (host, port))


class Listener:
    """An open listening socket."""

    def __init__(self, server: asyncio.Server, bound: tuple[str, int]) -> None:
        self._server = server
        self.bound = bound
        """The address it listens on, with the actual port if port 0 was requested."""

    def close(self) -> None:
        """Stop accepting connections. Open connections stay open."""
        self._server.close()


class Incoming(asyncio.Protocol):
    """An accepted connection, until its protocol starts."""

    def __init__(self, acceptor: Acceptor, address: Address, serve: Serve, refusal: Refusal, has_reserve: bool) -> None:
        self._acceptor = acceptor
        self._address = address
        self._serve = serve
        self._refusal = refusal
        self._has_reserve = has_reserve
        self._transport: asyncio.Transport
        self._slot: Slot | None = None
        self._peer: Peer
        self._header = b""
        self._is_refused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports have the methods of asyncio's type but do not inherit from it.
        self._transport = cast(asyncio.Transport, transport)
        host, port = transport.get_extra_info("peername", ("?", 0))[:2]
        self._peer = Peer(plain_host(str(host)), port)
        self._slot = self._acceptor.admission.open_slot(self._has_reserve)
        if self._slot is None:
            self._refuse(FULL)
            return
        self._slot.transport = transport
        _set_up(transport.get_extra_info("socket"))
        if self._address.tls or self._address.proxy:
            self._deadline = asyncio.get_running_loop().call_later(GREETING_S_MAX, self._time_out)
        if not self._address.proxy:
            self._begin(b"")
        elif host not in self._acceptor.trusted_proxies:
            self._abort("proxy", "it is not in --trusted-proxy, and only those may connect to this listener")

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._header += data
        try:
            header = read_header(self._header)
        except BadHeader as error:
            self._abort("proxy", str(error))
            return
        if header is None:
            return
        if header.host:
            self._peer = Peer(header.host, header.port, header.tls)
        self._begin(self._header[header.size :])

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()

    def _begin(self, rest: bytes) -> None:
        """Start TLS or the protocol, now that the client's address is known, or refuse the client."""
        assert self._slot is not None
        refusal = self._slot.set_address(self._peer.host)
        if refusal:
            self._refuse(refusal)
            return
        if self._address.tls:
            contexts = self._acceptor.certificates
            assert contexts is not None
            protocol: asyncio.Protocol = TlsConnection(
                contexts.context, self._acceptor.handshakes, self._handshake_done, self._handshake_failed
            )
        else:
            self._cancel_deadline()
            protocol = self._serve(self._peer, self._slot)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if rest:
            protocol.data_received(rest)

    def _handshake_done(self, _connection: TlsConnection, certificate: Certificate | None) -> asyncio.Protocol:
        assert self._slot is not None
        self._cancel_deadline()
        return self._serve(Peer(self._peer.host, self._peer.port, True, certificate), self._slot)

    def _handshake_failed(self, reason: str) -> None:
        self._log("tls", f"no TLS handshake: {reason}")
        self._release()

    def _time_out(self) -> None:
        self._abort("late", f"nothing complete arrived within {GREETING_S_MAX} s")

    def _abort(self, kind: str, reason: str) -> None:
        self._log(kind, f"closed: {reason}")
        self._transport.abort()

    def _log(self, kind: str, text: str) -> None:
        """Count and log the reason for refusing the connection. Only the first one is counted."""
        if self._is_refused:
            return
        self._is_refused = True
        self._acceptor.admission.refused[kind] += 1
        self._acceptor.refusals.info(self._peer, self._peer.source, text)

    def _refuse(self, text: str) -> None:
        """Close the connection. Send the reason, unless the client expects TLS."""
        if not self._address.tls:
            self._transport.write(self._refusal(text))
        self._transport.close()

    def _release(self) -> None:
        self._cancel_deadline()
        if self._slot is not None:
            self._slot.leave()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _call_later(delay_ms: int, fn: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_ms / 1000, fn)


def _set_up(raw: socket.socket | None) -> None:
    if raw is None:
        return
    # asyncio sets TCP_NODELAY only on sockets created with the TCP protocol number. Without it a small reply waits for
    # the client's delayed acknowledgment, 40 ms.
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)


def is_vanished(raw: socket.socket | None) -> bool:
    """Return whether the peer has acknowledged nothing for about a minute despite retransmissions.

    A peer that is alive but reads nothing still acknowledges. Except on Linux, this is always False.
    """
    option = getattr(socket, "TCP_INFO", None)
    if raw is None or option is None or not sys.platform.startswith("linux"):
        return False
    try:
        found = raw.getsockopt(socket.IPPROTO_TCP, option, _INFO_BYTES)
    except OSError:  # the socket is closed
        return False
    return len(found) == _INFO_BYTES and found[_RETRANSMITS_AT] >= RETRANSMITS_MAX
