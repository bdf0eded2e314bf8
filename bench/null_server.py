"""A server that stores nothing: it confirms each send and delivers it from memory (`python -m bench.null_server`).

It has Curbstone's ready line and just enough of STOMP, WebSocket and HTTP for this load, and it relies on the known
layout of the load. A run against this server is a lower bound of the generator's speed.
"""

import collections
import json
import re
import selectors
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import islice

from bench.ws_load import BINARY, server_head

SEND = re.compile(
    rb"destination:([^\n]++)\ncontent-length:\d++\n(?:[^\n]++\n)*?receipt:(\d++)\n(?:[^\n]++\n)*+\n([^\0]*+)\0"
)
ACKED = re.compile(rb"ACK\nid:(\d++)-")
POST = re.compile(rb"/v2/([^/]++)/queues/([^/ ?]++)[^\r]*+\r\n")
CHUNK = 262_144
BODY_END = b"\r\n\r\n"


class Queue:
    def __init__(self) -> None:
        self.bodies: collections.deque[bytes] = collections.deque()
        self.consumers: list[Consumer] = []

    def put(self, bodies: list[bytes]) -> None:
        self.bodies.extend(bodies)
        for consumer in self.consumers:
            consumer.deliver()

    def get(self, most: int) -> list[bytes]:
        taken = list(islice(self.bodies, most))
        if len(taken) == len(self.bodies):
            self.bodies.clear()
        else:
            for _ in taken:
                self.bodies.popleft()
        return taken


class Consumer:
    def __init__(self, queue: Queue, credit: int, encode: Callable[[int, list[bytes]], bytes], peer: "Peer") -> None:
        self.wip = 0
        self._queue = queue
        self._credit = credit
        self._encode = encode
        self._peer = peer
        self._count = 0
        queue.consumers.append(self)
        self.deliver()

    def settled(self, count: int) -> None:
        self.wip -= count
        self.deliver()

    def deliver(self) -> None:
        if bodies := self._queue.get(self._credit - self.wip):
            self.wip += len(bodies)
            self._peer.write(self._encode(self._count, bodies))
            self._count += len(bodies)

    def close(self) -> None:
        self._queue.consumers.remove(self)


class Sink:
    """The queues by name, and the loop that serves connections."""

    def __init__(self) -> None:
        self.queues: collections.defaultdict[str, Queue] = collections.defaultdict(Queue)
        self.selector = selectors.DefaultSelector()

    def listen(self, kind: type["Peer"]) -> str:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.selector.register(listener, selectors.EVENT_READ, lambda _: kind(self, listener.accept()[0]))
        host, port = listener.getsockname()
        return f"{host}:{port}"

    def run(self) -> None:
        while True:
            for key, events in self.selector.select():
                key.data(events)


