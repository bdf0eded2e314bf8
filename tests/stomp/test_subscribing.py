"""SUBSCRIBE, UNSUBSCRIBE and MESSAGE (S1 to S13), counts, topics and temporary queues.

Each test is named by the number its pitfall has in the project's conformance list.
"""

from __future__ import annotations

import re

import pytest

from curbstone.stomp.limits import Limits
from tests.kit.lab import Lab
from tests.stomp.harness import CLIENT_SUB, SUB, Client, send


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_s01_an_id_is_needed_from_1_1_on(version: str) -> None:
    assert "[id]" in Client(version=version).error("SUBSCRIBE|destination:/queue/a").headers["message"]


def test_s01_none_is_needed_in_1_0() -> None:
    client = Client(version="1.0")
    (message,) = client.send(send(), "SUBSCRIBE|destination:/queue/a")
    assert "subscription" not in message.headers


def test_s02_an_id_can_be_used_once() -> None:
    assert "already exists" in Client().error(SUB, SUB).headers["message"]


def test_s03_an_unknown_ack_mode() -> None:
    error = Client().error("SUBSCRIBE|id:0|destination:/queue/a|ack:foo")
    assert b"ack:foo" in error.body


def test_s04_without_ack_a_message_is_settled_when_sent(client: Client) -> None:
    (message,) = client.send(send(), "SUBSCRIBE|id:0|destination:/queue/a")
    assert "ack" not in message.headers
    assert client.lab.bodies("a") == []


def test_s05_message_headers(client: Client) -> None:
    client.send(send("body", "content-type:text/plain", "k:v", "content-length:4"))
    (message,) = client.send(SUB)
    assert re.fullmatch(r"[0-9a-f]{12}-1\.1\.0", message.headers.pop("ack")), "who does not know it can't guess it"
    assert message.headers == {
        "subscription": "0",
        "destination": "/queue/a",
        "message-id": client.lab.named("a").message_id(1),
        "content-length": "4",
        "timestamp": "1700000000000",
        "redelivered": "false",
        "x-tries": "0",
        "x-mature": "2023-11-14T22:13:20.000Z",
        "content-type": "text/plain",
        "k": "v",
    }


def test_s06_a_redelivery_has_the_same_id_and_a_new_ack(client: Client) -> None:
    (first,) = client.send(send(), SUB)
    (second,) = client.send(f"NACK|id:{first.headers['ack']}")
    assert first.headers["message-id"] == second.headers["message-id"]
    assert first.headers["ack"] != second.headers["ack"]
    assert (second.headers["x-tries"], second.headers["redelivered"]) == ("1", "true")
    assert "no unsettled" in client.error(f"ACK|id:{first.headers['ack']}").headers["message"]


@pytest.mark.parametrize("text", ["/queue/a", "a", "./a", ".", "/q/p/a", "/queue/p/a:b"])
def test_s07_the_destination_is_written_as_subscribed(client: Client, text: str) -> None:
    client.feed(Client.frame(send(queue=text)) + Client.frame(f"SUBSCRIBE|id:0|destination:{text}"))
    client.lab.settle()
    assert f"\ndestination:{text}\n".encode() in b"".join(client.session.take_output())


def test_s08_unsubscribe_of_an_unknown_id() -> None:
    assert "no subscription" in Client().error("UNSUBSCRIBE|id:9").headers["message"]


def test_s09_unsubscribe_by_destination_in_1_0() -> None:
    client = Client(version="1.0")
    client.send("SUBSCRIBE|destination:/queue/a", "UNSUBSCRIBE|destination:/queue/a")
    assert client.send(send()) == []


def test_s10_unsettled_messages_can_be_settled_after_unsubscribe(client: Client) -> None:
    one, two = client.send(send("1"), send("2"), SUB)
    assert client.send("UNSUBSCRIBE|id:0", send("3")) == []
    assert client.receipts(f"ACK|id:{one.headers['ack']}|receipt:r") == ["r"]
    assert client.lab.bodies("a") == [b"2", b"3"]
    client.send(f"ACK|id:{two.headers['ack']}")
    assert client.lab.bodies("a") == [b"3"]
    assert not client.lab.named("a").dispatcher.attached, "nothing left to settle: it is gone"


def test_s10_the_end_of_the_connection_returns_them(client: Client) -> None:
    client.send(send("1"), SUB)
    client.send("UNSUBSCRIBE|id:0")
    client.session.connection_lost()
    (message,) = Client(client.lab).send(SUB)
    assert message.headers["x-tries"] == "1"


def test_s11_a_late_ack_is_judged_by_the_mode_of_its_delivery(client: Client) -> None:
    one, two = client.send(send("1"), send("2"), SUB)
    client.send("UNSUBSCRIBE|id:0")
    client.send(CLIENT_SUB)
    client.send(f"ACK|id:{two.headers['ack']}")
    assert client.lab.bodies("a") == [b"1"], "client-individual: only the second"
    client.send(f"ACK|id:{one.headers['ack']}")
    assert client.lab.bodies("a") == []


