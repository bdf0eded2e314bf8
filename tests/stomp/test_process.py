"""What only a server as a process can show: crashes and the settings of its sockets.

Each test is named by the number its pitfall has in the project's conformance list.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.kit.server import ServerProcess
from tests.stomp.harness import SUB, send
from tests.stomp.raw import Raw

HERE = Path(__file__).resolve().parent
CONFORMANCE_LIST = {"f": 35, "c": 20, "m": 10, "s": 13, "a": 8, "t": 7, "w": 6, "curb": 20, "keuss": 20}
"""The sections of the conformance list and of the two acceptance lists, with the number of their last line."""


def test_every_line_of_the_lists_has_a_test() -> None:
    names = set()
    for file in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words = node.name.split("_")[1:]
                names.update(words)
                if words[1] == "and":  # test_curb12_and_20_…
                    names.add(words[0].rstrip("0123456789") + words[2])
    wanted = {f"{section}{n:02d}" for section, last in CONFORMANCE_LIST.items() for n in range(1, last + 1)}
    assert not sorted(wanted - names)


def test_a08_ack_lost_in_a_crash_redelivers_the_message(server: ServerProcess) -> None:
    with Raw(server.stomp) as peer:
        peer.confirm(send("1"))
        peer.confirm(send("2"))
        peer.send(SUB)
        _, second = peer.frame(), peer.frame()
        peer.confirm(f"ACK|id:{second.headers['ack']}")
        server.kill()
    server.restart()
    with Raw(server.stomp) as peer:
        peer.confirm(send("3"))
        peer.send(SUB)
        again, new = peer.frames(2)  # read back from the disk, so they may be long in coming
        assert (again.body, again.headers["redelivered"]) == (b"1", "true")
        assert new.body == b"3"


def test_t07_a_crash_during_commit_leaves_all_or_nothing(tmp_path: Path) -> None:
    rounds, sends = 6, 40
    with ServerProcess(tmp_path / "data") as server:
        for number in range(rounds):
            peer = Raw(server.stomp)
            frames = [f"BEGIN|transaction:t{number}"]
            for n in range(sends):
                frames.append(send(f"{number}", f"transaction:t{number}", queue=f"/queue/q{n % 2}"))
            peer.send(*frames, f"COMMIT|transaction:t{number}|receipt:{number}")
            confirmed = number % 2 == 0
            if confirmed:
                assert peer.frame().headers["receipt-id"] == str(number)
            server.restart()
            peer.socket.close()
            with Raw(server.stomp) as reader:
                counts = []
                for n in range(2):
                    reader.confirm(send(f"end of {number}", queue=f"/queue/q{n}"))
                    reader.send(f"SUBSCRIBE|id:{n}|destination:/queue/q{n}|ack:client|x-wsize:1000")
                    counts.append(0)
                    while (body := reader.frame().body) != b"end of %d" % number:
                        counts[-1] += body == b"%d" % number
            assert counts in ([sends // 2] * 2, [0, 0])
            assert not confirmed or counts[0]