class Peer(ABC):
    """One connection. `feed` takes the bytes that arrived and returns those that it can't use yet."""

    def __init__(self, sink: Sink, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.sink = sink
        self._consumers: list[Consumer] = []
        self._socket = connection
        self._in = b""
        self._out: collections.deque[memoryview] = collections.deque()
        sink.selector.register(connection, selectors.EVENT_READ, self._on_event)

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Answer everything that `data` completes, and return the rest."""

    def consumer_of(self, queue: Queue, credit: int, encode: Callable[[int, list[bytes]], bytes]) -> Consumer:
        """Return a consumer that ends with the connection."""
        consumer = Consumer(queue, credit, encode, self)
        self._consumers.append(consumer)
        return consumer

    def write(self, data: bytes) -> None:
        self._out.append(memoryview(data))
        if len(self._out) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                first = self._out[0]
                sent = self._socket.send(first)
                if sent < len(first):
                    self._out[0] = first[sent:]
                else:
                    self._out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if self.sink.selector.get_key(self._socket).events != wanted:
            self.sink.selector.modify(self._socket, wanted, self._on_event)

    def _on_event(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if not events & selectors.EVENT_READ:
            return
        try:
            data = self._socket.recv(CHUNK)
        except OSError:
            data = b""
        if data:
            self._in = self.feed(self._in + data if self._in else data)
            return
        self.sink.selector.unregister(self._socket)
        self._socket.close()
        for consumer in self._consumers:
            consumer.close()


class StompPeer(Peer):
    def __init__(self, sink: Sink, connection: socket.socket) -> None:
        super().__init__(sink, connection)
        self._subscriptions: list[Consumer] = []

    def feed(self, data: bytes) -> bytes:
        cut = data.rfind(b"\0") + 1
        whole = data[:cut]
        if whole.startswith(b"SEND"):
            self._send(whole)
        elif whole.startswith(b"ACK"):
            self._ack(whole)
        elif whole:
            for frame in whole.split(b"\0")[:-1]:
                self._other(frame.lstrip(b"\n"))
        return data[cut:]

    def _send(self, whole: bytes) -> None:
        found = SEND.findall(whole)
        assert len(found) == whole.count(b"\0")
        receipts = [receipt for _, receipt, _ in found]
        self.write(b"RECEIPT\nreceipt-id:" + b"\n\n\0RECEIPT\nreceipt-id:".join(receipts) + b"\n\n\0")
        by_queue: dict[bytes, list[bytes]] = {}
        for destination, _, body in found:
            by_queue.setdefault(destination, []).append(body)
        for destination, bodies in by_queue.items():
            self.sink.queues[_queue_name(destination)].put(bodies)

    def _ack(self, whole: bytes) -> None:
        if len(self._subscriptions) == 1:
            self._subscriptions[0].settled(whole.count(b"\0"))
        else:
            for number, count in collections.Counter(ACKED.findall(whole)).items():
                self._subscriptions[int(number)].settled(count)
        self._receipt(whole)

    def _receipt(self, whole: bytes) -> None:
        if wanted := re.search(rb"\nreceipt:([^\n]++)", whole):
            self.write(b"RECEIPT\nreceipt-id:%s\n\n\0" % wanted[1])

    def _other(self, frame: bytes) -> None:
        if frame.startswith(b"CONNECT"):
            self.write(b"CONNECTED\nversion:1.2\nheart-beat:0,0\n\n\0")
        elif frame.startswith(b"SUBSCRIBE"):
            headers = dict(line.split(b":", 1) for line in frame.splitlines()[1:] if line)
            queue = self.sink.queues[_queue_name(headers[b"destination"])]
            self._receipt(frame)
            encode = partial(self._messages, len(self._subscriptions), headers[b"destination"])
            self._subscriptions.append(self.consumer_of(queue, int(headers[b"prefetch-count"]), encode))
        elif frame.startswith(b"DISCONNECT"):
            self._receipt(frame)
        elif frame.startswith((b"SEND", b"ACK")):
            self.feed(frame + b"\0")

    def _messages(self, number: int, destination: bytes, first: int, bodies: list[bytes]) -> bytes:
        head = b"MESSAGE\nsubscription:%d\ndestination:%s\n" % (number, destination)
        head += b"content-length:%d\nmessage-id:m-" % len(bodies[0])
        ack = b"\nack:%d-" % number
        return b"".join([b"%s%d%s%d\n\n%s\0" % (head, seq, ack, seq, one) for seq, one in enumerate(bodies, first)])


def _queue_name(destination: bytes) -> str:
    return "default/" + destination.decode().rpartition("/")[2]


class HttpPeer(Peer):
    """A connection that speaks HTTP until an Upgrade, then WebSocket with unmasked or zero-masked frames."""

    def __init__(self, sink: Sink, connection: socket.socket) -> None:
        super().__init__(sink, connection)
        self._queue = Queue()
        self._upgraded = ""
        self._publish: re.Pattern[bytes] | None = None

    def feed(self, data: bytes) -> bytes:
        if self._upgraded == "publish":
            return self._published(data)
        if self._upgraded:
            return self._settled(data)
        while BODY_END in data:
            head, _, rest = data.partition(BODY_END)
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            size = int(length[1]) if length else 0
            if len(rest) < size:
                break
            self._request(head + b"\r\n", rest[:size])
            data = rest[size:]
        return data

    def _request(self, head: bytes, body: bytes) -> None:
        path = POST.search(head)
        name = f"{path[1].decode()}/{path[2].decode()}" if path else ""
        queue = self.sink.queues[name]
        if head.startswith(b"POST") and b"/messages/batch" in head:
            messages = [one["message"].encode() for one in json.loads(body)]
            queue.put(messages)
            self._answer("201 Created", json.dumps({"ids": [f"m-{seq}" for seq in range(len(messages))]}).encode())
        elif head.startswith(b"POST"):
            queue.put([body])
            self._answer("201 Created", b"", "x-msg-id: m-1\r\n")
        elif b"upgrade: websocket" in head.lower():
            self._upgrade(head, queue)
        elif head.startswith(b"PUT"):
            self._answer("201 Created", b"")
        elif head.startswith(b"DELETE") and b"/messages" in head:
            popped = queue.get(1)
            self._answer("200 OK" if popped else "204 No Content", b"".join(popped))
        elif head.startswith(b"DELETE"):
            queue.bodies.clear()
            self._answer("204 No Content", b"")
        elif path:
            counts = {"rdy": len(queue.bodies), "wip": sum(one.wip for one in queue.consumers), "delayed": 0}
            self._answer("200 OK", json.dumps(counts).encode())
        else:
            self._answer("404 Not Found", b"")

    def _answer(self, status: str, body: bytes, more: str = "") -> None:
        self.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body)

    def _upgrade(self, head: bytes, queue: Queue) -> None:
        self._queue = queue
        self._upgraded = "publish" if b"Protocol: publish" in head else "consume"
        self.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        if self._upgraded == "consume":
            limit = re.search(rb"limit=(\d+)", head)
            self.consumer_of(queue, int(limit[1]) if limit else 10, self._messages)

    def _published(self, data: bytes) -> bytes:
        if self._publish is None:
            self._publish = _publish_pattern(data)
        found = self._publish.findall(data) if self._publish else []
        if not found:
            return data
        self.write(b"\x81\0" * len(found))
        self._queue.put(found)
        head = data.index(found[0])
        return data[len(found) * (head + len(found[0])) :]

    def _settled(self, data: bytes) -> bytes:
        cut = data.rfind(b"}") + 1
        if cut and self._consumers:
            self._consumers[0].settled(data.count(b"}", 0, cut))
        return data[cut:]

    def _messages(self, first: int, bodies: list[bytes]) -> bytes:
        size = len(bodies[0])
        payload = server_head(BINARY, size)
        parts = []
        for seq, body in enumerate(bodies, first + 1):
            metadata = (
                b'{"Content-Type":"","timestamp":1700000000000,"redelivered":false,"ackId":"%d","id":"m-%d","tries":0}'
            )
            metadata %= (seq, seq)
            parts.append(b"\x81%c%s%s%s" % (len(metadata), metadata, payload, body))
        return b"".join(parts)


def _publish_pattern(data: bytes) -> re.Pattern[bytes] | None:
    """Return a pattern for an empty text frame and a binary frame, with the length that the first binary frame has."""
    if len(data) < 16:
        return None
    length = data[7] & 0x7F
    if length == 126:
        length = int.from_bytes(data[8:10])
    elif length == 127:
        length = int.from_bytes(data[8:16])
    return re.compile(rb"\x81\x80\0{4}\x82(?:[\x80-\xfd]|\xfe..|\xff.{8})\0{4}(.{%d})" % length, re.DOTALL)


def main() -> None:
    sink = Sink()
    print(f"curbstone ready stomp={sink.listen(StompPeer)} http={sink.listen(HttpPeer)}", flush=True)
    try:
        sink.run()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
