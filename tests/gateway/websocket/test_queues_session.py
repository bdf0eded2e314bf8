"""The WebSocket for several queues, on the real engine with a simulated disk and clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.access import connections
from curbstone.access.authenticator import Authenticator, OpenAuthenticator
from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.caller import Caller
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError
from curbstone.core.traffic import Traffic
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket import ordered_confirms as unanswered
from curbstone.gateway.websocket import queues_session
from curbstone.gateway.websocket.queues_session import QueuesSession
from tests.access.world import World, hashed
from tests.gateway.fakes import FakeWire, binary, text
from tests.gateway.websocket.test_publish_session import picky
from tests.kit.lab import Lab

SETTINGS = GatewaySettings(max_message_size=1000)
CALLER = Caller("127.0.0.1", 1, "websocket")
MANY = 100


class Reader:
    """A session of the project `default`, and its wire."""

    def __init__(
        self, lab: Lab, authenticator: Authenticator | None = None, access: AuthorizedBroker | None = None
    ) -> None:
        self.lab = lab
        authenticator = authenticator or OpenAuthenticator(lab.broker, lab.host)
        access = access or authenticator.everyone
        self.session = QueuesSession("default", authenticator.connections, access, CALLER, SETTINGS, Traffic())
        self.wire = FakeWire(self.session)

    def send(self, *commands: dict[str, Any] | str) -> list[Any]:
        """Send commands in one read; return all that comes, with time standing still."""
        self.session.receive([text(each if isinstance(each, str) else json.dumps(each)) for each in commands])
        return self.receive()

    def receive(self) -> list[Any]:
        self.lab.settle()
        return self.wire.take_json()

    def subscribe(self, name: str, **options: Any) -> list[Any]:
        """Subscribe; return what comes behind that."""
        reported, *rest = self.send({"subscribe": name, "ack": True, "encoding": "utf8", **options})
        assert reported == {"subscribed": name}
        return rest


@pytest.fixture
def lab() -> Lab:
    return Lab()


def filled(lab: Lab, name: str, *bodies: str, **options: Any) -> LocalQueue:
    queue = lab.queue(name, **options)
    lab.publish(queue, *bodies)
    return queue


def counts(queue: LocalQueue) -> tuple[int, int]:
    found = queue.counts()
    return found.rdy, found.wip


def test_deliveries_name_their_queue_and_are_settled_there(lab: Lab) -> None:
    a, b = filled(lab, "a", "a1", "a2"), filled(lab, "b", "b1")
    reader = Reader(lab)
    first, second = reader.subscribe("a")
    (third,) = reader.subscribe("b")
    assert [(each["queue"], each["message"]) for each in (first, second, third)] == [
        ("a", "a1"),
        ("a", "a2"),
        ("b", "b1"),
    ]
    assert len({each["ackId"] for each in (first, second, third)}) == 3
    reported = reader.send(
        {"ackId": third["ackId"]}, {"nackId": first["ackId"], "delay": 60}, {"ackId": second["ackId"]}
    )
    assert sorted(reported, key=str) == sorted(
        [{"settled": [each["ackId"]]} for each in (first, second, third)], key=str
    )
    assert (counts(a), counts(b)) == ((0, 0), (0, 0))
    assert a.counts().delayed == 1


def test_delivery_frames_match_a_single_queue_socket_plus_queue(lab: Lab) -> None:
    filled(lab, "a", "body")
    reader = Reader(lab)
    reported, metadata, payload = reader.send({"subscribe": "a"})
    assert reported == {"subscribed": "a"}
    assert list(metadata) == ["queue", "Content-Type", "timestamp", "redelivered", "id", "tries"]
    assert payload == b"body"


def test_each_subscription_has_its_own_window(lab: Lab) -> None:
    filled(lab, "a", "1", "2", "3")
    filled(lab, "b", "1", "2", "3")
    reader = Reader(lab)
    assert [each["message"] for each in reader.subscribe("a", limit=1)] == ["1"]
    assert [each["message"] for each in reader.subscribe("b", limit=2)] == ["1", "2"]
    more = reader.send({"window": "a", "limit": 3})
    assert [(each["queue"], each["message"]) for each in more] == [("a", "2"), ("a", "3")]


def test_expired_delivery_is_reported_and_redelivered(lab: Lab) -> None:
    filled(lab, "a", "1", "2")
    reader = Reader(lab)
    first, second = reader.subscribe("a", lease=30)
    reported = reader.send({"extendId": second["ackId"], "seconds": 60})
    assert reported == [{"extended": [second["ackId"]]}]
    lab.pass_time(31_000)
    stale, again = reader.receive()
    assert stale == {"stale": [first["ackId"]]}
    assert (again["message"], again["tries"]) == ("1", 1)


def test_an_empty_frame_ends_all_deliveries_and_settling_continues(lab: Lab) -> None:
    a, b = filled(lab, "a", "1"), lab.queue("b")
    reader = Reader(lab)
    (delivery,) = reader.subscribe("a")
    reader.subscribe("b")
    assert reader.send("") == []
    lab.publish(a, "2")
    lab.publish(b, "2")
    assert reader.send({"ackId": delivery["ackId"]}) == [{"settled": [delivery["ackId"]]}]
    assert (counts(a), counts(b)) == ((1, 0), (1, 0))


def test_unsubscribe_requeues_after_settles_of_the_same_read(lab: Lab) -> None:
    a = filled(lab, "a", "1", "2")
    reader = Reader(lab)
    first, second = reader.subscribe("a")
    reported = reader.send({"ackId": first["ackId"]}, {"unsubscribe": "a"}, {"ackId": second["ackId"]})
    assert reported == [{"unsubscribed": "a"}, {"stale": [second["ackId"]]}, {"settled": [first["ackId"]]}]
    assert counts(a) == (1, 0)
    assert [(each["message"], each["tries"]) for each in reader.subscribe("a")] == [("2", 1)]


def test_a_deleted_queue_ends_its_subscription_and_nothing_else(lab: Lab) -> None:
    filled(lab, "a", "1")
    b = filled(lab, "b", "1")
    reader = Reader(lab)
    (gone,) = reader.subscribe("a")
    (kept,) = reader.subscribe("b")
    lab.answer(lambda done: lab.broker.delete(lab.broker.get(b.name._replace(queue="a")).name, done))
    assert reader.receive() == [{"unsubscribed": "a", "code": 404, "error": "no such queue: default/a"}]
    reported = reader.send({"ackId": gone["ackId"]}, {"ackId": kept["ackId"]})
    assert sorted(reported, key=str) == [{"settled": [kept["ackId"]]}, {"stale": [gone["ackId"]]}]
    filled(lab, "a", "again")
    assert [each["message"] for each in reader.subscribe("a")] == ["again"]
    assert reader.wire.code is None


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ({"subscribe": "none"}, 404, "no such queue"),
        ({"subscribe": "a"}, 409, "has a subscription to default/a"),
        ({"subscribe": "a b"}, 400, "bad queue name"),
        ({"subscribe": "b", "limit": 0}, 400, "bad limit"),
        ({"subscribe": "b", "ack": 1}, 400, "bad ack"),
        ({"subscribe": "b", "group": 1}, 400, "bad group"),
        ({"subscribe": "b", "encoding": "x"}, 400, "bad encoding"),
        ({"subscribe": "b", "lease": 5}, 400, "lease needs ack"),
        ({"subscribe": "b", "prefetch": 1}, 400, "unknown member 'prefetch'"),
        ({"subscribe": "b", "filter": "a = 1"}, 400, "the messages of a queue are shared"),
        ({"unsubscribe": "b"}, 404, "no subscription to default/b"),
        ({"window": "b", "limit": 5}, 404, "no subscription to default/b"),
        ({"window": "a", "limit": "x"}, 400, "bad limit"),
        ({"window": "a"}, 400, "bad limit"),
        ({"publish": "none", "message": "m"}, 404, "no such queue"),
        ({"publish": "b"}, 400, "bad message"),
        ({"publish": "b", "message": "m", "ttl": "x"}, 400, "bad ttl"),
        ({"publish": "b", "message": "m", "other": 1}, 400, "unknown member 'other'"),
        ({"publish": "b", "message": "m", "Idempotency-Key": 1}, 400, "must be a string"),
        ({"publish": "b", "message": "m", "Idempotency-Key": "a b"}, 400, "bad idempotency key"),
        ({"publish": "b", "message": "m" * 1001}, 413, "larger than 1000 bytes"),
    ],
)
def test_refusal_is_named_and_keeps_the_socket(lab: Lab, command: dict[str, Any], code: int, error: str) -> None:
    filled(lab, "a", "1")
    lab.queue("b")
    reader = Reader(lab)
    (delivery,) = reader.subscribe("a")
    (reported,) = reader.send(command)
    verb = next(iter(command))
    assert (reported["code"], reported[verb]) == (code, command[verb])
    assert error in reported["error"]
    assert reader.send({"ackId": delivery["ackId"]}) == [{"settled": [delivery["ackId"]]}]


@pytest.mark.parametrize(
    ("beside", "error"),
    [({"delay": "x"}, "bad delay"), ({"error": 5}, "bad error"), ({"more": 1}, "unknown member 'more'")],
)
def test_refused_settle_keeps_the_delivery(lab: Lab, beside: dict[str, Any], error: str) -> None:
    filled(lab, "a", "1")
    reader = Reader(lab)
    (delivery,) = reader.subscribe("a")
    (reported,) = reader.send({"nackId": delivery["ackId"], **beside})
    assert (reported["code"], reported["nackId"]) == (400, delivery["ackId"]) and error in reported["error"]
    assert reader.send({"ackId": delivery["ackId"]}) == [{"settled": [delivery["ackId"]]}]


def test_reject_waiting_for_the_dead_letter_queue_keeps_the_socket(lab: Lab) -> None:
    """The subscription ended, and all that its client held came again as tried once more."""
    dead = lab.queue("dead", publish_paused=True)
    a = filled(lab, "a", "1", "2", "3", dead_letter="dead")
    reader = Reader(lab)
    first, second, third = reader.subscribe("a")
    (reported,) = reader.send({"rejectId": first["ackId"], "error": "bad"})
    assert (reported["rejectId"], reported["code"]) == (first["ackId"], 507) and "publish_paused" in reported["error"]
    (settled,) = reader.send({"ackId": second["ackId"]})
    assert settled == {"settled": [second["ackId"]]}
    assert reader.send({"rejectId": first["ackId"]}) == [{"stale": [first["ackId"]]}]
    lab.answer(lambda done: lab.broker.declare(dead.name, {"publish_paused": False}, done))
    lab.pass_time(60_000)
    assert (lab.bodies(dead), counts(a)) == ([b"1"], (0, 1))
    assert reader.send({"rejectId": third["ackId"]}) == [{"settled": [third["ackId"]]}]


@pytest.mark.parametrize("command", [{}, {"other": 1}, {"ackId": 5}, {"subscribe": None}, {"publish": ["a"]}])
def test_a_command_that_names_no_queue_and_no_delivery_is_refused(lab: Lab, command: dict[str, Any]) -> None:
    reader = Reader(lab)
    (reported,) = reader.send(command)
    named = {} if command == {"other": 1} else command
    assert reported == {"code": 400, "error": reported["error"], **named}
    assert reader.wire.code is None


@pytest.mark.parametrize("frame", [text("not json"), text("[]"), binary(b"{}"), binary(b"x")])
def test_invalid_command_ends_the_socket_after_pending_publishes(lab: Lab, frame: Any) -> None:
    a = lab.queue("a")
    reader = Reader(lab)
    reader.session.receive([text('{"publish":"a","message":"m"}'), frame, text('{"publish":"a","message":"n"}')])
    confirmed, error = reader.receive()
    assert confirmed["published"] == "a"
    assert error == {"code": 400, "error": "Payload must be a JSON object."}
    assert reader.wire.code == 1000
    assert lab.bodies(a) == [b"m"]


# ------------------------------------------------------------ publishing


def test_messages_are_answered_in_their_order_whatever_queue_they_are_for(lab: Lab) -> None:
    a, b = lab.queue("a"), lab.queue("b")
    reader = Reader(lab)
    reported = reader.send(
        {"publish": "a", "message": "1", "Content-Type": "text/plain", "x-msg-x-color": "blue"},
        {"publish": "a", "message": "Mg==", "encoding": "base64"},
        {"publish": "none", "message": "3"},
        {"publish": "b", "message": "4", "Idempotency-Key": "k"},
        {"publish": "b", "message": "4", "Idempotency-Key": "k"},
        {"publish": "a", "message": "5"},
    )
    assert [each.get("published") or each["publish"] for each in reported] == ["a", "a", "none", "b", "b", "a"]
    assert [each.get("code") for each in reported] == [None, None, 404, None, None, None]
    shown = [a.message_id(each.message.seq) for each in lab.peek(a)]
    assert [reported[at]["id"] for at in (0, 1, 5)] == shown
    assert reported[3]["id"] == reported[4]["id"] == b.message_id(lab.peek(b)[0].message.seq)
    assert lab.bodies(a) == [b"1", b"2", b"5"]


def test_full_queue_refuses_only_its_messages(lab: Lab) -> None:
    lab.queue("a", cap="64KiB")
    b = lab.queue("b")
    reader = Reader(lab)
    reported = reader.send(*[{"publish": name, "message": "m" * 999} for _ in range(MANY) for name in ("a", "b")])
    of_a = [each for each in reported if each.get("publish") == "a"]
    assert of_a and {each["code"] for each in of_a} == {507}
    assert len([each for each in reported if each.get("published") == "b"]) == len(lab.bodies(b)) == MANY
    assert len(reported) == 2 * MANY


def test_immediate_engine_refusal_is_reported_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    a = lab.queue("a")
    monkeypatch.setattr(LocalQueue, "publish", picky(LocalQueue.publish))
    reader = Reader(lab)
    bodies = [("1", {}), ("2", {"x-msg-x-bad": "1"}), ("3", {})]
    reported = reader.send(*({"publish": "a", "message": body, **more} for body, more in bodies))
    assert [each.get("code") for each in reported] == [None, 501, None]
    monkeypatch.undo()
    assert lab.bodies(a) == [b"1", b"3"]


def test_delivered_frames_can_be_republished(lab: Lab) -> None:
    filled(lab, "a", "1")
    b = lab.queue("b")
    reader = Reader(lab)
    (delivery,) = reader.subscribe("a")
    reported = reader.send({"publish": "b", **delivery}, {"ackId": delivery["ackId"]})
    assert {"settled": [delivery["ackId"]]} in reported and any(each.get("published") == "b" for each in reported)
    assert lab.bodies(b) == [b"1"]


def test_stop_answers_accepted_messages(lab: Lab) -> None:
    a = filled(lab, "a", "1")
    reader = Reader(lab)
    reader.subscribe("a")
    reader.session.receive([text('{"publish":"a","message":"2"}')])
    reader.session.stop()
    assert reader.wire.code is None
    (reported,) = reader.receive()
    assert reported["published"] == "a"
    assert reader.wire.code == 1001
    lab.settle()
    assert counts(a) == (2, 0)


# ------------------------------------------------------------ bounds


def test_delayed_refusal_counts_all_its_messages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept the name until then and counted nothing: 20,000 of the largest frames were in memory at once."""
    monkeypatch.setattr(unanswered, "UNCONFIRMED_BYTES_MAX", 10_000)
    lab.queue("a")
    reader = Reader(lab)
    reader.session.receive([text('{"publish":"a","message":"1"}')])
    refused = text(json.dumps({"publish": "x" * 5000, "message": ""}))
    reader.session.receive([refused])
    assert not reader.wire.is_held
    reader.session.receive([refused])
    assert reader.wire.is_held
    assert [each.get("code") for each in reader.receive()] == [None, 400, 400]
    assert not reader.wire.is_held