@pytest.mark.parametrize("header", ["prefetch-count", "x-wsize"])
def test_s12_the_window(header: str) -> None:
    for bad in ("0", "-1", "abc", "", "1.5"):
        assert header in Client().error(f"{SUB}|{header}:{bad}").headers["message"]
    client = Client()
    first, second = client.send(*[send(str(n)) for n in range(5)], f"{SUB}|{header}:2")
    (third,) = client.send(f"ACK|id:{first.headers['ack']}")
    assert [f.body for f in (first, second, third)] == [b"0", b"1", b"2"]


def test_s13_a_selector_is_refused() -> None:
    assert "curbstone bind EVENT QUEUE --filter" in Client().error(f"{SUB}|selector:a=1").headers["message"]


def test_curb_one_queue_for_every_destination() -> None:
    client = Client(single_queue="main")
    client.send(send("1", queue="foo"), send("2", queue="/anything/at all"))
    assert [f.body for f in client.send("SUBSCRIBE|id:0|destination:.|ack:client-individual")] == [b"1", b"2"]
    assert [str(name) for name in client.lab.names()] == ["default/main"]


@pytest.mark.parametrize("text", ["/queue/a/count", "a/count", "./a/count", "/queue/default/a/count"])
def test_count_is_sent_immediately_and_on_change(client: Client, text: str) -> None:
    client.send(send("1"), send("2"))
    (first,) = client.send(f"SUBSCRIBE|id:c|destination:{text}")
    assert (first.body, first.headers["subscription"], first.headers["destination"]) == (b"2", "c", text)
    (second,) = client.send(*[send(str(n)) for n in range(10)])
    assert second.body == b"12", "once per turn"
    assert second.headers["message-id"] != first.headers["message-id"]
    client.send("UNSUBSCRIBE|id:c")
    assert client.send(send("3")) == []


def test_keuss_delays(client: Client) -> None:
    client.send(SUB, send("1", "x-delta-t:2000"), send("2", f"x-next-t:{client.lab.host.now_ms() + 3000}"))
    client.lab.pass_time(1999)
    assert client.read() == []
    client.lab.pass_time(1)
    (first,) = client.read()
    assert first.body == b"1"
    assert not {"x-delta-t", "x-next-t"} & set(first.headers)
    client.lab.pass_time(1000)
    (second,) = client.read()
    assert second.headers["x-mature"] == "2023-11-14T22:13:23.000Z"


@pytest.mark.parametrize(
    "header", ["x-delta-t:abc", "x-delta-t:-1", "x-next-t:soon", "expiration:1.5", "x-ks-groups:a b"]
)
def test_garbage_in_a_header_of_a_send_is_an_error(header: str) -> None:
    assert header.encode() in Client().error(send("x", header)).body


def test_keuss_groups(client: Client) -> None:
    client.send(send("1", "x-ks-groups:G1, G2"))
    group = "SUBSCRIBE|id:{0}|destination:/queue/a|ack:client-individual|x-ks-group:G{0}"
    received = client.send(*[group.format(n) for n in (1, 2, 3)])
    assert sorted(f.headers["subscription"] for f in received) == ["1", "2"]


def test_keuss_parallel_is_the_weight_in_the_round_robin(client: Client) -> None:
    client.send(f"{SUB}|x-parallel:3")
    assert client.lab.named("a").consumers()[0].weight == 3


def test_keuss_headers_are_kept(client: Client) -> None:
    client.send(send("x", "x-ks-hdr-foo:bar", "x-msg-x-k:v"))
    (message,) = client.send(SUB)
    assert (message.headers["x-ks-hdr-foo"], message.headers["x-msg-x-k"]) == ("bar", "v")


def test_topic_subscription_gets_messages_matching_its_selector(client: Client) -> None:
    client.send("SUBSCRIBE|id:0|destination:/topic/news|selector:kind = 'hot' AND size > 9")
    client.send("SUBSCRIBE|id:1|destination:/topic/news")
    found: list[tuple[str, bytes]] = []
    for number, headers in enumerate(("kind:hot|size:10", "kind:hot|size:9", "kind:cold|size:10", "size:10")):
        frames = client.send(send(str(number), *headers.split("|"), queue="/topic/news"))
        found += [(each.headers["subscription"], each.body) for each in frames]
    assert [each for each in found if each[0] == "0"] == [("0", b"0")]
    assert [body for subscription, body in found if subscription == "1"] == [b"0", b"1", b"2", b"3"]


def test_invalid_selector_is_an_error_with_position_and_creates_nothing(client: Client) -> None:
    error = client.error("SUBSCRIBE|id:0|destination:/topic/news|selector:kind is hot|receipt:r")
    assert error.headers["message"] == "bad filter at character 9: expected NULL, found 'hot'"
    assert not client.lab.names() and not client.lab.broker.private_queues()


