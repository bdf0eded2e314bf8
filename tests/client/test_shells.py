"""What both shells promise, over TCP and through the WebSocket, against a real server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import curbstone_client as client_package
from curbstone_client import (
    CantConnect,
    ClientError,
    NoSuchQueue,
    NotSupported,
    QueueFull,
    Reject,
    Retry,
    Stale,
    TooLarge,
    Unknown,
)
from tests.client.shells import SHELLS, WAIT_S_MAX, Shell
from tests.kit.server import ServerProcess


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


def tcp_url(server: ServerProcess) -> str:
    return "stomp://{}:{}".format(*server.stomp)


@pytest.fixture(params=[(shell, way) for shell in SHELLS for way in ("websocket", "tcp")], ids="-".join)
def shell(common: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Shell]:
    name, way = request.param
    urls = [common.url] if way == "websocket" else [tcp_url(common), common.url]
    with SHELLS[name](urls) as made:
        yield made


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[-60:]


def test_published_message_is_durable_and_unchanged(shell: Shell, queue: str) -> None:
    bodies: list[Any] = [{"total": 12, "ä": None}, [1], "täxt", b"\0bytes", b"", b"x" * 100_000, 7]
    stored = [shell.publish(queue, body, headers={"customer": "7:\n", "traceparent": "00-1"}) for body in bodies]
    assert shell.on_queue(queue, "info")["rdy"] == len(bodies)
    messages = shell.consume(queue)
    for body, put in zip(bodies, stored, strict=True):
        message = shell.take(messages)
        assert message.id == put.id != ""
        assert not put.maybe_repeated
        assert message.headers == {"customer": "7:\n", "traceparent": "00-1"}
        assert (message.tries, message.timestamp > 1e9) == (0, True)
        if isinstance(body, bytes):
            assert (message.body, message.type) == (body, "")
        elif isinstance(body, str):
            assert (message.text, message.type) == (body, "text/plain; charset=utf-8")
        else:
            assert (message.json(), message.type) == (body, "application/json")
        shell.result(shell.settle(message, "ack"))
    assert shell.on_queue(queue, "info")["wip"] == 0


def test_a_paused_queue_delivers_nothing_until_it_is_resumed(shell: Shell, queue: str) -> None:
    shell.publish(queue, b"1")
    assert shell.on_queue(queue, "pause") == {"paused": True, "publish_paused": False}
    messages = shell.consume(queue)
    assert shell.on_queue(queue, "info")["rdy"] == 1
    assert shell.on_queue(queue, "pause", publish=True) == {"paused": True, "publish_paused": True}
    assert shell.on_queue(queue, "resume") == {"paused": False, "publish_paused": False}
    message = shell.take(messages)
    assert message.body == b"1"
    shell.result(shell.settle(message, "ack"))


def test_content_type_delay_and_ttl(shell: Shell, queue: str) -> None:
    shell.publish(queue, b"%PDF", type="application/pdf")
    shell.publish(queue, b"later", delay=3600, ttl=7200)
    assert shell.on_queue(queue, "info")["delayed"] == 1
    assert shell.take(shell.consume(queue)).type == "application/pdf"


@pytest.mark.parametrize("bad", [object(), {1, 2}, float("nan")])
def test_invalid_message_is_refused_at_the_call(shell: Shell, queue: str, bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        shell.send(queue, bad)
    with pytest.raises(TypeError, match="header"):
        shell.send(queue, "x", headers={"n": 1})
    with pytest.raises(ValueError, match="delay"):
        shell.send(queue, "x", delay=-1)
    with pytest.raises(ValueError, match="bad queue name"):
        shell.send("a/b/c", "x")


def test_a_higher_priority_is_delivered_first(shell: Shell, queue: str) -> None:
    for priority in (None, 0, 9, 4, 12):
        shell.publish(queue, str(priority), priority=priority)
    with pytest.raises(ValueError, match="priority must be an integer from 0 to 9, not -1"):
        shell.publish(queue, "never", priority=-1)
    messages = shell.consume(queue)
    found = [shell.take(messages) for _ in range(5)]
    assert [(message.text, message.priority) for message in found] == [
        *(("9", 9), ("12", 9), ("None", 4), ("4", 4), ("0", 0)),
    ]
    assert "priority" not in found[0].headers


def test_duplicate_unique_name_is_skipped(shell: Shell, queue: str) -> None:
    first, again = shell.publish(queue, "1", unique="a:b"), shell.publish(queue, "2", unique="a:b")
    assert (first.repeated, again.repeated, again.id) == (False, True, first.id)
    with pytest.raises(ValueError, match="unique_until must be settled or delivered, with unique, not 'x'"):
        shell.publish(queue, "3", unique="a", unique_until="x")
    shell.publish(queue, "4", unique="c", unique_until="delivered")
    messages = shell.consume(queue)
    found = [shell.take(messages) for _ in range(2)]
    assert [(message.text, message.unique, dict(message.headers)) for message in found] == [
        ("1", "a:b", {}),
        ("4", "c", {}),
    ]
    assert not shell.publish(queue, "5", unique="c").repeated


def test_waiting_message_with_the_same_name_is_replaced(shell: Shell, queue: str) -> None:
    for text in "123":
        shell.publish(queue, text, replace="a", replace_max=1.5)
    message = shell.take(shell.consume(queue))
    assert (message.text, message.replace, dict(message.headers)) == ("3", "a", {})
    with pytest.raises(ValueError, match="replace_max"):
        shell.publish(queue, "x", replace="a", replace_max=-1)


def test_many_messages_are_stored_in_order(shell: Shell, queue: str) -> None:
    sent = [shell.send(queue, b"%d" % n) for n in range(500)]
    shell.flush()
    assert len({shell.result(confirm).id for confirm in sent}) == 500
    messages = shell.consume(queue)
    assert [int(shell.take(messages).body) for _ in range(100)] == list(range(100))


def test_full_window_blocks_the_producer(common: ServerProcess, queue: str) -> None:
    for make in SHELLS.values():
        with make(common.url, window=10) as shell:
            for n in range(100):
                shell.send(queue, b"%d" % n)
                assert shell.client._publisher.unconfirmed <= 10
            shell.flush()


def test_refusals_raise_specific_errors_and_keep_the_connection(shell: Shell, queue: str) -> None:
    shell.call("declare", queue, max_message_size=1000)
    messages = shell.consume(queue)
    first = shell.send(queue, b"x" * 10)
    with pytest.raises(TooLarge, match="1000"):
        shell.result(shell.send(queue, b"x" * 2000))
    with pytest.raises(TooLarge, match="larger than 1048576"):
        shell.send(queue, b"x" * 2_000_000)
    last = shell.send(queue, b"y" * 10)
    shell.result(first)
    shell.result(last)
    assert [shell.take(messages).body[:1] for _ in range(2)] == [b"x", b"y"]
    shell.send(queue, b"x" * 3000)
    with pytest.raises(TooLarge):
        shell.flush()
    shell.flush()
    assert shell.client.stats.reconnects == 0
    with pytest.raises(NoSuchQueue):
        shell.on_queue("not-there", "info")


@pytest.mark.parametrize("name", SHELLS)
def test_full_queue_blocks_or_raises(common: ServerProcess, name: str, queue: str) -> None:
    with SHELLS[name](common.url) as shell, SHELLS[name](common.url, on_full="raise") as impatient:
        shell.call("declare", queue, cap=131072)
        sent = [shell.send(queue, b"%06d" % n + bytes(5000)) for n in range(40)]
        with pytest.raises(QueueFull) as refused:
            for _ in range(40):
                impatient.publish(queue, bytes(5000))
        assert refused.value.status == 507
        messages = shell.consume(queue, 5)
        came: list[int] = []
        while len(came) < 40:
            message = shell.take(messages)
            shell.settle(message, "ack")
            if message.body[:6].strip(b"\0"):
                came.append(int(message.body[:6]))
        assert sorted(came) == list(range(40))
        for confirm in sent:
            shell.result(confirm)


def test_messages_can_be_acked_requeued_and_rejected(shell: Shell, queue: str) -> None:
    shell.call("declare", queue, dead_letter=f"{queue}-dead")
    for body in "abc":
        shell.publish(queue, body)
    messages = shell.consume(queue)
    a, b, c = (shell.take(messages) for _ in range(3))
    shell.handle(a, lambda: None)
    with pytest.raises(ZeroDivisionError):
        shell.handle(b, lambda: print(1 / 0))
    with pytest.raises(Reject):
        shell.handle(c, lambda: (_ for _ in ()).throw(Reject("no such customer")))
    again = shell.take(messages)
    assert (again.text, again.tries) == ("b", 1)
    dead = shell.take(shell.consume(f"{queue}-dead"))
    assert (dead.text, dead.headers["x-dead-error"]) == ("c", "no such customer")
    shell.result(shell.settle(again, "nack", 0, "not now"))
    assert shell.take(messages).tries == 2
    with pytest.raises(Stale, match="settled before"):
        shell.settle(again, "ack")
    assert shell.client.stats.stale == 1


def test_closing_a_subscription_requeues_undelivered_messages(shell: Shell, queue: str) -> None:
    for n in range(10):
        shell.send(queue, b"%d" % n)
    shell.flush()
    first = shell.consume(queue, 5)
    held = shell.take(first)
    shell.end(first)
    second = shell.consume(queue)
    assert sorted(int(shell.take(second).body) for _ in range(9)) == list(range(1, 10))
    shell.result(shell.settle(held, "ack"))


def test_the_window_of_a_subscription_can_grow(shell: Shell, queue: str) -> None:
    for n in range(4):
        shell.send(queue, b"%d" % n)
    shell.flush()
    messages = shell.consume(queue, 1)
    shell.take(messages)
    shell.on_queue(queue, "info")
    assert not messages.subscription.inbox
    shell.widen(messages, 4)
    assert [shell.take(messages).body for _ in range(3)] == [b"1", b"2", b"3"]


def test_messages_are_received_in_batches(shell: Shell, queue: str) -> None:
    for n in range(7):
        shell.send(queue, b"%d" % n)
    shell.flush()
    assert [int(message.body) for message in shell.batch(queue, 5, 60)] == [0, 1, 2, 3, 4]
    assert len(shell.batch(queue, 5, 0.01)) <= 2


def test_a_transaction_moves_a_message_all_or_nothing(shell: Shell, queue: str) -> None:
    shell.publish(queue, "1")
    messages = shell.consume(queue)
    with pytest.raises(ZeroDivisionError):
        shell.commit([shell.take(messages)], [(f"{queue}-to", "no"), (queue, ZeroDivisionError())])
    message = shell.take(messages)
    assert message.tries == 1
    shell.commit([message], [(f"{queue}-to", {"n": 1}), (f"{queue}-too", "b")])
    assert shell.take(shell.consume(f"{queue}-to")).json() == {"n": 1}
    assert shell.on_queue(queue, "info")["wip"] == 0
    with pytest.raises(Stale):
        shell.commit([message], [])


def test_refused_transaction_requeues_its_message(shell: Shell, queue: str) -> None:
    shell.call("declare", f"{queue}-to", max_message_size=100)
    shell.publish(queue, "1")
    messages = shell.consume(queue)
    with pytest.raises(TooLarge):
        shell.commit([shell.take(messages)], [(f"{queue}-to", b"x" * 1000)])
    assert shell.take(messages).tries == 1


def test_each_subscriber_gets_a_copy_of_an_event(shell: Shell, queue: str) -> None:
    subscribers = [shell.subscribe(queue) for _ in range(2)]
    # What goes over the same connection afterwards is answered once both are there.
    shell.commit([], [(queue, b"behind them")])
    shell.publish_event(queue, {"id": 7})
    assert [shell.take(subscriber).json() for subscriber in subscribers] == [{"id": 7}] * 2


def test_filtered_subscriber_gets_matching_messages(shell: Shell, queue: str) -> None:
    subscriber = shell.subscribe(queue, filter="region = 'eu' AND n > 1")
    shell.commit([], [(queue, b"behind it")])
    for number in range(4):
        shell.publish_event(queue, {"id": number}, headers={"region": ("eu", "us")[number % 2], "n": str(number)})
    shell.publish_event(queue, {"id": 4}, headers={"region": "eu", "n": "4"})
    assert [shell.take(subscriber).json() for _ in range(2)] == [{"id": 2}, {"id": 4}]


def test_event_message_needs_no_ack(shell: Shell, queue: str) -> None:
    """`with message` and `ack` raised `ClientError: this subscription needs no acks`."""
    subscriber = shell.subscribe(queue)
    shell.commit([], [(queue, b"behind it")])
    for number in range(3):
        shell.publish_event(queue, {"id": number})
    shell.handle(shell.take(subscriber), lambda: None)
    shell.result(shell.settle(shell.take(subscriber), "ack"))
    message = shell.take(subscriber)
    with pytest.raises(ZeroDivisionError):
        shell.handle(message, lambda: print(1 / 0))
    with pytest.raises(ClientError, match="can't be nacked or rejected"):
        shell.settle(message, "reject")


def test_worker_consumes_as_a_group(shell: Shell, queue: str) -> None:
    shell.call("declare", queue, groups=["audit"], max_tries=5)
    shell.publish(queue, "x")
    seen = threading.Event()
    stop = shell.work(queue, lambda _message: seen.set(), group="audit")
    assert seen.wait(WAIT_S_MAX)
    stop()
    with httpx.Client(base_url=str(shell.client.addresses[-1])) as http:
        info = http.get(f"/v2/shop/queues/{queue}").json()
    assert (info["rdy"], info["groups"]["audit"]["rdy"]) == (1, 0)


def test_worker_handles_retries_rejects_and_replies(shell: Shell, queue: str) -> None:
    shell.call("declare", queue, dead_letter=f"{queue}-dead", max_tries=5)
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def handle(message: Any) -> Any:
        seen.append((message.text, message.tries))
        if message.text == "reject":
            raise Reject("bad")
        if message.text == "retry" and message.tries == 0:
            raise Retry(0, "busy")
        if message.text == "last":
            done.set()
        return {"got": message.text}

    stop = shell.work(queue, handle, parallel=2)
    assert shell.on_queue(queue, "request", "price", timeout=WAIT_S_MAX).json() == {"got": "price"}
    for text in ("reject", "retry", "last"):
        shell.publish(queue, text)
    assert done.wait(WAIT_S_MAX)
    shell.call("settled", queue)
    assert {("price", 0), ("reject", 0), ("retry", 0), ("retry", 1), ("last", 0)} == set(seen)
    assert shell.on_queue(f"{queue}-dead", "info")["rdy"] == 1
    stop()


@pytest.mark.parametrize("timeout", [0, 0.1])  # before it is confirmed, and mostly behind that
def test_unanswered_request_times_out(shell: Shell, queue: str, timeout: float) -> None:
    with pytest.raises(Unknown) as unknown:
        shell.on_queue(queue, "request", "?", timeout=timeout)
    assert str(unknown.value) == f"no answer within {timeout:g} s"


def test_the_first_connection_must_succeed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for make in SHELLS.values():
        with pytest.raises(CantConnect, match="not connected within 0.2 s"):
            make(f"http://127.0.0.1:{port}", connect_timeout=0.2)


def test_several_addresses_are_tried_in_turn(common: ServerProcess, queue: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for make in SHELLS.values():
        with make([f"http://127.0.0.1:{port}", common.url]) as shell:
            shell.publish(queue, "x")
            shell.on_queue(queue, "info")


def test_stomp_only_address_has_no_http_calls(common: ServerProcess, queue: str) -> None:
    for make in SHELLS.values():
        with make(tcp_url(common)) as shell, pytest.raises(NotSupported, match="HTTP"):
            shell.on_queue(queue, "info")


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://u:p@x", "http://", "http://x?y=1", "stomp://" + 64 * "x", "http://a..b"]
)
def test_a_bad_address_is_reported(url: str) -> None:
    with pytest.raises(ValueError, match="an address|no user"):
        client_package.Client(url)


def test_token_is_sent_with_each_connection_and_call(tmp_path: Path) -> None:
    """Also where it is a function. The server has no logins: a socket of ours says what came."""
    asked: list[str] = []
    for make in SHELLS.values():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            heard: list[bytes] = []

            def hear(listener: socket.socket = listener, heard: list[bytes] = heard) -> None:
                connection, _ = listener.accept()
                with connection:
                    heard.append(connection.recv(10_000))
                    connection.sendall(b"HTTP/1.1 401 Unauthorized\r\n\r\nbad token")

            thread = threading.Thread(target=hear)
            thread.start()

            def token() -> str:
                asked.append("asked")
                return "secret"

            with pytest.raises(client_package.NotAllowed, match="bad token"):
                make(f"http://127.0.0.1:{listener.getsockname()[1]}", token=token)
            thread.join()
            assert b"GET /stomp HTTP/1.1\r\n" in heard[0]
            assert b"\r\nAuthorization: Bearer secret\r\n" in heard[0]
    assert asked


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("producer", [None, "billing"])
def test_queue_that_forgot_a_producer_stores_its_next_messages_in_order(
    common: ServerProcess, name: str, producer: str | None
) -> None:
    """It wants to be told that nothing is in front, for that may have been refused."""
    queue = f"forgetting-{name}-{producer}"
    with SHELLS[name](common.url, producer=producer) as shell:
        for seq in range(3, 30):
            if seq == 10:
                httpx.delete(f"{common.url}/v2/shop/queues/{queue}").raise_for_status()
                shell.call("declare", queue)
            shell.send(queue, str(seq), **({"seq": seq} if producer else {}))
            if seq in (5, 9):
                shell.flush()
        shell.flush()
        messages = shell.consume(queue)
        assert [shell.take(messages).text for _ in range(20)] == [str(seq) for seq in range(10, 30)]


@pytest.mark.parametrize("name", SHELLS)
def test_application_numbered_messages_can_be_resent_after_a_restart(common: ServerProcess, name: str) -> None:
    queue = f"numbered-{name}"
    with SHELLS[name](common.url, producer="billing") as shell:
        shell.call("declare", queue)
        assert shell.on_queue(queue, "last_seq") is None
        for seq in (3, 4, 9):
            assert not shell.publish(queue, str(seq), seq=seq).repeated
        with pytest.raises(ValueError, match="above the last one, 9"):
            shell.send(queue, "9", seq=9)
        with pytest.raises(ValueError, match="above the last one, 9"):
            shell.send(queue, "10")
    with SHELLS[name](common.url, producer="billing") as shell:
        assert shell.on_queue(queue, "last_seq") == 9
        assert [shell.publish(queue, str(seq), seq=seq).repeated for seq in (4, 9, 11)] == [True, True, False]
        messages = shell.consume(queue)
        assert [shell.take(messages).text for _ in range(4)] == ["3", "4", "9", "11"]
    with SHELLS[name](common.url) as shell:
        with pytest.raises(ValueError, match="a client with a producer"):
            shell.send(queue, "x", seq=1)
        with pytest.raises(ValueError, match="a client with a producer"):
            shell.on_queue(queue, "last_seq")


@pytest.mark.parametrize("name", SHELLS)
def test_keys_are_listed_with_their_backlog(common: ServerProcess, name: str) -> None:
    queue = f"keys-{name}"
    with SHELLS[name](common.url) as shell:
        shell.call("declare", queue, fair=True, key_limit=0, groups=["a.b-c"])
        for key in ("x", "y", "y"):
            shell.publish(queue, "", key=key)
        assert shell.on_queue(queue, "keys", limit=1)["keys"] == [{"key": "y", "waiting": 2, "in_flight": 0}]
        assert shell.on_queue(queue, "keys", by="in_flight", group="a.b-c")["total"] == 2


@pytest.mark.parametrize("name", SHELLS)
def test_refused_message_is_not_overtaken(common: ServerProcess, name: str) -> None:
    queue = f"overtaken-{name}"
    with SHELLS[name](common.url) as shell:
        shell.call("declare", queue, max_message_size=1024)
        sent = [shell.send(queue, body) for body in ("1", "x" * 2000, "3", "x" * 2000, "x" * 2000, "6", "7")]
        assert [type(error_of(shell, each)) for each in sent] == [
            *(type(None), TooLarge, type(None), TooLarge, TooLarge, type(None), type(None))
        ]
        messages = shell.consume(queue)
        assert [shell.take(messages).text for _ in range(4)] == ["1", "3", "6", "7"]


def error_of(shell: Shell, sent: Any) -> Exception | None:
    try:
        shell.result(sent)
    except ClientError as error:
        return error
    return None


def test_batch_report_is_sent_when_its_messages_are_settled(shell: Shell, queue: str) -> None:
    shell.publish(queue, "1", batch="a:b", batch_size=1, batch_to=f"{queue}-done")
    message = shell.take(shell.consume(queue))
    assert (message.batch, dict(message.headers)) == ("a:b", {})
    shell.settle(message, "ack")
    report = shell.take(shell.consume(f"{queue}-done"))
    assert (report.batch, report.json()["acked"], report.json()["total"]) == ("a:b", 1, 1)
