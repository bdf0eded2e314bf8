"""Curb's acceptance list on a server with `--single-queue`, and `curbstone dump` (as a process, over TCP).

Each test is named by its number in that list. Where Curbstone does more than Curb, its own behaviour is what is
tested: STOMP 1.1 (2), user headers (5), several subscriptions (9), all ack modes (11), transactions (12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.commands import curbstone
from tests.kit.processes import COMMAND
from tests.kit.server import ServerProcess
from tests.stomp.raw import Raw, encode

SUB = "SUBSCRIBE|id:0|destination:.|ack:client-individual"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for all tests that leave it empty. Its command line is Curb's."""
    data = tmp_path_factory.mktemp("curb") / "data"
    with ServerProcess(data, "-cap", "10MiB", "-addr", ":0", "--single-queue", "curb") as server:
        yield server


@pytest.fixture
def curb(shared: ServerProcess) -> Iterator[ServerProcess]:
    yield shared
    assert held(shared) == 0, "each test takes what it sent"


def held(server: ServerProcess) -> int:
    with Raw(server.stomp) as peer:
        peer.send("SUBSCRIBE|id:c|destination:./count")
        return int(peer.frame().body)


def ack(message: object) -> str:
    return f"ACK|id:{message.headers['ack']}"  # type: ignore[attr-defined]


def take(server: ServerProcess, count: int) -> list[bytes]:
    """Consume that many messages, and no more."""
    with Raw(server.stomp) as peer:
        peer.send(SUB)
        bodies = []
        for _ in range(count):
            message = peer.frame()
            bodies.append(message.body)
            peer.confirm(ack(message))
        assert peer.waiting() == []
        return bodies


@pytest.mark.parametrize("command", ["STOMP", "CONNECT"])
def test_curb01_connected(curb: ServerProcess, command: str) -> None:
    with Raw(curb.stomp, f"{command}|accept-version:1.2|host:x") as peer:
        assert peer.connected.headers["version"] == "1.2"
        assert peer.connected.headers["server"].startswith("curbstone/")


def test_curb02_older_versions_are_supported(curb: ServerProcess) -> None:
    with Raw(curb.stomp, "CONNECT|accept-version:1.1|host:x") as peer:
        assert peer.connected.headers["version"] == "1.1"
    with Raw(curb.stomp, "") as peer:
        assert peer.error("CONNECT|accept-version:3.0|host:x").headers["version"] == "1.0,1.1,1.2"


