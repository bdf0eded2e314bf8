"""Numbered producers over STOMP, on the real engine: what is sent again is stored once, and nothing overtakes."""

from __future__ import annotations

import pytest

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller
from curbstone.core.admin.queue import LocalQueue
from curbstone.stomp.limits import Limits
from curbstone.stomp.session import Session
from tests.kit.lab import Lab
from tests.stomp.harness import Received, read_frames

MORE = "refusals,ids,numbers"
KB = "x" * 1024


class Peer:
    """One connection to the engine of a lab, without a socket."""

    def __init__(
        self,
        lab: Lab,
        authenticator: OpenAuthenticator | None = None,
        features: str = MORE,
        *,
        access: AuthorizedBroker | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.lab = lab
        authenticator = authenticator or OpenAuthenticator(lab.broker, lab.host)
        access = access or authenticator.everyone
        caller = Caller("127.0.0.1", 1, "stomp")
        self.session = Session(
            authenticator, access, limits or Limits(), lambda _bytes: None, caller=caller, name="s", now_ms=0
        )
        (self.connected,) = self.send(f"CONNECT\naccept-version:1.2\nhost:x\nx-features:{features}")

    def send(self, *frames: str) -> list[Received]:
        """Send frames in one read, and return what returns; a body stands behind an empty line."""
        self.feed(*frames)
        self.lab.settle()
        return self.read()

    def feed(self, *frames: str) -> None:
        texts = [frame if "\n\n" in frame else frame + "\n\n" for frame in frames]
        self.session.receive("".join([text + "\0" for text in texts]).encode(), 0, self.lab.host.wall_ms())

    def read(self) -> list[Received]:
        return read_frames(b"".join(self.session.take_output()))


def number(seq: int, *lines: str, body: str = "", queue: str = "q", producer: str = "web-1") -> str:
    """Return a SEND whose number is that of its receipt."""
    head = [f"destination:/queue/{queue}", f"x-producer:{producer}", *lines, f"receipt:1.{seq}"]
    return "\n".join(["SEND", *head, "", body or str(seq)])


def reported(frames: list[Received]) -> list[str]:
    """Return of each receipt its number, and how it went."""
    lines = []
    for frame in frames:
        headers = frame.headers
        how = headers.get("x-error-code", "again" if headers.get("x-duplicate") else "stored")
        lines.append(f"{headers['receipt-id']} {how} {headers.get('x-expected', '')}".rstrip())
    return lines


def bodies(lab: Lab, name: str = "q") -> list[str]:
    return [body.decode()[:4] for body in lab.bodies(queue(lab, name))]


def queue(lab: Lab, name: str = "q") -> LocalQueue:
    return lab.queue(name)


def test_connected_announces_producer_sequences() -> None:
    assert Peer(Lab()).connected.headers["x-features"] == MORE


def test_resend_over_another_connection_is_confirmed_and_not_stored_again(lab: Lab) -> None:
    assert reported(Peer(lab).send(number(1), number(2))) == ["1.1 stored", "1.2 stored"]
    again = Peer(lab).send(number(1), number(2), number(3))
    assert reported(again) == ["1.1 again", "1.2 again", "1.3 stored"]
    assert again[2].headers["x-msg-id"] == queue(lab).message_id(3)
    assert bodies(lab) == ["1", "2", "3"]


def test_messages_in_a_lost_connection_are_not_duplicated(lab: Lab) -> None:
    """It is read behind what the client sends again."""
    authenticator = OpenAuthenticator(lab.broker, lab.host)
    lost, peer = Peer(lab, authenticator), Peer(lab, authenticator)
    peer.feed(number(1), number(2))
    lost.feed(number(1), number(2))
    lab.settle()
    assert reported(peer.read()[:2]) == ["1.1 stored", "1.2 stored"]
    assert bodies(lab) == ["1", "2"]


def test_application_numbers_can_have_gaps(lab: Lab) -> None:
    sent = [number(1, "x-seq:1041", "x-after:0"), number(2, "x-seq:1050", "x-after:1041"), number(3, "x-seq:1052")]
    assert reported(Peer(lab).send(*sent)) == ["1.1 stored", "1.2 stored", "1.3 409 1051"]
    assert reported(Peer(lab).send(number(4, "x-seq:2000", "x-after:0"), sent[0])) == ["1.4 stored", "1.1 again"]
    assert bodies(lab) == ["1", "2", "4"]


def test_refused_message_is_not_overtaken() -> None:
    lab = Lab(max_message_size=2048)
    peer = Peer(lab)
    sent = peer.send(number(1), number(2, body=3 * KB), number(3), number(4))
    assert reported(sent) == ["1.1 stored", "1.2 413", "1.3 409 2", "1.4 409 2"]
    assert reported(peer.send(number(3, "x-after:1"), number(4))) == ["1.3 stored", "1.4 stored"]
    assert bodies(lab) == ["1", "3", "4"]


def test_refused_first_message_is_not_overtaken() -> None:
    lab = Lab(max_message_size=2048)
    peer = Peer(lab)
    assert reported(peer.send(number(1, body=3 * KB), number(2), number(3))) == ["1.1 413", "1.2 409 1", "1.3 409 1"]
    assert reported(peer.send(number(2, "x-after:0"), number(3))) == ["1.2 stored", "1.3 stored"]
    assert bodies(lab) == ["2", "3"]


def test_numbers_are_per_queue_and_producer_and_optional(lab: Lab) -> None:
    plain = "SEND\ndestination:/queue/q\nreceipt:p\n\nplain"
    sent = Peer(lab).send(number(1), plain, number(1, producer="other", body="o"), number(2), number(1, queue="r"))
    assert sorted(reported(sent)) == ["1.1 stored", "1.1 stored", "1.1 stored", "1.2 stored", "p stored"]
    assert bodies(lab) == ["1", "plai", "o", "2"]


def test_number_headers_are_plain_headers_without_the_feature(lab: Lab) -> None:
    Peer(lab).send(number(1, "x-seq:7", "x-after:0"))
    Peer(lab, features="ids").send(number(1))
    Peer(lab, features="ids").send(number(1))
    first, second, third = lab.peek(queue(lab))
    assert b"x-" not in first.message.headers
    assert b"x-producer:web-1" in second.message.headers
    assert third.message.body == b"1"


def test_a_later_connection_of_a_producer_ends_the_earlier_one(lab: Lab) -> None:
    authenticator = OpenAuthenticator(lab.broker, lab.host)
    earlier, other, later = Peer(lab, authenticator), Peer(lab, authenticator), Peer(lab, authenticator)
    earlier.send(number(1))
    other.send(number(1, queue="r"))
    assert reported(later.send(number(2))) == ["1.2 stored"]
    (error,) = earlier.read()
    assert (error.command, error.headers["x-error-code"]) == ("ERROR", "409")
    assert not other.session.ending and not later.session.ending
    later.session.connection_lost()
    assert reported(Peer(lab, authenticator).send(number(3))) == ["1.3 stored"]


def test_unauthorized_sender_uses_no_producer_slot(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places were taken before rights were looked at, so anybody could fill the memory with names."""
    authenticator = OpenAuthenticator(lab.broker, lab.host)
    may = {"q": True}
    monkeypatch.setattr(AuthorizedBroker, "may", lambda self, right, name: may["q"])
    earlier, later = Peer(lab, authenticator), Peer(lab, authenticator)
    earlier.send(number(1))
    may["q"] = False
    later.send(number(2))
    assert not earlier.session.ending and len(authenticator.registries.producing) == 1
    may["q"] = True
    later.send(number(3))
    assert earlier.session.ending


def test_producers_of_a_connection_are_limited(lab: Lab) -> None:
    authenticator = OpenAuthenticator(lab.broker, lab.host)
    peer = Peer(lab, authenticator, limits=Limits(producers_max=3))
    for name in ("a", "b", "c", "a"):
        peer.send(number(1, producer=name))
    (error,) = peer.send(number(1, producer="d"))
    assert (error.command, error.headers["message"]) == ("ERROR", "a connection has at most 3 numbered producers")
    peer.session.connection_lost()
    assert not authenticator.registries.producing


def test_unsupported_numbering_is_reported() -> None:
    wrong = {
        "SEND\ndestination:/queue/q\nx-producer:p\nreceipt:seven\n\nx": "after the last dot",
        "SEND\ndestination:/queue/q\nx-producer:p\n\nx": "after the last dot",
        "SEND\ndestination:/queue/q\nx-producer:p\nreceipt:1.0\n\nx": "after the last dot",
        "SEND\ndestination:/queue/q\nx-producer:p\nx-seq:-1\n\nx": "x-seq must be a whole number",
        "SEND\ndestination:/queue/q\nx-producer:p\nx-seq:3\nx-after:3\n\nx": "bad x-after: 3 is not below",
        "SEND\ndestination:/queue/q\nx-producer:a b\nx-seq:3\n\nx": "bad producer name",
        "SEND\ndestination:/topic/q\nx-producer:p\nx-seq:3\n\nx": "only a SEND to a queue",
        "SEND\ndestination:/queue/q\ntransaction:t\nx-producer:p\nx-seq:3\n\nx": "transaction can't be numbered",
    }
    for frame, rule in wrong.items():
        (error,) = Peer(Lab()).send(frame)
        assert error.command == "ERROR" and rule in error.headers["message"], frame
