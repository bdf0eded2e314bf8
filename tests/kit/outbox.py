"""The programs of examples/outbox, as tests run them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.kit.postgres import Postgres
from tests.kit.server import ServerProcess, clean_environment

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "outbox"
WAIT_S_MAX = 120
LOOK_S = 0.02


class Relay:
    """A relay that is started again as often as it ends. A context manager that kills it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.process = outbox.relay()
        self.ends = 0
        """How often it ended by itself, or by `kill`."""

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait, and look after the relay meanwhile."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not happened():
            assert time.monotonic() < deadline_s, "it did not happen"
            if self.process.poll() is not None:
                self.ends += 1
                self.process = self._outbox.relay()
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()


class Outbox:
    """Shop and relay on a database of their own and a server that may be restarted on its ports."""

    def __init__(self, postgres: Postgres, server: ServerProcess) -> None:
        self.postgres = postgres
        self._env = clean_environment(
            PYTHONDONTWRITEBYTECODE="1", CURBSTONE_URL=server.url, **postgres.environment
        )  # fmt: skip
        with postgres.connect() as database:
            database.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            database.execute((FOLDER / "schema.sql").read_bytes())

    def shop(self, totals: range) -> subprocess.Popen[bytes]:
        """Start a shop that takes these orders, one after the other, and ends."""
        shop = self._start("shop.py", stdin=subprocess.PIPE)
        assert shop.stdin is not None
        with shop.stdin as file:  # they fit into the pipe
            file.write("".join([f"{total}\n" for total in totals]).encode())
        return shop

    def relay(self) -> subprocess.Popen[bytes]:
        """Start a relay."""
        return self._start("relay.py", stdin=subprocess.DEVNULL)

    def is_empty(self) -> bool:
        """Say whether all there is has been published."""
        with self.postgres.connect() as database:
            return database.execute("SELECT FROM outbox LIMIT 1").fetchone() is None

    def orders(self) -> list[dict[str, int]]:
        """Return what the database has, as messages tell it."""
        with self.postgres.connect() as database:
            rows = database.execute("SELECT id, total FROM orders ORDER BY id").fetchall()
        return [{"order": order, "total": total} for order, total in rows]

    def _start(self, program: str, stdin: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, program], cwd=FOLDER, env=self._env, stdin=stdin, stdout=subprocess.DEVNULL
        )