def test_no_deliveries_while_the_peer_does_not_read(lab: Lab) -> None:
    a, b = lab.queue("a"), lab.queue("b")
    reader = Reader(lab)
    reader.subscribe("a", ack=False)
    reader.session.pause()
    reader.subscribe("b", ack=False)  # also not to one that begins meanwhile
    lab.publish(a, "1")
    lab.publish(b, "2")
    assert reader.receive() == []
    assert (counts(a), counts(b)) == ((1, 0), (1, 0))
    reader.session.resume()
    assert sorted(each["message"] for each in reader.receive()) == ["1", "2"]


def test_subscriptions_of_a_socket_are_limited(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_session, "SUBSCRIPTIONS_MAX", 2)
    for name in "abc":
        lab.queue(name)
    reader = Reader(lab)
    reader.subscribe("a")
    reader.subscribe("b")
    (reported,) = reader.send({"subscribe": "c"})
    assert (reported["code"], reported["subscribe"]) == (429, "c")
    reader.send({"unsubscribe": "a"})
    reader.subscribe("c")


names = st.sampled_from(
    ["subscribe", "unsubscribe", "window", "publish", "message", "limit", "ack", "lease", "group"]
    + ["ackId", "ackToId", "nackId", "rejectId", "extendId", "token", "delay", "other"]
)
values: st.SearchStrategy[Any] = st.sampled_from(["a", "b", "", "x.1", 1, 0, -1, 1.5, True, None, [], {}])
frames = st.builds(lambda fields: text(json.dumps(fields)), st.dictionaries(names, values, max_size=4))
reads = st.lists(st.lists(frames | st.just(text("")), min_size=1, max_size=5), max_size=5)


