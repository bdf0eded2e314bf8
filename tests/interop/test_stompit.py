"""stompit, a STOMP client for Node.js, over TCP (see stompit_tcp.cjs)."""

from __future__ import annotations

from pathlib import Path

from tests.interop.control import Control, node
from tests.kit.server import ServerProcess


def test_stompit_in_node(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Control(lambda: server.restart(same_ports=True)) as control:
        host, port = server.stomp
        facts = control.result(node("stompit_tcp.cjs", host, str(port), control.origin))
    assert facts["version"] == "1.2"
    assert facts["heartBeat"] == "200,200"
    assert facts["connects"] == 2
    assert facts["confirmedBefore"] >= 20
    assert "destination" in facts["error"]
    assert "/nowhere" in facts["longError"]
