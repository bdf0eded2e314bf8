"""A program, not a test: hostile clients of all ports at once, each attack in a thread, until its stdin ends.

Each attack once stopped, filled or misled the server. The program prints a line when the attacks have begun. At the end
it prints how often each was made, so that an attack that does not work any more (because the client broke, not because
the server resists) is noticed.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.crash.stomp_peer import encode

TIMEOUT_S = 5
PAUSE_S = 0.05
"""Between two rounds of an attack; it is the server that is measured, not who starts connections faster."""

QUEUE = "/v2/default/queues/hostile"
STOMP_HELLO = encode("CONNECT", {"accept-version": "1.2", "host": "x"})
UPGRADE = """GET {path} HTTP/1.1
Host: localhost
Connection: Upgrade
Upgrade: websocket
Sec-WebSocket-Version: 13
Sec-WebSocket-Protocol: {protocol}
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==

""".replace("\n", "\r\n")

Address = tuple[str, int]


class Hostile:
    """The attacks; each method is one round."""

    def __init__(self, stomp: Address, http: Address, mqks: Address) -> None:
        self._stomp = stomp
        self._http = http
        self._mqks = mqks
        self._numbers = itertools.count()
        self.stop = threading.Event()

    # --- how they speak

    @contextmanager
    def _to(self, address: Address, hello: bytes = b"") -> Iterator[socket.socket]:
        with socket.create_connection(address, TIMEOUT_S) as peer:
            peer.sendall(hello)
            yield peer

    def _flood(self, peer: socket.socket, data: bytes, rounds: int) -> None:
        """Send again and again and read nothing; a server that reads no more ends it."""
        peer.settimeout(0.5)
        with suppress(OSError):
            for _ in range(rounds):
                if self.stop.is_set():
                    return
                peer.sendall(data)

    def _until_ping(self, peer: socket.socket) -> None:
        """Wait until all lines are carried out, or the server has ended it."""
        while (data := peer.recv(65536)) and b"p ok ." not in data:
            pass

    def _call(self, method: str, path: str, body: bytes = b"", timeout_s: float = TIMEOUT_S) -> bytes:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with self._to(self._http, head.encode() + body) as peer:
            peer.settimeout(timeout_s)
            answer = b""
            while data := peer.recv(65536):
                answer += data
            return answer.partition(b"\r\n\r\n")[2]

    def _socket(self, protocol: str) -> bytes:
        path = "/stomp" if protocol == "v12.stomp" else QUEUE + "/messages?ack"
        return UPGRADE.format(path=path, protocol=protocol).encode()

    # --- logins

    def guesses(self) -> None:
        """Logins that are wrong, over HTTP and STOMP; where there are no users nobody looks at them."""
        for _ in range(10):
            user = f"user{next(self._numbers)}"
            basic = b64encode(f"{user}:guess".encode()).decode()
            head = f"GET {QUEUE} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {basic}\r\n\r\n"
            with self._to(self._http, head.encode()) as peer:
                peer.recv(65536)
            hello = {"accept-version": "1.2", "host": "x", "login": user, "passcode": "guess"}
            with self._to(self._stomp, encode("CONNECT", hello)) as peer:
                peer.recv(65536)

    # --- STOMP

    def shares(self) -> None:
        """A thousand subscriptions with a thousand shares each, gone at once."""
        with self._to(self._stomp, STOMP_HELLO) as peer:
            for number in range(1000):
                headers = {"id": str(number), "destination": "/queue/shares", "x-parallel": "1000"}
                peer.sendall(encode("SUBSCRIBE", headers))
            peer.recv(65536)

    def stomp_lines(self) -> None:
        """Heart-beats, headers and receipts without end, and nothing read."""
        with self._to(self._stomp, STOMP_HELLO) as peer:
            self._flood(peer, b"\n" * 65536, 20)
            headers = {"destination": "/queue/flood", "receipt": "r" * 1000, "expiration": "1"}
            self._flood(peer, encode("SEND", headers) * 100, 50)
        with self._to(self._stomp, STOMP_HELLO) as peer:
            self._flood(peer, b"SEND\n" + b"a:b\n" * 10_000, 50)

    # --- MQKS

    def masks(self) -> None:
        """A thousand masks for as many events."""
        events = " ".join([f"a.b{number}.c" for number in range(1000)])
        masks = " ".join([f"a.*b{number}*.c" for number in range(1000)])
        with self._to(self._mqks, f"r rebind --confirm masks {events}\n".encode()) as peer:
            peer.sendall(f"r rebind masks --remove-mask {masks}\n".encode() * 20 + b"p ping .\n")
            self._until_ping(peer)

    def statistics(self) -> None:
        figures = ",".join(["len(state.queues_by_events)"] * 100)
        with self._to(self._mqks, f"e _eval [{figures}]\n".encode() * 100 + b"p ping .\n") as peer:
            self._until_ping(peer)

    def silence(self) -> None:
        peers = [socket.create_connection(self._mqks, TIMEOUT_S) for _ in range(20)]
        self.stop.wait(2)
        for peer in peers:
            peer.close()

    def events(self) -> None:
        """Names of events that are bound once and never again."""
        with self._to(self._mqks) as peer:
            for _ in range(5):
                first = next(self._numbers) * 500
                fresh = " ".join([f"fresh{first + number}" for number in range(500)])
                peer.sendall(f"r rebind --confirm fresh {fresh}\n".encode())
                peer.recv(65536)

    def mqks_lines(self) -> None:
        """Mistakes without end, a line without one, pings whose answers are not read."""
        with self._to(self._mqks) as peer:
            self._flood(peer, b"no\n" * 20_000, 20)
        with self._to(self._mqks, b"p ping .\n") as peer:
            self._flood(peer, b"x" * 65536, 100)
        with self._to(self._mqks) as peer:
            self._flood(peer, b"p ping " + b"x" * 1000 + b"\n", 20_000)

    # --- WebSockets

    def pings(self) -> None:
        """Pings whose pongs are not read."""
        ping = b"\x89\xfd\0\0\0\0" + b"p" * 125
        for protocol in ("v12.stomp", "consume", "publish"):
            with self._to(self._http, self._socket(protocol)) as peer:
                self._flood(peer, ping * 500, 100)

    def unfinished(self) -> None:
        """Messages that lack their last byte."""
        peers = [socket.create_connection(self._http, TIMEOUT_S) for _ in range(4)]
        size = 6 * 1024 * 1024
        frame = b"\x82\xff" + size.to_bytes(8, "big") + b"\0\0\0\0" + bytes(size - 1)
        for peer in peers:
            with suppress(OSError):
                peer.sendall(self._socket("publish") + frame)
        self.stop.wait(1)
        for peer in peers:
            peer.close()

    def fragments(self) -> None:
        """A message in pieces of nothing."""
        with self._to(self._http, self._socket("publish") + b"\x02\x80\0\0\0\0") as peer:
            self._flood(peer, b"\x00\x80\0\0\0\0" * 5000, 20)

    # --- HTTP

    def queues(self) -> None:
        for _ in range(10):
            path = f"/v2/hostile/queues/q{next(self._numbers)}"
            self._call("PUT", path)
            self._call("DELETE", path)

    def leases(self) -> None:
        """Leases that are extended again and again."""
        batch = json.dumps([{"message": "x"}] * 50).encode()
        self._call("POST", QUEUE + "/messages/batch", batch)
        leased = json.loads(self._call("POST", QUEUE + "/messages/lease", b'{"count":50,"seconds":600}'))
        tokens = [message["ackId"] for message in leased.get("messages", [])]  # a problem has none
        for _ in range(20):
            self._call("POST", QUEUE + "/messages/extend", json.dumps({"ackIds": tokens, "seconds": 600}).encode())
        self._call("POST", QUEUE + "/messages/ack", json.dumps({"ackIds": tokens}).encode())

    def nested(self) -> None:
        """JSON that is deep, or has very many members."""
        deep = b'{"specversion":"1.0","data":' + b"[" * 5000 + b"]" * 5000 + b"}"
        head = b"Host: localhost\r\nConnection: close\r\nContent-Type: application/cloudevents+json\r\n"
        head += b"Content-Length: %d\r\n\r\n" % len(deep)
        with self._to(self._http, b"POST %s/messages HTTP/1.1\r\n" % QUEUE.encode() + head + deep) as peer:
            peer.recv(65536)
        many = json.dumps({f"k{number}": 0 for number in range(400_000)}).encode()
        self._call("POST", QUEUE + "/messages/batch", many, 30)

    def lenience(self) -> None:
        for request in (
            b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n\r\n",
            b"GET /healthz\r\n\r\n",
            b"POST %s/messages HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % QUEUE.encode(),
            b"POST %s/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
            % QUEUE.encode(),
        ):
            with self._to(self._http, request) as peer:
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass

    def pipeline(self) -> None:
        """A thousand requests in one piece, again and again, and no answer read."""
        with self._to(self._http) as peer:
            self._flood(peer, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000, 50)

    def refused_body(self) -> None:
        """A body that continues after its refusal."""
        head = b"POST %s/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % QUEUE.encode()
        with self._to(self._http, head) as peer:
            self._flood(peer, b"10000\r\n" + bytes(65536) + b"\r\n", 500)


ATTACKS: tuple[Callable[[Hostile], None], ...] = (
    Hostile.guesses,
    *(Hostile.shares, Hostile.stomp_lines, Hostile.masks, Hostile.statistics, Hostile.silence, Hostile.events),
    *(Hostile.mqks_lines, Hostile.pings, Hostile.unfinished, Hostile.fragments, Hostile.queues, Hostile.leases),
    *(Hostile.nested, Hostile.lenience, Hostile.pipeline, Hostile.refused_body),
)


def main(addresses: list[str]) -> None:
    stomp, http, mqks = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in addresses)]
    hostile = Hostile(stomp, http, mqks)
    rounds = {attack.__name__: 0 for attack in ATTACKS}

    def attacker(attack: Callable[[Hostile], None]) -> None:
        while True:
            with suppress(OSError):  # the server may end it
                attack(hostile)
            rounds[attack.__name__] += 1
            if hostile.stop.wait(PAUSE_S):
                break

    threads = [threading.Thread(target=attacker, args=(attack,)) for attack in ATTACKS]
    for thread in threads:
        thread.start()
    print("all attack", flush=True)
    sys.stdin.read()
    hostile.stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps(rounds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
