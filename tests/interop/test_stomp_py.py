"""stomp.py, the STOMP client for Python, in all three versions over TCP."""

from __future__ import annotations

from typing import Any

import pytest
import stomp
from stomp.utils import Frame

from tests.kit.server import ServerProcess
from tests.stomp.client import Listener

BINARY = bytes([0, 255, 254, 10, 0, 13, 128])
COUNT = 200
KINDS = [stomp.Connection10, stomp.Connection11, stomp.Connection12]


class Heard(Listener):
    """Also knows of heart-beats and of lost connections."""

    def __init__(self) -> None:
        super().__init__()
        self.beats = 0
        self.lost = 0
        self.silent = 0

    def on_disconnected(self) -> None:
        with self.heard:
            self.lost += 1
            self.heard.notify_all()

    def on_heartbeat(self) -> None:
        with self.heard:
            self.beats += 1
            self.heard.notify_all()

    def on_heartbeat_timeout(self) -> None:
        with self.heard:
            self.silent += 1
            self.heard.notify_all()

    def message(self, index: int) -> Frame:
        """Wait for the message of that index and return it."""
        self.wait_until(lambda: len(self.messages) > index or bool(self.errors))
        assert not self.errors, self.errors[0].body
        return self.messages[index]


def connection(kind: Any, server: ServerProcess, beat_ms: int = 10_000, **options: Any) -> tuple[Any, Heard]:
    # 1.0 has no heart-beats, and its class takes none.
    # A busy machine keeps a thread waiting for longer than such beats: stomp.py gives the server 20 s, and gets 21 s.
    beats = {} if kind is stomp.Connection10 else {"heartbeats": (beat_ms, 200), "heart_beat_receive_scale": 100}
    made = kind([server.stomp], reconnect_attempts_max=1, **beats, **options)
    heard = Heard()
    made.set_listener("", heard)
    made.connect("user", "secret", wait=True)
    return made, heard


def ack(kind: Any, made: Any, message: Frame, **headers: str) -> None:
    if kind is stomp.Connection12:
        made.ack(message.headers["ack"], **headers)
    elif kind is stomp.Connection11:
        made.ack(message.headers["message-id"], message.headers["subscription"], **headers)
    else:
        made.ack(message.headers["message-id"], **headers)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_settling_and_transactions(server: ServerProcess, kind: Any) -> None:
    made, heard = connection(kind, server)
    # It unescapes in 1.0, which has no escapes, so there a backslash is not for it.
    value = "a:b" if kind is stomp.Connection10 else "a:b\\c\nd"
    made.send("/queue/a", "hellö", headers={"k": value, "receipt": "r1"})
    heard.wait_until(lambda: heard.receipts == ["r1"])
    made.subscribe("/queue/a", id="1", ack="client-individual")
    message = heard.message(0)
    assert (message.body, message.headers["k"]) == ("hellö", value)
    at = 1
    if kind is not stomp.Connection10:  # it has no NACK
        if kind is stomp.Connection12:
            made.nack(message.headers["ack"])
        else:
            made.nack(message.headers["message-id"], "1")
        again = heard.message(1)
        assert again.headers["message-id"] == message.headers["message-id"]
        assert (again.headers["redelivered"], again.headers["x-tries"]) == ("true", "1")
        message, at = again, 2
    ack(kind, made, message, receipt="r2")
    heard.wait_until(lambda: "r2" in heard.receipts)

    aborted = made.begin()
    made.send("/queue/a", "aborted", transaction=aborted)
    made.abort(aborted)
    transaction = made.begin()
    for body in ("t1", "t2"):
        made.send("/queue/a", body, transaction=transaction)
    made.send("/queue/a", "before")
    before = heard.message(at)
    assert before.body == "before", "nothing of a transaction comes before COMMIT"
    ack(kind, made, before, transaction=transaction)
    made.commit(transaction, headers={"receipt": "r3"})
    heard.wait_until(lambda: "r3" in heard.receipts)
    assert [heard.message(at + n).body for n in (1, 2)] == ["t1", "t2"]
    for n in (1, 2):
        ack(kind, made, heard.messages[at + n])
    made.disconnect(receipt="bye")
    heard.wait_until(lambda: "bye" in heard.receipts and heard.lost == 1)
    assert not heard.errors


@pytest.mark.parametrize("kind", KINDS)
def test_binary_bodies(server: ServerProcess, kind: Any) -> None:
    made, heard = connection(kind, server, auto_decode=False)
    made.subscribe("/queue/a", id="1", ack="auto")
    made.send("/queue/a", BINARY, content_type="application/octet-stream")
    message = heard.message(0)
    body = message.body if isinstance(message.body, bytes) else message.body.encode()
    assert body == BINARY
    assert message.headers["content-type"] == "application/octet-stream"
    made.disconnect()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_heart_beats_keep_an_idle_connection(server: ServerProcess, kind: Any) -> None:
    # A machine that is too busy keeps the client's thread from such short beats; then longer ones are tried.
    for beat_ms, enough in ((1000, 20), (5000, 70)):  # 4 s and 14 s, longer than the server waits for a silent client
        made, heard = connection(kind, server, beat_ms)
        heard.wait_until(lambda heard=heard, enough=enough: heard.beats >= enough or heard.lost)  # type: ignore[misc]
        if not heard.lost:
            break
    made.send("/queue/a", "x", headers={"receipt": "alive"})
    heard.wait_until(lambda: heard.receipts == ["alive"] or heard.lost > 0)
    assert heard.silent == heard.lost == 0
    made.disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_confirmed_messages_survive_a_crash(server: ServerProcess, kind: Any) -> None:
    made, heard = connection(kind, server)
    for n in range(COUNT):
        made.send("/queue/crash", f"m{n}", headers={"receipt": f"m{n}"})
        if n == COUNT // 2:
            heard.wait_until(lambda: len(heard.receipts) >= 20)
            break
    server.restart(same_ports=True)
    heard.wait_until(lambda: heard.lost == 1)
    confirmed = set(heard.receipts)
    assert len(confirmed) >= 20
    made.connect("user", "secret", wait=True)
    for n in range(COUNT):
        if f"m{n}" not in confirmed:
            made.send("/queue/crash", f"m{n}", headers={"receipt": f"m{n}"})
    heard.wait_until(lambda: set(heard.receipts) == {f"m{n}" for n in range(COUNT)})
    made.subscribe("/queue/crash", id="1", ack="client")
    heard.wait_until(lambda: {message.body for message in heard.messages} == {f"m{n}" for n in range(COUNT)})
    ack(kind, made, heard.messages[-1], receipt="all")
    heard.wait_until(lambda: "all" in heard.receipts)
    made.disconnect()
    other, heard = connection(kind, server)
    other.subscribe("/queue/crash/count", id="c", ack="auto")
    assert heard.message(0).body == "0", "one cumulative ACK settled all"
    other.disconnect()