def test_curb03_message_round_trips(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        peer.confirm("SEND|destination:.||hello", "1")
        peer.send(SUB)
        message = peer.frame()
        assert (message.headers["subscription"], message.headers["destination"], message.body) == ("0", ".", b"hello")
        assert message.headers["message-id"] and message.headers["ack"]
        peer.confirm(ack(message))


def test_curb04_every_destination_is_the_one_queue(curb: ServerProcess) -> None:
    names = ["foo", "/bar", "/queue/a/b", "anything at all", "/topic/x", "."]
    with Raw(curb.stomp) as peer:
        for name in names:
            peer.confirm(f"SEND|destination:{name}||{name}")
    assert take(curb, len(names)) == [name.encode() for name in names]


def test_curb05_user_headers_are_kept(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        peer.confirm("SEND|destination:.|x: y||1")
        peer.send(SUB)
        message = peer.frame()
        assert message.headers["x"] == " y"
        peer.confirm(ack(message))


def test_curb06_nack_redelivers_the_same_message(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        peer.confirm("SEND|destination:.||1")
        peer.send(SUB)
        first = peer.frame()
        peer.send(f"NACK|id:{first.headers['ack']}")
        second = peer.frame()
        assert (second.body, second.headers["message-id"]) == (first.body, first.headers["message-id"])
        peer.confirm(ack(second))


def test_curb07_acked_message_is_gone(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        peer.confirm("SEND|destination:.||1")
        peer.send(SUB)
        peer.send(ack(peer.frame()), "DISCONNECT|receipt:d")
        assert peer.frame().headers["receipt-id"] == "d"
    assert take(curb, 0) == []


def test_curb08_lost_connection_requeues_its_messages(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        peer.confirm("SEND|destination:.||1")
        peer.send(SUB)
        assert peer.frame().body == b"1"
    assert take(curb, 1) == [b"1"]


def test_curb09_subscriptions_have_ids(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        peer.confirm(SUB)
        peer.confirm(SUB.replace("id:0", "id:1"))
        peer.confirm("UNSUBSCRIBE|id:0")
        peer.confirm(SUB)
        assert "already exists" in peer.error(SUB).headers["message"]


def test_curb10_unsubscribe_pauses_and_the_connection_lives(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        peer.confirm(SUB)
        peer.confirm("UNSUBSCRIBE|id:0")
        peer.confirm("SEND|destination:.||1")
        assert peer.waiting() == []
    assert take(curb, 1) == [b"1"]


@pytest.mark.parametrize("mode", ["auto", "client"])
def test_curb11_the_other_ack_modes_work_too(curb: ServerProcess, mode: str) -> None:
    with Raw(curb.stomp) as peer:
        for n in range(3):
            peer.confirm(f"SEND|destination:.||{n}")
        peer.send(f"SUBSCRIBE|id:0|destination:.|ack:{mode}")
        messages = peer.frames(3)
        assert [message.body for message in messages] == [b"0", b"1", b"2"]
        if mode == "client":
            peer.confirm(ack(messages[-1]))


def test_curb12_and_20_transactions(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        for end in ("ABORT", "COMMIT"):
            peer.send(
                "BEGIN|transaction:t", "SEND|destination:.|transaction:t||1", "SEND|destination:.|transaction:t||2"
            )
            assert held(curb) == 0
            peer.confirm(f"{end}|transaction:t")
        peer.send("BEGIN|transaction:cut", "SEND|destination:.|transaction:cut||3")
        assert peer.waiting() == []
    assert take(curb, 2) == [b"1", b"2"]


def test_curb13_disconnect_sends_a_receipt_and_closes(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as peer:
        peer.send("DISCONNECT|receipt:77")
        assert [frame.headers for frame in peer.read_all()] == [{"receipt-id": "77"}]


def size_of(data: Path) -> int:
    return max(
        (sum(file.stat().st_size for file in queue.iterdir()) for queue in (data / "queues").iterdir()), default=0
    )


def test_curb14_the_cap_holds_and_the_sender_is_notified(tmp_path: Path) -> None:
    cap = 64 * 1024
    with ServerProcess(tmp_path / "data", "-cap", "64KiB", "--single-queue", "curb") as server:
        with Raw(server.stomp) as peer:
            stored = 0
            while True:
                peer.send(f"SEND|destination:.|receipt:{stored}||{stored:04d}" + "x" * 996)
                answer = peer.frame()
                assert size_of(tmp_path / "data") <= cap
                if answer.command == "ERROR":
                    break
                stored += 1
            assert (answer.headers["receipt-id"], "cap" in answer.headers["message"]) == (str(stored), True)
            assert stored > 16
        bodies = take(server, stored)
        assert [int(body[:4]) for body in bodies] == list(range(stored)), "what was there is intact"
        with Raw(server.stomp) as peer:
            peer.confirm("SEND|destination:.||again")
        assert take(server, 1) == [b"again"]


def test_curb15_unacked_messages_survive_a_crash(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--single-queue", "curb") as server:
        peer = Raw(server.stomp)
        for n in range(5):
            peer.confirm(f"SEND|destination:.||{n}")
        peer.send(SUB + "|x-wsize:3")
        first, _, third = peer.frames(3)
        peer.send(f"{ack(first)}|receipt:a1", f"{ack(third)}|receipt:a3")
        assert {frame.headers.get("receipt-id") for frame in peer.frames(4)} >= {"a1", "a3"}
        server.kill()
        peer.socket.close()
        server.restart()
        assert take(server, 3) == [b"1", b"3", b"4"]


def test_curb16_any_body_round_trips(curb: ServerProcess) -> None:
    body = b"one\ntwo\tthree\0four\r\n\\\xff"
    with Raw(curb.stomp) as peer:
        peer.confirm("SEND|destination:.", body=body)
    assert take(curb, 1) == [body]


def test_curb17_each_message_is_delivered_to_one_subscriber(curb: ServerProcess) -> None:
    count = 40
    with Raw(curb.stomp) as one, Raw(curb.stomp) as two, Raw(curb.stomp) as sender:
        for peer in (one, two):
            peer.confirm(f"{SUB}|x-wsize:{count // 2}")
        sender.send(*[f"SEND|destination:.||{n}" for n in range(count)])
        bodies = []
        for peer in (one, two):
            messages = peer.frames(count // 2)
            bodies += [int(message.body) for message in messages]
            for message in messages:
                peer.confirm(ack(message))
    assert sorted(bodies) == list(range(count))


def test_curb18_count_follows_the_queue(curb: ServerProcess) -> None:
    with Raw(curb.stomp) as watcher, Raw(curb.stomp) as peer:
        watcher.send("SUBSCRIBE|id:c|destination:./count")
        assert watcher.frame().body == b"0"
        peer.confirm("SEND|destination:.||1")
        assert watcher.frame().body == b"1"
        peer.confirm("SEND|destination:.||2")
        assert watcher.frame().body == b"2"
        peer.send(SUB)
        messages = peer.frames(2)
        peer.confirm(ack(messages[0]))
        assert watcher.frame().body == b"1", "what is with a consumer counts until it is acked"
        peer.confirm(ack(messages[1]))
        assert watcher.frame().body == b"0"


def test_curb19_without_single_queue_names_are_queues(server: ServerProcess) -> None:
    with Raw(server.stomp) as peer:
        peer.confirm("SEND|destination:./1||one")
        peer.confirm("SEND|destination:./2||two")
        peer.send("SUBSCRIBE|id:1|destination:./1|ack:client-individual")
        assert peer.frame().body == b"one"
        peer.confirm("UNSUBSCRIBE|id:1")
        peer.confirm("SEND|destination:./1||three")
    with Raw(server.stomp) as peer:
        peer.send("SUBSCRIBE|id:1|destination:./1|ack:client-individual")
        assert [message.body for message in peer.frames(2)] == [b"one", b"three"], "they stay, and come to the next"


# ---------------------------------------------------------------- curbstone dump


def dump(server: ServerProcess, *args: str) -> tuple[int, bytes, str]:
    done = curbstone("dump", *args, "--server", server.url, cwd=server.data_dir.parent)
    return done.code, done.raw, done.err


def test_dump_prints_a_line_for_each_message(server: ServerProcess) -> None:
    bodies = [b"hello", b"", b"a\nb\tc\rd\\e\0f", "grüße €".encode(), b"\xff\xfe\x1b[31m", "\u2028\x85\u202e".encode()]
    with Raw(server.stomp) as peer:
        for body in bodies:
            peer.confirm("SEND|destination:/queue/p/q", body=body)
        peer.confirm("SEND|destination:/queue/p/q|x-delta-t:600000||later")
        peer.send("SUBSCRIBE|id:0|destination:/queue/p/q|ack:client-individual|x-wsize:1")
        assert peer.frame().body == b"hello"
        code, output, errors = dump(server, "p/q")
    assert (code, errors) == (0, "")
    assert output.decode().split("\n") == [
        "001\twip\thello",
        "002\trdy\t",
        r"003	rdy	a\nb\tc\rd\\e\x00f",
        "004\trdy\tgrüße €",
        r"005	rdy	\xff\xfe\x1b[31m",
        r"006	rdy	\xe2\x80\xa8\xc2\x85\xe2\x80\xae",
        "007\trdy\tlater",
        "",
    ]


def test_dump_reads_all_pages_and_handles_a_closed_pipe(server: ServerProcess) -> None:
    import subprocess

    from tests.kit.server import clean_environment

    count = 1100
    with Raw(server.stomp) as peer:
        peer.send(b"".join([encode(f"SEND|destination:a||{n}" + "x" * 200) for n in range(count)]))
        peer.confirm("SEND|destination:b||x")
        code, output, _ = dump(server, "a")
    lines = output.decode().splitlines()
    assert (code, len(lines)) == (0, count)
    assert [int(line.split("\t")[0]) for line in lines] == list(range(1, count + 1))
    assert lines[999].startswith("1000\trdy\t999x")
    command = [*COMMAND, "dump", "a", "--server", server.url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(), cwd=server.data_dir.parent
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_dump_reports_errors_in_one_line(server: ServerProcess) -> None:
    for args, code in (["nope"], 4), (["a/b/c"], 2):
        failed, output, errors = dump(server, *args)
        assert (failed, output, errors.count("\n")) == (code, b"", 1), errors
    gone: Callable[[], int] = lambda: curbstone("dump", "a", "--server", "127.0.0.1:1", cwd=server.data_dir.parent).code  # noqa: E731
    assert gone() == 3