@given(reads)
def test_any_command_is_answered_and_keeps_the_socket(reads: list[list[Any]]) -> None:
    lab = Lab()
    a = filled(lab, "a", "1", "2")
    reader = Reader(lab)
    published = 0
    for read in reads:
        reader.session.receive(read)
        published += sum(b'"publish"' in each.data for each in read)
    reported = [each for each in reader.receive() if isinstance(each, dict)]
    assert len([each for each in reported if "published" in each or "publish" in each or "code" in each]) >= published
    assert reader.wire.code is None
    reader.session.closed()
    lab.settle()
    assert a.counts().wip == 0


# ------------------------------------------------------------ rights

USERS = f"""
[users.ann]
password = ["{hashed("open sesame")}"]
grants = ["receive default/a", "receive default/b", "send default/b"]
"""


def connected(path: Path) -> tuple[World, Reader]:
    world = World(path, USERS)
    for name in "abc":
        filled(world.lab, name, name)
    return world, Reader(world.lab, world.authenticator, world.login("ann", "open sesame"))


def test_each_queue_requires_its_right_without_revealing_existence(tmp_path: Path) -> None:
    _, reader = connected(tmp_path)
    reader.subscribe("a")
    for name in ("c", "none"):
        (reported,) = reader.send({"subscribe": name})
        assert reported == {"code": 403, "error": f"no right to receive on queue default/{name}", "subscribe": name}
    for name in ("a", "none"):
        (reported,) = reader.send({"publish": name, "message": "m"})
        assert reported == {"code": 403, "error": f"no right to send on queue default/{name}", "publish": name}
    (reported,) = reader.send({"publish": "b", "message": "m"})
    assert reported["published"] == "b"


