"""The examples of the client's README: the first and the last run as they are printed, between them a worker."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from curbstone_client.sync import Client
from tests.kit.server import ServerProcess, clean_environment

README = Path(__file__).resolve().parents[2] / "client" / "README.md"


def test_readme_examples_run(tmp_path: Path, server: ServerProcess) -> None:
    found = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    publish, work, loops, threads, events = (code.replace("http://localhost:8080", server.url) for code in found)

    def start(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-c", code]
        return subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, text=True)

    with start(publish) as publisher:
        assert publisher.communicate(timeout=60)[0].startswith("stored as ")
    with start(f"import asyncio\nfrom curbstone_client import Client, Reject, Retry\n{work}") as worker:
        with Client(server.url, project="shop") as client:
            while client.queue("orders").info()["rdy"]:
                pass
            assert client.queue("orders").info()["delayed"] == 1  # the one that is to come in an hour
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    for code in (loops, events):
        lines = "".join([f"    {line}\n" for line in code.splitlines()])
        compile(f"async def loops():\n{lines}", "README", "exec")
    with start(threads) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "b'hello'\n"
        consumer.kill()
