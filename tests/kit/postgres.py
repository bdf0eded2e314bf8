"""A real PostgreSQL for tests: in a directory of its own, on a Unix socket alone, as a user who is not root.

Nothing of a PostgreSQL that the system runs is touched. It is ended by its process.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

START_S_MAX = 120
STOP_S_MAX = 60


def _folder() -> Path | None:
    """Return where its programs are: on the PATH, or, newest first, where Debian has them."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(folders, key=lambda path: int(path.parts[4]), default=None)
    return newest.parent if newest else None


def missing() -> str:
    """Return why none can be started here, or an empty text."""
    return "" if _folder() else "there is no PostgreSQL; `make test` brings it by apt-get where it runs as root"


needs_postgres = pytest.mark.skipif(
    bool(missing()) and not os.environ.get("CURBSTONE_REQUIRE_POSTGRES"), reason=missing()
)
"""For tests that need one: left out with the reason, unless CI demands them."""


class Postgres:
    """One server with an empty database, running when the constructor returns; a context manager that ends it."""

    def __init__(self) -> None:
        folder = _folder()
        assert folder, missing()
        # PostgreSQL refuses to run as root, no other user may enter tmp_path, and a socket's path is short.
        self._user = _unprivileged()
        self.home = Path(tempfile.mkdtemp(prefix="curbstone-postgres-"))
        if self._user:
            shutil.chown(self.home, self._user)
        # -F: no syncs, for its process may end here, but not the machine.
        self._server = [str(folder / "postgres"), "-F", "-D", str(self.home / "data"), "-k", str(self.home), "-h", ""]
        command = [folder / "initdb", "-D", self.home / "data", "-U", "shop", "--auth=trust", "--no-sync", "-E", "UTF8"]
        try:
            made = self._popen([*map(str, command)])
            assert made.wait(START_S_MAX) == 0, self.log
            self.process = self._popen(self._server)
            self._wait()
        except BaseException:
            self.end()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """What every client of PostgreSQL understands."""
        return {"PGHOST": str(self.home), "PGPORT": "5432", "PGUSER": "shop", "PGDATABASE": "postgres"}

    @property
    def log(self) -> str:
        """What it has written."""
        return (self.home / "log").read_text(encoding="utf-8", errors="replace")

    def connect(self) -> psycopg.Connection:
        """Return a connection; each statement is a transaction, unless one is begun."""
        return psycopg.connect(host=str(self.home), port=5432, user="shop", dbname="postgres", autocommit=True)

    def crash(self) -> None:
        """End it and its sessions at once, without a checkpoint, and start it again on what is on disk."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(STOP_S_MAX)
        self.process = self._popen(self._server)
        self._wait()

    def end(self) -> None:
        """End it, and remove all it left."""
        if hasattr(self, "process") and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(STOP_S_MAX)
        shutil.rmtree(self.home)

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *_error: object) -> None:
        print(f"--- log of PostgreSQL\n{self.log}")  # pytest shows it when the test failed
        self.end()

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=environment | {"LC_ALL": "C.UTF-8"},
                user=self._user,
                group=pwd.getpwnam(self._user).pw_gid if self._user else None,
                extra_groups=[] if self._user else None,
            )

    def _wait(self) -> None:
        deadline_s = time.monotonic() + START_S_MAX
        while True:
            assert self.process.poll() is None, f"PostgreSQL ended while it started:\n{self.log}"
            assert time.monotonic() < deadline_s, f"PostgreSQL did not start in {START_S_MAX} s:\n{self.log}"
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)


def _unprivileged() -> str | None:
    """Return whom root starts it as."""
    if os.geteuid():
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