def test_lost_right_ends_only_its_subscription(tmp_path: Path) -> None:
    world, reader = connected(tmp_path)
    (of_a,) = reader.subscribe("a")
    (of_b,) = reader.subscribe("b")
    assert world.reload(USERS.replace('"receive default/a", ', "").replace(', "send default/b"', "")) is None
    assert reader.receive() == [{"unsubscribed": "a", "code": 403, "error": "no right to receive on queue default/a"}]
    reported = reader.send({"ackId": of_a["ackId"]}, {"ackId": of_b["ackId"]}, {"publish": "b", "message": "m"})
    assert sorted(reported, key=str) == [
        {"code": 403, "error": "no right to send on queue default/b", "publish": "b"},
        {"settled": [of_b["ackId"]]},
        {"stale": [of_a["ackId"]]},
    ]
    assert reader.wire.code is None


def test_removed_user_ends_the_socket(tmp_path: Path) -> None:
    world, reader = connected(tmp_path)
    reader.subscribe("a")
    assert world.reload(USERS.replace("ann", "bob")) is None
    assert [each["code"] for each in reader.receive()] == [401]
    assert reader.wire.code == 1008


def test_subscriptions_count_among_those_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SUBSCRIPTIONS_MAX", 2)
    world, reader = connected(tmp_path)
    other = Reader(world.lab, world.authenticator, world.login("ann", "open sesame"))
    reader.subscribe("a")
    reader.subscribe("b")
    (reported,) = other.send({"subscribe": "a"})
    assert (reported["code"], reported["subscribe"]) == (429, "a")
    reader.send({"unsubscribe": "a"})
    other.subscribe("a")
    reader.session.closed()
    other.subscribe("b")


