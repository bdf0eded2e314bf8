"""A client that follows the document of MQKS, through a rebind, a kill -9 and a restart of the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.kit.engine import WAIT_S, wait_until
from tests.kit.server import ServerProcess
from tests.mqks.reference_client import ReferenceClient
from tests.mqks.world import Peer


def test_reference_client_pings_reconnects_and_resumes_consuming(tmp_path: Path) -> None:
    async def main(server: ServerProcess) -> None:
        got: list[tuple[str, int, str]] = []

        async def on_message(msg_id: str, event: str, retry: int, data: str) -> None:
            got.append((event, retry, data))
            if data != "leave unsettled":
                (consumer_id,) = client.consumers
                client.ack(consumer_id, msg_id)

        client = ReferenceClient(lambda: server.mqks, ping_s=0.05, reconnect_s=0.05)
        await asyncio.wait_for(client.consume("q e1 --manual-ack", on_message), WAIT_S)
        await asyncio.wait_for(client.publish("e1", "before"), WAIT_S)
        await asyncio.wait_for(client.publish("e1", "leave unsettled"), WAIT_S)
        await wait_until(lambda: len(got) == 2 and client.pongs > 0 and not client._unconfirmed)

        other = await Peer.open(server.mqks)
        await other.confirm("r rebind --confirm q e2 e3")
        await other.close()
        await wait_until(lambda: [c.words for c in client.consumers.values()] == ["q e2 e3 --manual-ack"])

        await asyncio.to_thread(server.kill)
        sent_meanwhile = client.publish("e2", "meanwhile")
        lost = client.publish("e1", "to an event of old")
        await asyncio.to_thread(server.restart)
        await asyncio.wait_for(asyncio.gather(sent_meanwhile, lost), WAIT_S)
        await wait_until(lambda: len(got) == 4)
        assert got[:2] == [("e1", 0, "before"), ("e1", 0, "leave unsettled")]
        assert got[2][0::2] == ("e1", "leave unsettled")
        assert got[3] == ("e2", 0, "meanwhile")
        assert client.errors == []
        assert client.connections >= 2
        await client.close()

    with ServerProcess(tmp_path / "data") as server:
        asyncio.run(main(server))
