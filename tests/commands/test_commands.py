"""The command line against a real server: what it prints, its exit codes, and that nothing is lost by it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from curbstone.core.errors import BadRequest
from curbstone.core.names import event_name
from tests.kit.commands import Done, curbstone, running
from tests.kit.processes import COMMAND
from tests.kit.server import ServerProcess, clean_environment
from tests.kit.waiting import wait_until

Run = Callable[..., Done]


@pytest.fixture
def run(server: ServerProcess, tmp_path: Path) -> Run:
    """Run a command against the server; the queue `a` exists."""
    httpx.put(f"{server.url}/v2/default/queues/a", trust_env=False)

    def run(*args: str, stdin: bytes = b"") -> Done:
        return curbstone(*args, cwd=tmp_path, stdin=stdin, CURBSTONE_SERVER=server.url)

    return run


def counts(server: ServerProcess, queue: str = "a") -> tuple[int, int, int]:
    info = httpx.get(f"{server.url}/v2/default/queues/{queue}", trust_env=False).json()
    return info["rdy"], info["wip"], info["delayed"]


def succeed(done: Done) -> Done:
    assert done.code == 0, done.err
    assert done.err == "", "nothing but data where nobody watches"
    return done


def test_command_does_not_import_the_server() -> None:
    """It would take as long again to start."""
    servers = {"curbstone.serve", "starlette", "uvloop"}
    program = f"import sys, curbstone.cli.main; print(*sorted({servers} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"


def test_send_and_receive(run: Run, server: ServerProcess) -> None:
    assert succeed(run("send", "a", "one", "two")).out == "2 messages sent\n"
    assert succeed(run("recv", "a")).out == "one\n"
    assert counts(server) == (2, 0, 0), "without --ack it went back"
    assert succeed(run("recv", "a", "--ack", "--count=0")).out == "one\ntwo\n"
    assert counts(server) == (0, 0, 0)
    assert run("recv", "a").code == 5
    said = "1 message sent; 1 left out, because others with their unique names are not settled\n"
    assert succeed(run("send", "a", "one", "two", "--unique", "n")).out == said
    assert [each.get("duplicate") for each in succeed(run("send", "a", "x", "--unique", "n", "--json")).json] == [True]


def test_lines_of_stdin_are_messages(run: Run) -> None:
    lines = b"".join([b"line %d\n" % n for n in range(1200)]) + b"\xff no text\r\nlast, without its line feed"
    assert succeed(run("send", "a", stdin=lines)).out == "1202 messages sent\n"
    received = succeed(run("recv", "a", "--ack", "--count=0")).raw
    assert received == lines.replace(b"\r\n", b"\n") + b"\n"


def test_a_whole_file_is_one_message(run: Run) -> None:
    body = bytes(range(256)) * 100
    succeed(run("send", "a", "--whole", "--content-type", "image/x", stdin=body))
    assert succeed(run("recv", "a", "--ack")).raw == body + b"\n"


def test_jsonl_round_trips(run: Run) -> None:
    sent = [
        {"message": "text\n", "Content-Type": "text/plain", "x-msg-x-k": "v"},
        {"message": "/w==", "encoding": "base64"},
    ]
    ids = succeed(run("send", "a", "--jsonl", "--json", stdin="\n".join(map(json.dumps, sent)).encode())).json
    received = succeed(run("recv", "a", "--json", "--count=0", "--ack"))
    assert [item["id"] for item in received.json] == [item["id"] for item in ids]
    succeed(run("send", "a", "--jsonl", stdin=received.raw))
    again = succeed(run("recv", "a", "--json", "--count=0")).json
    for item, first in zip(again, sent, strict=True):
        assert {name: item[name] for name in first} == first
        assert item["tries"] == 0


def test_metadata_and_times_can_be_given(run: Run, server: ServerProcess) -> None:
    succeed(run("send", "a", "x", "-H", "Kind=k:1", "--delay", "60", "--ttl", "600"))
    assert counts(server) == (0, 0, 1)
    (found,) = succeed(run("peek", "a", "--json")).json
    assert (found["x-msg-x-kind"], found["state"]) == ("k:1", "delayed")


def test_invalid_line_reports_progress(run: Run, server: ServerProcess) -> None:
    done = run("send", "a", "--jsonl", stdin=b'{"message":"x"}\nno json\n')
    assert done.code == 1
    assert "line 2 is not JSON" in done.err
    done = run("send", "a", "--jsonl", stdin=b'{"message":1}\n')
    assert done.code == 1
    assert "it must be a string" in done.err
    assert counts(server) == (0, 0, 0)


def test_batch_that_does_not_fit_is_split(run: Run, server: ServerProcess) -> None:
    """A queue with a small cap takes only few messages at once."""
    httpx.put(f"{server.url}/v2/default/queues/small", json={"cap": "256KiB"}, trust_env=False)
    lines = b"".join([b"%d" % (n % 10) * 1000 + b"\n" for n in range(120)])
    assert succeed(run("send", "small", stdin=lines)).out == "120 messages sent\n"
    assert succeed(run("recv", "small", "--count=0", "--ack")).raw == lines


def test_exit_codes(run: Run, tmp_path: Path) -> None:
    assert run("recv", "missing").code == 4
    assert run("recv", "missing", "--follow").code == 4
    assert run("send", "missing", "x").code == 4
    assert succeed(run("send", "missing", "--create", "x")).code == 0
    assert run("peek", "bad name").code == 2
    assert run("peek").code == 2
    assert run("send", "a", "x", "-H", "no-value").code == 2
    assert run("queues", "--server", "http://127.0.0.1:9").code == 3
    assert run("recv", "a", "--follow", "--server", "http://127.0.0.1:9").code == 3
    assert run("bench", "--server", "127.0.0.1:9").code == 3
    assert run("move", "--from=a", "--to=a").code == 2
    assert run("move", "--from=a", "--to=nowhere").code == 4
    assert run("check", str(tmp_path / "nothing")).code == 2
    for done in (run("recv", "never-made"), run("queues", "--server", "http://127.0.0.1:9")):
        assert done.err.count("\n") == 1


def test_tables(run: Run, server: ServerProcess) -> None:
    succeed(run("send", "a", "\x1b[2J escape", "x" * 100))
    named = f"{server.url}/v2/default/queues/a/messages?groups=zz"
    assert httpx.post(named, content=b"named", trust_env=False).status_code == 201
    table = succeed(run("queues")).out
    assert table.split()[:4] == ["QUEUE", "RDY", "WIP", "DELAYED"]
    assert table.splitlines()[1].split()[:4] == ["a", "2", "0", "0"]
    assert table.splitlines()[2].split()[:4] == ["zz", "1", "0", "0"] and "group not declared" in table
    assert succeed(run("queues", "--json")).json[0][0]["rdy"] == 2
    assert succeed(run("queues", "other", "--json")).json == [[]]
    assert succeed(run("queues", "other")).out == "Project other has no queues; there are some in default (1).\n"
    shown = succeed(run("peek", "a")).out
    assert "\x1b" not in shown
    assert "\\x1b[2J escape" in shown
    assert run("peek", "missing-queue").code == 4


def test_purge_and_redrive(run: Run, server: ServerProcess) -> None:
    http = httpx.Client(base_url=f"{server.url}/v2/default/queues", trust_env=False)
    http.put("/dead")
    http.put("/a", json={"dead_letter": "dead"})
    succeed(run("send", "a", "x", "y"))
    leased = http.post("/a/messages/lease", json={"count": 2}).json()["messages"]
    http.post("/a/messages/nack", json={"ackIds": [m["ackId"] for m in leased], "reject": True})
    assert succeed(run("redrive", "dead", "--json")).json == [{"moved": 2, "stayed": {}, "more": False}]
    assert counts(server) == (2, 0, 0)
    leased = http.post("/a/messages/lease", json={"count": 2}).json()["messages"]
    http.post("/a/messages/nack", json={"ackIds": [m["ackId"] for m in leased], "reject": True})
    second = http.get("/dead/messages").json()["messages"][1]["id"]
    assert succeed(run("redrive", "dead", "--id", second)).out == "1 message moved\n"
    assert http.get("/a/messages").json()["messages"][0]["message"] == "y"
    assert succeed(run("purge", "a", "--keep")).out == "1 message removed\n"
    assert succeed(run("undo", "a", "--within", "3600", "--json")).json[0]["restored"] == 1
    assert succeed(run("undo", "a")).out == "0 messages restored\n"
    assert succeed(run("purge", "a")).out == "1 message removed\n"
    assert succeed(run("undo", "a")).out == "0 messages restored\n"
    http.close()


def test_pause_and_resume(run: Run, server: ServerProcess) -> None:
    succeed(run("send", "a", "1"))
    succeed(run("pause", "a", "--publish"))
    assert run("send", "a", "2").code == 1
    succeed(run("pause", "a"))
    assert run("recv", "a").code == 5
    assert "publish_paused" in succeed(run("explain", "a")).out
    succeed(run("resume", "a"))
    succeed(run("send", "a", "2"))
    assert succeed(run("recv", "a", "--count=0", "--ack")).out == "1\n2\n"
    assert run("pause", "missing").code == 4


def test_the_history_of_a_message(run: Run, server: ServerProcess) -> None:
    succeed(run("send", "a", "hello"))
    (received,) = succeed(run("recv", "a", "--json")).json
    lines = succeed(run("history", "a", received["id"])).out.splitlines()
    assert [line[25:] for line in lines] == ["published, 5 bytes", "requeued, number of deliveries: 1", "it is ready"]
    assert [event["event"] for event in succeed(run("history", "a", received["id"], "--json")).json[0]["events"]] == [
        "published",
        "released",
    ]
    succeed(run("recv", "a", "--ack"))
    succeed(run("undo", "a"))
    lines = succeed(run("history", "a", received["id"])).out.splitlines()
    assert [line[25:] for line in lines][-3:] == ["settled", "restored by an undo", "it is ready"]
    assert run("history", "a", "made-up").code == 4


def test_history_of_a_redriven_dead_letter(run: Run, server: ServerProcess) -> None:
    queues = f"{server.url}/v2/default/queues"
    httpx.put(f"{queues}/a", json={"max_tries": 1, "dead_letter": "dead"}).raise_for_status()
    succeed(run("send", "a", "hello"))
    (received,) = succeed(run("recv", "a", "--json")).json
    # The message moves after it was given back, in a transaction of its own.
    (letter,) = next(filter(None, (run("peek", "dead", "--json").json for _ in range(100))))

    def history(queue: str, message_id: str) -> list[str]:
        return [line[25:] for line in succeed(run("history", queue, message_id)).out.splitlines()]

    assert history("a", received["id"])[-2:] == [
        f"dead-lettered to default/dead as {letter['id']}: max_tries reached",
        "it is gone",
    ]
    died = f"died in default/a as {received['id']} after 1 delivery: max_tries reached"
    assert history("dead", letter["id"]) == [died, "published, 5 bytes", "it is ready"]
    succeed(run("redrive", "dead"))
    (again,) = succeed(run("peek", "a", "--json")).json
    assert history("dead", letter["id"])[2:] == [f"redriven to default/a as {again['id']}", "it is gone"]
    assert history("a", again["id"])[:2] == [
        f"redriven from default/dead as {letter['id']}",
        "published, 5 bytes",
    ]


def test_move_keeps_order_and_metadata(run: Run, server: ServerProcess) -> None:
    lines = b"".join([b"%d\n" % n for n in range(250)])
    succeed(run("send", "a", "-H", "k=v", "--content-type", "text/x", stdin=lines))
    assert succeed(run("move", "--from=a", "--to=b", "--create", "--json")).json == [{"moved": 250, "maybe_twice": 0}]
    assert counts(server) == (0, 0, 0)
    received = succeed(run("recv", "b", "--json", "--count=0")).json
    assert [item["message"] for item in received] == lines.decode().split()
    assert {(item["x-msg-x-k"], item["Content-Type"]) for item in received} == {("v", "text/x")}
    assert succeed(run("move", "--from=b", "--to=c", "--create", "--limit=3", "--delay=60")).out == "3 messages moved\n"
    assert counts(server, "c") == (0, 0, 3)
    assert counts(server, "b") == (247, 0, 0)


def test_move_leaves_named_groups_their_messages_and_keeps_cloud_events(run: Run, server: ServerProcess) -> None:
    """The attributes of a CloudEvent were dropped."""
    with httpx.Client(base_url=f"{server.url}/v2/default/queues", trust_env=False) as http:
        http.put("/a", json={"groups": ["g"]})
        http.put("/b", json={"groups": ["h"]})
        event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-mine": "ü"}
        batch = [{"message": "all", "ttl": 1000, **event}, {"message": "named", "groups": ["g"]}]
        assert http.post("/a/messages/batch", json=batch).status_code == 201
        assert succeed(run("move", "--from=a", "--to=b")).out == "1 message moved\n"
        left = http.post("/a/messages/lease", json={"count": 9, "group": "g"}).json()["messages"]
        assert [message["message"] for message in left] == ["all", "named"]
        for group in ("", "h"):
            (moved,) = http.post("/b/messages/lease", json={"count": 9, "group": group}).json()["messages"]
            assert {name: value for name, value in moved.items() if name.startswith("ce-")} == event
            assert (moved["message"], moved["tries"]) == ("all", 0)


def test_move_between_two_servers(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    succeed(run("send", "a", "x"))
    with ServerProcess(tmp_path / "other") as other:
        done = succeed(run("move", "--from=a", "--to=a", "--create", "--to-server", other.url))
        assert done.out == "1 message moved\n"
        assert counts(other) == (1, 0, 0)
    assert counts(server) == (0, 0, 0)


def test_messages_that_cannot_be_moved_are_requeued(run: Run, server: ServerProcess) -> None:
    httpx.put(f"{server.url}/v2/default/queues/tiny", json={"cap": "64KiB"}, trust_env=False)
    succeed(run("send", "a", stdin=(b"x" * 1000 + b"\n") * 150))
    done = run("move", "--from=a", "--to=tiny")
    assert done.code == 1
    assert "cap" in done.err
    moved = counts(server, "tiny")[0]
    assert 0 < moved < 150
    assert counts(server) == (150 - moved, 0, 0)


def test_a_mover_that_is_killed_loses_nothing(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    succeed(run("send", "a", stdin=b"".join([b"%d\n" % n for n in range(2000)])))
    with httpx.Client(base_url=f"{server.url}/v2/default/queues", trust_env=False) as http:
        http.put("/b")
        with running("move", "--from=a", "--to=b", "--server", server.url, cwd=tmp_path) as mover:
            wait_until(lambda: http.get("/b").json()["rdy"] or mover.poll() is not None)
    arrived = {item["message"] for item in succeed(run("recv", "b", "--json", "--count=0")).json}
    rdy, wip, _ = counts(server)
    assert wip <= 100
    looked = run("peek", "a", "--json", "--count=1000")
    assert looked.code == (0 if rdy + wip else 5), looked.err  # on a busy machine the mover may be done before the kill
    left = {item["message"] for item in looked.json}
    if rdy + wip <= 1000:
        assert arrived | left == {str(n) for n in range(2000)}
    assert len(arrived) + rdy + wip >= 2000


@pytest.mark.parametrize(("ack", "number", "code"), [(True, signal.SIGINT, 130), (False, signal.SIGTERM, 143)])
def test_follow_prints_messages_as_they_arrive(
    server: ServerProcess, run: Run, tmp_path: Path, ack: bool, number: int, code: int
) -> None:
    command = ("recv", "a", "--follow", "--server", server.url)
    with running(*command, *["--ack"] * ack, cwd=tmp_path) as follower:
        assert follower.stdout
        for n in range(3):
            succeed(run("send", "a", f"m{n}"))
            assert follower.stdout.readline() == f"m{n}\n"
        follower.send_signal(number)
        assert follower.wait(60) == code
    if not ack:
        assert succeed(run("recv", "a", "--wait=30", "--count=1")).out == "m0\n"
    else:
        assert run("peek", "a").code in (0, 5)


def test_follow_ends_at_its_count(run: Run) -> None:
    succeed(run("send", "a", "1", "2", "3"))
    assert succeed(run("recv", "a", "--follow", "--count=2", "--ack", "--json")).json[1]["message"] == "2"


def test_top_shows_depths_and_rates(run: Run) -> None:
    succeed(run("send", "a", "1", "2"))
    lines = succeed(run("top")).out.splitlines()
    assert lines[0].rstrip().endswith("   1 queue")
    assert lines[1].split()[:3] == ["QUEUE", "RDY", "WIP"]
    assert lines[2].split()[:3] == ["default/a", "2", "0"]
    looks = succeed(run("top", "--json", "--count=2", "--interval=0.1")).json
    assert len(looks) == 2
    assert looks[1]["queues"][0]["messages_ready"] == 2
    assert set(looks[1]["queues"][0]["rates"]) == {"published", "delivered", "acked"}


def test_top_shows_a_queue_that_refuses_messages(run: Run) -> None:
    """A queue may do so long before its share of the cap is 100 %."""
    succeed(run("queue", "create", "small", "--cap=256KiB"))
    for _ in range(2):
        succeed(run("send", "small", "x" * 60_000))
    assert run("send", "small", "x" * 60_000).code == 1
    (line,) = [line for line in succeed(run("top")).out.splitlines() if line.startswith("default/small")]
    assert line.split()[-1] == "full" and int(line.split()[-3]) < 80, line


def test_bench_measures_and_leaves_nothing(run: Run) -> None:
    (found,) = succeed(run("bench", "--count=300", "--window=20", "--json")).json
    assert found["messages"] == 300
    assert set(found["confirm_ms"]) == set(found["travel_ms"]) == {"p50", "p90", "p99", "p99.9", "p100"}
    assert [queue["name"] for queue in succeed(run("queues", "--json")).json[0]] == ["a"]
    assert "300 messages of 64 bytes" in succeed(run("bench", "--count=300", "--size=64")).out


def test_queue_names_are_completed_by_the_shell(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    environment: dict[str, Any] = {
        "_CURBSTONE_COMPLETE": "complete_bash",
        "COMP_WORDS": "curbstone peek ",
        "COMP_CWORD": "2",
        "CURBSTONE_SERVER": server.url,
    }
    assert curbstone(cwd=tmp_path, **environment).out.split() == ["a"]
    environment["CURBSTONE_SERVER"] = "http://127.0.0.1:9"
    assert curbstone(cwd=tmp_path, **environment).out.split() == []


def test_escape_sequences_are_not_printed_to_a_terminal(run: Run, server: ServerProcess, tmp_path: Path) -> None:
    succeed(run("send", "a", "\x1b]0;title\x07 text"))
    ours, theirs = pty.openpty()
    command = [*COMMAND, "recv", "a", "--ack", "--server", server.url]
    subprocess.run(command, cwd=tmp_path, env=clean_environment(), stdout=theirs, stderr=theirs, check=True, timeout=60)
    shown = os.read(ours, 65536)
    os.close(ours)
    os.close(theirs)
    assert b"\\x1b]0;title\\x07 text" in shown


HOSTILE = "\x1b]0;a\x07 \x9b2J \u202eevil\u2066 \u0085 \U000e0041 é"


@pytest.mark.parametrize("words", [["peek", "a", "--json"], ["export", "a"], ["recv", "a", "--json"]])
def test_json_output_escapes_terminal_controls(run: Run, words: list[str]) -> None:
    """Control characters above U+007F, and those that turn the direction of text, came as they were."""
    succeed(run("send", "a", HOSTILE))
    line = succeed(run(*words)).out.splitlines()[-1]
    assert line.isprintable() and "é" in line
    assert json.loads(line)["message"] == HOSTILE


def test_event_name_has_no_control_characters() -> None:
    for char in "\x00\x1f \x7f\x80\x85\x9b\x9f\u061c\u200e\u200f\u202a\u202e\u2066\u2069":
        with pytest.raises(BadRequest, match="bad event name"):
            event_name(f"order{char}paid")
    assert event_name("commande.payée.Ω.👍") == "commande.payée.Ω.👍"


def test_binding_with_a_filter_can_be_created_shown_and_replaced(run: Run, server: ServerProcess) -> None:
    succeed(run("bind", "order.*", "a", "--filter", "region = 'eu'"))
    assert succeed(run("events")).out.split("\n")[1].split(None, 2) == ["order.*", "a", "region = 'eu'"]
    assert "order.* (region = 'eu')" in succeed(run("queue", "show", "a")).out
    bad = run("bind", "order.*", "a", "--filter", "region ~ 'eu'")
    assert bad.code != 0 and "bad filter at character 8" in bad.err
    succeed(run("bind", "order.*", "a"))
    assert "region" not in succeed(run("events")).out


def test_peek_with_a_filter_shows_matching_messages(run: Run, server: ServerProcess) -> None:
    for number in range(5):
        succeed(run("send", "a", str(number), "-H", f"n={number}"))
    shown = succeed(run("peek", "a", "--filter", "n > 1 AND n <> 3", "--json")).json
    assert [each["message"] for each in shown] == ["2", "4"]
    assert [each["message"] for each in succeed(run("peek", "a", "--filter", "n > 1", "-n", "1", "--json")).json] == [
        "2"
    ]
    assert run("peek", "a", "--filter", "n > 7").code == 5


# --- check


@pytest.fixture
def data(server: ServerProcess, run: Run) -> Path:
    """A data directory with two queues, of a server that was killed."""
    succeed(run("send", "a", stdin=b"some line\n" * 1000))
    succeed(run("send", "b", "--create", "x"))
    succeed(run("recv", "a", "--ack", "--count=10"))
    assert run("check", str(server.data_dir)).code == 1, "a server runs on it"
    server.kill()
    return server.data_dir


def everything(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def check(data: Path, tmp_path: Path) -> tuple[int, dict[str, Any]]:
    before = everything(data)
    done = curbstone("check", str(data), "--json", cwd=tmp_path)
    assert everything(data) == before, "check writes nothing"
    return done.code, done.json[0]


def test_check_of_a_sound_directory(data: Path, tmp_path: Path) -> None:
    code, found = check(data, tmp_path)
    assert (code, found["ok"]) == (0, True)
    assert {queue["queue"]: queue["messages"] for queue in found["queues"]} == {"default/a": 1000, "default/b": 1}
    assert {queue["queue"]: queue["live"] for queue in found["queues"]} == {"default/a": 990, "default/b": 1}
    assert "ok" in succeed(curbstone("check", str(data), cwd=tmp_path)).out


def test_check_locates_a_flipped_bit(data: Path, tmp_path: Path) -> None:
    segment = max(data.glob("queues/*/*.seg"), key=lambda path: path.read_bytes().count(b"some line"))
    content = bytearray(segment.read_bytes())
    content[content.index(b"some line")] ^= 1
    segment.write_bytes(content)
    code, found = check(data, tmp_path)
    assert (code, found["ok"]) == (6, False)
    (text,) = [text for queue in found["queues"] for text in queue["damage"]]
    assert segment.name in text
    assert "do not check" in text
    shown = curbstone("check", str(data), cwd=tmp_path)
    assert shown.code == 6
    assert "DAMAGE" in shown.out


def test_check_finds_a_damaged_meta_file(data: Path, tmp_path: Path) -> None:
    for path in data.glob("queues/*/meta"):
        path.write_bytes(path.read_bytes().replace(b"default", b"defauLt"))
    code, found = check(data, tmp_path)
    assert code == 6
    assert all("checksum" in queue["damage"][0] for queue in found["queues"])


def test_check_reports_remains_of_a_crash(data: Path, tmp_path: Path) -> None:
    (data / "queues" / "0123456789ab").mkdir()
    (data / "queues" / "0123456789ac.gone").mkdir()
    code, found = check(data, tmp_path)
    assert code == 0
    assert sum(len(queue["notes"]) for queue in found["queues"]) == 2


def test_check_of_another_directory(tmp_path: Path) -> None:
    done = curbstone("check", str(tmp_path), cwd=tmp_path)
    assert done.code == 2
    assert "is not a data directory" in done.err


@pytest.mark.parametrize("arguments", [["queues"], ["peek", "q"], ["top", "--count=1"]])
def test_address_with_a_password_is_refused_without_printing_it(tmp_path: Path, arguments: list[str]) -> None:
    done = curbstone(*arguments, "--server", "http://u:SECRET@127.0.0.1:1", cwd=tmp_path)
    assert done.code == 2
    reason = "it must not have a user or password; put a token into a file, see --token-file"
    assert done.err.strip() == f"curbstone: bad server address: {reason}"
