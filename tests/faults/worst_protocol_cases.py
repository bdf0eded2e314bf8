"""The worst input of the protocols other than HTTP; see `test_turns`."""

from __future__ import annotations

import json
import socket

from websockets.frames import Frame, Opcode
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.faults.test_many_queues import LARGE
from tests.faults.worst_cases import DEEP, Case, World
from tests.kit.guarded_server import RawConnection
from tests.kit.waiting import wait_until


def login_line(world: World) -> str:
    return f"login:admin\npasscode:{world.guarded.secrets['admin']}\n"


def masks(world: World, queue: str) -> None:
    """1,000 subscriptions that keep every word possible, a publish to all of them, and the end of the connection."""
    with RawConnection(world.guarded.server.stomp) as line:
        line.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login_line(world)}\n\0")
        line.read_until(b"CONNECTED")
        words = [f"#.{number:010b}.".replace("0", "a.").replace("1", "*.") + "a." * 80 for number in range(1000)]
        frames = [f"SUBSCRIBE\nid:{n}\ndestination:/topic/{words[n]}a\n\n\0" for n in range(1000)]
        line.send("".join(frames) + "SEND\ndestination:/topic/x\nreceipt:r\n\n\0")
        line.read_until(b"receipt-id:r")
        for name in ("a." * 98 + "a", "a." * 98 + "b"):
            line.send(f"SEND\ndestination:/topic/{name}\nreceipt:s{name[-1]}\n\nx\0")
            line.read_until(f"receipt-id:s{name[-1]}".encode())


def stomp_frames(world: World, queue: str) -> None:
    """100 headers of 16 KiB in each frame, a transaction of 10,000 frames, and a cumulative ack of 10,000."""
    name = queue.rpartition("/")[2]
    headers = "".join([f"h{number}:{'x' * 140}\n" for number in range(90)])
    many = f"SEND\ndestination:/queue/w/{name}\n{headers}\nx\0" * 200
    sends = f"SEND\ndestination:/queue/w/{name}\ntransaction:t\n\nx\0" * 9_900
    with RawConnection(world.guarded.server.stomp) as line:
        line.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login_line(world)}\n\0{many}")
        line.send(f"BEGIN\ntransaction:t\n\n\0{sends}COMMIT\ntransaction:t\nreceipt:c\n\n\0")
        line.read_until(b"receipt-id:c")
        line.send(f"SUBSCRIBE\nid:1\ndestination:/queue/w/{name}\nack:client\nprefetch-count:100000\nreceipt:s\n\n\0")
        data = b""
        while data.count(b"MESSAGE\n") < 15_000:
            data += line.socket.recv(1 << 20)
        ack = data.rpartition(b"ack:")[2].partition(b"\n")[0].decode()
        if len(ack) < 200:
            line.send(f"ACK\nid:{ack}\nreceipt:a\n\n\0")
            line.read_until(b"receipt-id:a")


def stomp_leaves(world: World, queue: str) -> None:
    """A consumer of 90,000 messages gives back all of them, gets them again, and leaves."""
    held = world.call("GET", world.large, 200).json()["rdy"]
    with RawConnection(world.guarded.server.stomp) as line:
        line.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login_line(world)}\n\0")
        line.read_until(b"CONNECTED")
        subscribe = f"SUBSCRIBE\nid:1\ndestination:/queue/{LARGE}\nack:client\nprefetch-count:1000000\n\n\0"
        for end in ("UNSUBSCRIBE\nid:1\n\n\0NACK\nid:{}\nreceipt:n\n\n\0", ""):
            line.send(subscribe)
            frames, tail, ack = 0, b"", b""
            while frames < held:
                data = tail + line.socket.recv(1 << 20)
                frames += data.count(b"\0") - tail.count(b"\0")
                tail = data[-200:]
                ack = data.rpartition(b"\nack:")[2].partition(b"\n")[0] if b"\nack:" in data else ack
            if end:
                line.send(end.format(ack.decode()))
                line.read_until(b"receipt-id:n")
    # A lease of another case may end meanwhile.
    wait_until(lambda: world.call("GET", world.large, 200).json()["rdy"] >= held, "not all is given back")
    for state in ("wip", "delayed"):
        world.call("GET", f"{world.large}/messages", 200, params={"state": state, "limit": 1000})


def mqks_lines(world: World, queue: str) -> None:
    """A rebind to 1,000 masks, many small requests, and events of many words."""
    masks = " ".join([f"#.{number:010b}.".replace("0", "a.").replace("1", "*.") + "a" for number in range(1000)])
    with RawConnection(world.guarded.server.mqks) as line:
        line.send(f"login auth {world.guarded.secrets['admin']}\n")
        line.send(f"r rebind --confirm worst-mqks {masks}\n")
        line.read_until(b"\n")
        line.send("m publish --confirm " + "a." * 98 + "a x\n")
        line.read_until(b"\n")
        line.send("p publish worst-mqks-news x\n" * 20_000 + "e publish --confirm worst-mqks-news x\n")
        line.read_until(b"e ")
        line.send("d consume worst-mqks --window 1000000\n" + "junk\n" * 900)
        line.socket.shutdown(socket.SHUT_WR)
        line.read_all()


def websocket_frames(world: World, queue: str) -> None:
    """The largest frames, thousands of small ones, and a consumer with the largest window."""
    url = f"{world.guarded.server.url.replace('http', 'ws', 1)}{queue}/messages"
    fields = {"authorization": f"Bearer {world.guarded.secrets['admin']}"}
    for text in ["[" + "1," * 2_000_000 + "1]", DEEP, json.dumps({"message": "x" * 1_000_000})]:
        with connect(url, subprotocols=[Subprotocol("publish")], proxy=None, additional_headers=fields) as peer:
            peer.send(text)
            peer.recv()
    with connect(url, subprotocols=[Subprotocol("publish")], proxy=None, additional_headers=fields) as peer:
        peer.socket.sendall(Frame(Opcode.TEXT, b'{"message":"x"}').serialize(mask=True) * 5000)
        for _ in range(5000):
            peer.recv()
    with connect(
        f"{url}?limit=100000", subprotocols=[Subprotocol("consume")], proxy=None, additional_headers=fields
    ) as peer:
        for _ in range(10_000):
            peer.recv()


WIRE: dict[str, Case] = {
    "STOMP masks": masks,
    "STOMP frames": stomp_frames,
    "STOMP leaves": stomp_leaves,
    "MQKS lines": mqks_lines,
    "WebSocket frames": websocket_frames,
}