def test_a_topic_has_a_queue_for_each_subscription(lab: Lab) -> None:
    one, two = Client(lab, name="s1"), Client(lab, name="s2")
    for client in (one, two):
        client.send("SUBSCRIBE|id:0|destination:/topic/news")
    assert one.receipts(send("hot", "receipt:r", queue="/topic/news")) == ["r"]
    assert [f.body for f in two.read()] == [b"hot"]
    one.session.connection_lost()
    two.send("DISCONNECT")
    lab.settle()
    assert not lab.names(), "they go with their connections"


def test_reply_is_sent_to_a_temporary_queue(lab: Lab) -> None:
    asker, server = Client(lab, name="s1"), Client(lab, name="s2")
    asker.send("SUBSCRIBE|id:r|destination:/temp-queue/answers", send("?", "reply-to:/temp-queue/answers"))
    (question,) = server.send(SUB)
    reply_to = question.headers["reply-to"]
    server.send(send("!", queue=reply_to))
    (answer,) = asker.turn()
    assert (answer.body, answer.headers["destination"]) == (b"!", "/temp-queue/answers")
    assert reply_to == "/reply-queue/s1.answers"
    stranger = Client(lab, name="s3").error(f"SUBSCRIBE|id:0|destination:{reply_to}")
    assert "is for SEND" in stranger.headers["message"]
    asker.send(send("note to self", queue="/temp-queue/other"), "SUBSCRIBE|id:c|destination:/temp-queue/third/count")
    asker.session.connection_lost()
    lab.settle()
    assert [str(name) for name in lab.names()] == ["default/a"]
    assert server.receipts(send("!", "receipt:late", queue=reply_to)) == ["late"], "nobody waits for it any more"
    assert not server.session.ending


def test_private_queues_of_a_connection_are_limited(lab: Lab) -> None:
    """Each SEND to another name made one more, so one connection could make any number of them."""
    client = Client(lab, limits=Limits(private_max=3))
    client.send("SUBSCRIBE|id:0|destination:/topic/news", "SUBSCRIBE|id:1|destination:/temp-queue/1")
    for name in ("2", "2", "1"):
        assert client.receipts(send("m", "receipt:r", queue=f"/temp-queue/{name}")) == ["r"]
    client.send("UNSUBSCRIBE|id:0")
    assert client.receipts(send("m", "receipt:r", queue="/temp-queue/3")) == ["r"]
    error = client.error(send("m", queue="/temp-queue/4"))
    assert error.headers["message"] == "a connection has at most 3 temporary queues and topics"
    lab.settle()
    assert not lab.names()


def test_reply_reaches_a_client_that_only_named_a_temporary_queue(lab: Lab) -> None:
    """RabbitMQ's way: the answer was dropped behind a RECEIPT."""
    asker, server = Client(lab, name="s1"), Client(lab, name="s2")
    questions = server.send(SUB) + asker.send(send("1", "reply-to:/temp-queue/r"), send("2", "reply-to:/temp-queue/r"))
    questions += server.read()
    for question in questions:
        server.send(send(f"answer {question.body.decode()}", queue=question.headers["reply-to"]))
    answers = asker.read()
    assert [answer.body for answer in answers] == [b"answer 1", b"answer 2"]
    for answer in answers:
        assert answer.headers["subscription"] == answer.headers["destination"] == "/temp-queue/r"
        assert "ack" not in answer.headers
    asker.send("SUBSCRIBE|id:mine|destination:/temp-queue/r|ack:client")
    server.send(send("3", queue=questions[0].headers["reply-to"]))
    (answer,) = asker.read()
    assert (answer.body, answer.headers["subscription"]) == (b"3", "mine"), "it has the queue to itself"
    asker.send("DISCONNECT")
    lab.settle()
    assert not lab.broker.private_queues()


@pytest.mark.parametrize("named", ["/temp-queue/", "/temp-queue/a/b", "/temp-queue/a b"])
def test_invalid_temporary_queue_is_reported(named: str) -> None:
    assert "queue name" in Client().error(send("?", f"reply-to:{named}")).headers["message"]


def test_subscriptions_created_by_reply_to_count() -> None:
    client = Client(limits=Limits(subscriptions_max=2))
    client.send(send("?", "reply-to:/temp-queue/1"), send("?", "reply-to:/temp-queue/2"))
    error = client.error(send("?", "reply-to:/temp-queue/3", "receipt:r"))
    assert error.headers["message"] == "a connection has at most 2 subscriptions" and error.headers["receipt-id"] == "r"


@pytest.mark.parametrize("header", ["x-wsize", "prefetch-count", "activemq.prefetchSize"])
def test_the_window_by_each_of_its_names(client: Client, header: str) -> None:
    got = client.send(send("1"), send("2"), send("3"), f"{SUB}|{header}:2")
    assert [frame.body for frame in got] == [b"1", b"2"]
    for bad in ("0", "-1", "many"):
        assert header in Client().error(f"{SUB}|{header}:{bad}").headers["message"]
