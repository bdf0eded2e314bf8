"""A gateway process: `curbstone serve --engine`, which needs no data directory."""

from __future__ import annotations

from pathlib import Path

from tests.kit.processes import COMMAND
from tests.kit.server import ServerProcess, clean_environment


class GatewayProcess(ServerProcess):
    """Like ServerProcess; `home` is only where its log goes."""

    def __init__(self, home: Path, url: str, *args: str) -> None:
        super().__init__(home, *args, env=clean_environment(CURBSTONE_ENGINE=url))

    def command(self) -> list[str]:
        """The command line; the URL with its password is in the environment."""
        return [*COMMAND, "serve"]