def test_throttled_publisher_loses_nothing(tmp_path: Path) -> None:
    rated = USERS + "rate = { messages = 10 }\n"
    world = World(tmp_path, rated)
    b = filled(world.lab, "b", "first")
    reader = Reader(world.lab, world.authenticator, world.login("ann", "open sesame"))
    (delivery,) = reader.subscribe("b", limit=1)
    reported = reader.send(*[{"publish": "b", "message": str(number)} for number in range(20)])
    assert len(reported) == 20
    reported = reader.send({"ackId": delivery["ackId"]}, {"publish": "b", "message": "late"}, {"unsubscribe": "b"})
    assert {"settled": [delivery["ackId"]]} in reported
    assert reader.wire.is_held and not any("published" in each or "unsubscribed" in each for each in reported)
    world.lab.pass_time(5_000)
    reported = reader.receive()
    assert any(each.get("published") == "b" for each in reported) and {"unsubscribed": "b"} in reported
    assert not reader.wire.is_held
    assert b.counts().rdy == 21


def test_queue_deleted_with_a_message_in_flight_refuses_it(lab: Lab) -> None:
    a = lab.queue("a")
    reader = Reader(lab)
    reader.subscribe("a")
    errors: list[CurbstoneError | bool] = []
    lab.broker.delete(a.name, errors.append)
    reported = reader.send({"publish": "a", "message": "m"})
    assert {each["code"] for each in reported} == {404}
    assert {next(iter(set(each) - {"code", "error"})) for each in reported} == {"publish", "unsubscribed"}
