"""@stomp/stompjs over WebSocket, in Node.js and on a page in headless Chromium (see scenario.mjs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.interop.control import Control, chromium, node
from tests.kit.server import ServerProcess


def socket_url(server: ServerProcess) -> str:
    return server.url.replace("http", "ws", 1) + "/stomp"


def judge(facts: dict[str, Any]) -> None:
    assert facts["connects"] == 2, "once, and once after the crash"
    assert facts["confirmedBefore"] >= 20
    assert "destination" in facts["error"]


class Restarts:
    """A server that is killed on demand; made before the server, for whose options its page's origin is needed."""

    server: ServerProcess

    def __call__(self) -> None:
        self.server.restart(same_ports=True)


@pytest.mark.parametrize(
    ("versions", "kind"), [("1.2,1.1,1.0", "text"), ("1.2", "binary"), ("1.1", "text"), ("1.0", "text")]
)
def test_stompjs_in_node(tmp_path: Path, versions: str, kind: str) -> None:
    with ServerProcess(tmp_path / "data") as server, Control(lambda: server.restart(same_ports=True)) as control:
        facts = control.result(node("stompjs_node.mjs", socket_url(server), control.origin, versions, kind))
    judge(facts)
    assert facts["version"] == versions.split(",")[0]


@pytest.mark.parametrize("kind", ["text", "binary"])
def test_stompjs_on_a_page_in_chromium(tmp_path: Path, kind: str) -> None:
    restarts = Restarts()
    with Control(restarts) as control, ServerProcess(tmp_path / "data", f"--cors-origin={control.origin}") as server:
        restarts.server = server
        page = f"{control.origin}/page.html?kind={kind}&url={quote(socket_url(server), safe='')}"
        facts = control.result(chromium(page, tmp_path / "profile"))
    judge(facts)
    assert "Chrome" in facts["agent"]
