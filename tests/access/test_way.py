"""What logins and rights cost a message: the same program with users and without, counted in calls and instructions.

They are looked up once for a connection, a subscription and a queue's name, so a message that follows others costs what
it costs without users. The same bytes are sent to both servers. A clock would tell no difference of a hundredth; a
count does, and is the same each time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from curbstone.access import tokens
from curbstone.access.authenticator import Authenticator, OpenAuthenticator
from curbstone.access.user_authenticator import UserAuthenticator
from curbstone.gateway.app import create_app
from curbstone.gateway.server import GatewayServer
from curbstone.gateway.settings import GatewaySettings
from curbstone.stomp.limits import Limits
from curbstone.stomp.server import StompServer
from tests.access.ways import WAYS, Way
from tests.kit.engine import engine
from tests.stomp.test_way import ours

USERS = '[users.ann]\ngrants = ["send,receive,peek,manage default/*"]\n'
ROUNDS = 25
WARM = 5
"""Rounds that make queues and fill caches."""


class Work(NamedTuple):
    """What a message took, of our code on the loop's thread."""

    calls: int
    instructions: int


class Meter:
    """Counts while it is entered."""

    def __init__(self) -> None:
        self.calls = 0
        self.instructions = 0
        self._before: Any = None

    def __enter__(self) -> Meter:
        self._before = sys.gettrace()  # the tests may be measured themselves
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        if not ours(frame):
            return None
        self.calls += 1
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self._stepped

    def _stepped(self, _frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        self.instructions += event == "opcode"
        return self._stepped


@asynccontextmanager
async def serving(path: Path, *, users: bool) -> AsyncIterator[tuple[dict[str, tuple[str, int]], str]]:
    """Give the addresses of the listeners, and the token of a user: one that means nothing if there are none."""
    path.mkdir(mode=0o700)
    async with engine(path) as (broker, host):
        authenticator: Authenticator = OpenAuthenticator(broker, host)
        secret, kept = tokens.new_token("ann", host.wall_ms(), grants=None, expires_ms=0, label="")
        if users:
            file = path.with_suffix(".toml")
            file.write_text(USERS, encoding="utf-8")
            tokens.write(broker.disk, [kept])
            logins = UserAuthenticator(broker, host, file, path, broker.disk)
            logins.open()
            authenticator = logins
        stomp = StompServer(authenticator, host, limits=Limits())
        http = GatewayServer(create_app(authenticator, host, GatewaySettings()))
        addresses = {"stomp": await stomp.start(("127.0.0.1", 0)), "http": await http.start(("127.0.0.1", 0))}
        try:
            yield addresses, str(secret)
        finally:
            await stomp.stop()
            await http.stop()


async def work_of(path: Path, way: Way, *, users: bool) -> Work:
    """Return what a message took: of many the one in the middle, for what is late in one round falls into the next."""
    async with serving(path, users=users) as (addresses, token), asyncio.timeout(120):
        talk = await way(addresses, token)
        found = []
        for _ in range(ROUNDS):
            with Meter() as meter:
                await talk.once()
                await asyncio.sleep(0.02)  # what follows the last answer belongs to it
            found.append(Work(meter.calls, meter.instructions))
        await talk.close()
    return sorted(found[WARM:])[(ROUNDS - WARM) // 2]


@pytest.mark.source
@pytest.mark.parametrize(("name", "percent"), [("stomp", 1), ("websocket", 1), ("http", 3)])
def test_users_do_not_increase_the_cost_of_a_message(tmp_path: Path, name: str, percent: int) -> None:
    without = asyncio.run(work_of(tmp_path / "without", WAYS[name], users=False))
    with_users = asyncio.run(work_of(tmp_path / "with", WAYS[name], users=True))
    print(name, "without users", without, "with users", with_users)
    assert without.calls > 50 and without.instructions > 1000, "nothing was counted"
    assert with_users.instructions <= without.instructions * (1 + percent / 100)
    assert with_users.calls <= without.calls * (1 + percent / 100)
