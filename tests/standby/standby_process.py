"""`curbstone standby` as a process, which may become a server."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.kit.commands import Done, curbstone
from tests.kit.processes import COMMAND, Process
from tests.kit.server import ServerProcess, call
from tests.kit.waiting import wait_until


class StandbyProcess(ServerProcess):
    """It keeps a copy of the server at `of` in `data_dir`. Its addresses are there when it was promoted."""

    def __init__(self, data_dir: Path, of: str, *args: str, **more: Any) -> None:
        self.of = of
        super().__init__(data_dir, *args, **more)

    def command(self) -> list[str]:
        return [*COMMAND, "standby", "--of", self.of, "--data", str(self.data_dir)]

    def read_addresses(self, process: Process) -> None:
        """It has none before it is promoted."""

    @property
    def status_url(self) -> str:
        """Where it serves its status since its last start."""
        at = re.compile(r"the standby's status is at (\S+)")
        wait_until(lambda: at.search(self.log, self._logged))
        return f"http://{at.findall(self.log, self._logged)[-1]}"

    def _start(self, again: Sequence[str]) -> Process:
        self._logged = len(self.log) if self.log_file.exists() else 0
        return super()._start(again)

    def state(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.data_dir / "standby" / "state").read_bytes())
        except FileNotFoundError:
            return {"is_complete": False}
        return found

    def has_everything(self, server: ServerProcess) -> None:
        """Wait until it has what the server has done up to now, on its disk."""
        position = call(server, "GET", "/v2/standby")["position"]
        wait_until(lambda: any(each["usable"] and each["acknowledged"] >= position
                          for each in call(server, "GET", "/v2/standby")["followers"]))  # fmt: skip

    def status(self, path: str) -> Any:
        """Return what it answers with 200 before it is promoted."""
        with urlopen(self.status_url + path) as reply:
            return json.load(reply)

    def is_promotable(self) -> None:
        """Wait until it is connected, and can be promoted with certainty that nothing is missing."""

        def is_so() -> bool:
            now = self.status("/v2/standby")
            return bool(now["connected"] and now["promotable"])

        wait_until(is_so)

    def has_been_current(self) -> None:
        """Wait until it had everything that the server had, as it reports itself."""
        wait_until(lambda: self.status("/v2/standby")["lag_seconds"] is not None)

    def promote(self, *args: str) -> Done:
        """Promote it; if that succeeds it serves when this returns."""
        done = curbstone("promote", str(self.data_dir), *args, cwd=self.data_dir.parent)
        if done.code == 0 and self.process.poll() is None:
            super().read_addresses(self.process)
        return done
