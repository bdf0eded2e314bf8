"""Ordering keys, given by each protocol: what has the same key waits for the one before, whoever sent it."""

from __future__ import annotations

import asyncio
import json

import httpx
import stomp
from typer.testing import CliRunner
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from curbstone.cli.main import app
from curbstone_client.sync import Client
from tests.kit.server import ServerProcess
from tests.stomp.client import Peer

ENOUGH = 60


def send_by_stomp(server: ServerProcess) -> None:
    connection = stomp.Connection12([server.stomp])
    connection.connect(wait=True)
    for header, body in (("x-key", "stomp"), ("JMSXGroupID", "jms")):
        waiting = stomp.WaitingListener("r")
        connection.set_listener("", waiting)
        connection.send("/queue/default/q", body, headers={header: "k", "receipt": "r"})
        waiting.wait_on_receipt()
    connection.disconnect()


def test_ordering_key_is_shared_by_all_protocols(server: ServerProcess) -> None:
    url = f"{server.url}/v2/default/queues/q"
    with httpx.Client(trust_env=False, timeout=ENOUGH) as http:
        http.put(url).raise_for_status()
        http.post(f"{url}/messages", content=b"http", headers={"x-key": "k"}).raise_for_status()
        http.post(f"{url}/messages/batch", json=[{"message": "batch", "key": "k"}]).raise_for_status()
        send_by_stomp(server)
        to = f"{url.replace('http', 'ws', 1)}/messages"
        with connect(to, subprotocols=[Subprotocol("publish")], proxy=None) as websocket:
            websocket.send(json.dumps({"key": "k", "message": "websocket"}))
            websocket.recv(timeout=ENOUGH)
        with Client(server.url) as client:
            client.queue("q").publish("python", key="k")
        command = ["send", "q", "--key", "k", "cli", "--server", server.url]
        assert CliRunner().invoke(app, command).exit_code == 0
        sent = ["http", "batch", "stomp", "jms", "websocket", "python", "cli"]
        server.kill()
        server.restart(same_ports=True)
        looked = http.get(f"{url}/messages").json()["messages"]
        assert [(item["message"], item["key"]) for item in looked] == [(body, "k") for body in sent]
        for body in sent[:-1]:
            leased = http.post(f"{url}/messages/lease", json={"count": 10}).json()["messages"]
            assert [item["message"] for item in leased] == [body]
            assert http.delete(f"{url}/messages").status_code == 204
            explained = http.get(f"{url}/explain", params={"id": looked[sent.index(body) + 1]["id"]}).json()
            behind = f"waits behind message {leased[0]['id']} of the same key"
            assert behind in explained["sentences"][0]
            http.post(f"{url}/messages/ack", json={"ackIds": [leased[0]["ackId"]]}).raise_for_status()
        last = http.delete(f"{url}/messages")
        assert (last.text, last.headers["x-key"]) == ("cli", "k")


def test_invalid_ordering_key_is_refused(server: ServerProcess) -> None:
    url = f"{server.url}/v2/default/queues/q"
    with httpx.Client(trust_env=False, timeout=ENOUGH) as http:
        http.put(url).raise_for_status()
        for key in ("", "k" * 257):
            reply = http.post(f"{url}/messages", content=b"x", headers={"x-key": key})
            assert reply.status_code == 400 and "ordering key" in reply.json()["detail"]
            assert http.post(f"{url}/messages/batch", json=[{"message": "x", "key": key}]).status_code == 400

    async def over_stomp(header: bytes) -> None:
        peer = await Peer.open(server.stomp)
        await peer.connect()
        await peer.send(b"SEND\ndestination:/queue/q\n%b:\n\nx\0" % header)
        error = await peer.frame()
        assert error.command == "ERROR" and "ordering key" in error.headers["message"]
        await peer.close()

    for header in (b"x-key", b"JMSXGroupID"):
        asyncio.run(over_stomp(header))
