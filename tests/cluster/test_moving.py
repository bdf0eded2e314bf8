"""Queues that move from a local server to a cluster and back, with their messages."""

from __future__ import annotations

import secrets
from pathlib import Path

import httpx

from tests.cluster.gateway import GatewayProcess
from tests.kit.commands import curbstone
from tests.kit.server import ServerProcess

BODIES = ["plain", "grün", "last"]


def publish(server: ServerProcess, queue: str) -> None:
    path = f"{server.url}/v2/default/queues/{queue}"
    assert httpx.put(path, json={"max_tries": 7}, trust_env=False).status_code == 201
    for body in BODIES:
        headers = {"content-type": "text/plain", "x-msg-x-n": body[:1]}
        reply = httpx.post(f"{path}/messages", content=body.encode(), headers=headers, trust_env=False)
        assert reply.status_code == 201


def taken(server: ServerProcess, queue: str) -> list[tuple[str, str]]:
    path = f"{server.url}/v2/default/queues/{queue}/messages/lease"
    messages: list[dict[str, str]] = []
    while len(messages) < len(BODIES):  # of a cluster they may not come all at once
        reply = httpx.post(path, json={"count": 100, "wait": 30}, timeout=60, trust_env=False)
        assert reply.json()["messages"], messages
        messages += reply.json()["messages"]
    return [(message["message"], message["x-msg-x-n"]) for message in messages]


def test_export_and_move_keep_all_messages(gateway: GatewayProcess, server: ServerProcess, tmp_path: Path) -> None:
    queue = f"moves-{secrets.token_hex(3)}"
    publish(server, queue)
    exported = curbstone("export", queue, "--server", server.url, cwd=tmp_path)
    assert exported.code == 0, exported.err
    imported = curbstone("import", "--server", gateway.url, cwd=tmp_path, stdin=exported.raw)
    said = "3 messages imported; a repeated import would publish them again\n"
    assert (imported.code, imported.out) == (0, said), imported.err
    info = httpx.get(f"{gateway.url}/v2/default/queues/{queue}", trust_env=False).json()
    assert (info["rdy"], info["options"]["max_tries"]) == (3, 7)
    back = curbstone(
        *("move", "--from", queue, "--to", f"{queue}-back", "--to-server", server.url, "--create"),
        *("--server", gateway.url),
        cwd=tmp_path,
    )
    assert (back.code, back.out) == (0, "3 messages moved\n"), back.err
    there = curbstone("move", "--from", f"{queue}-back", "--to", queue, "--to-server", gateway.url, cwd=tmp_path,
                      CURBSTONE_SERVER=server.url)  # fmt: skip
    assert there.code == 0, there.err
    assert taken(gateway, queue) == [(body, body[:1]) for body in BODIES]


def test_cluster_export_is_refused_with_a_reason(gateway: GatewayProcess, tmp_path: Path) -> None:
    queue = f"stays-{secrets.token_hex(3)}"
    publish(gateway, queue)
    refused = curbstone("export", queue, "--server", gateway.url, cwd=tmp_path)
    assert refused.code != 0 and "Peeking into a queue needs the local engine" in refused.err
