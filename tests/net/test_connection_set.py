"""How a server takes leave of those who are connected."""

from __future__ import annotations

import asyncio

from curbstone.net.connection_set import ConnectionSet


class Client:
    """Goes when it is asked to, or only when it is cut off."""

    def __init__(self, crowd: ConnectionSet[Client], goes: bool) -> None:
        self._crowd = crowd
        self._goes = goes
        self.is_cut = False
        crowd.add(self)

    def shutdown(self) -> None:
        if self._goes:
            asyncio.get_running_loop().call_soon(self._crowd.discard, self)

    def abort(self) -> None:
        self.is_cut = True
        self._crowd.discard(self)


def test_stop_waits_for_closing_connections_and_aborts_others() -> None:
    async def main() -> None:
        crowd: ConnectionSet[Client] = ConnectionSet()
        await crowd.shut_down(60)
        clients = [Client(crowd, True) for _ in range(3)]
        await crowd.shut_down(60)
        assert not crowd
        assert not any(client.is_cut for client in clients)
        clients = [Client(crowd, goes) for goes in (True, False)]
        await crowd.shut_down(0.01)
        assert [client.is_cut for client in clients] == [False, True]

    asyncio.run(asyncio.wait_for(main(), 60))
