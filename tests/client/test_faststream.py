"""FastStream on Curbstone, by its own broker for STOMP: the program of the guide, and one whose handler fails."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from curbstone_client.sync import Client
from tests.kit.server import ServerProcess, clean_environment

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
WAIT_S_MAX = 60
RUN = "\nimport asyncio\nasyncio.run(app.run())\n"

FAILS_FIRST = """
tried = set()

@broker.subscriber("/queue/shop/flaky")
@broker.publisher("/queue/shop/done")
async def flaky(order: dict) -> dict:
    if order["id"] not in tried:
        tried.add(order["id"])
        raise ValueError("not yet")
    return order
"""


def test_guide_program_runs_and_failed_messages_are_redelivered(tmp_path: Path, server: ServerProcess) -> None:
    found = re.search(r"## FastStream\n.*?```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    host, port = server.stomp
    code = found[1].replace('"localhost", 61613', f'"{host}", {port}') + FAILS_FIRST + RUN
    with Client(server.url, project="shop") as client:
        for number in range(20):
            client.queue("orders").send({"id": number, "total": 100})
            client.queue("flaky").send({"id": number})
        client.flush(WAIT_S_MAX)
        with (tmp_path / "app.log").open("w") as log:
            program = subprocess.Popen(
                [sys.executable, "-c", code], cwd=tmp_path, env=clean_environment(), stdout=log, stderr=log
            )
        try:
            for queue, member in (("invoices", "order"), ("done", "id")):
                numbers: set[int] = set()
                messages = client.queue(queue).consume()
                while len(numbers) < 20:
                    message = messages.get(WAIT_S_MAX)
                    assert message is not None, (tmp_path / "app.log").read_text()
                    numbers.add(message.json()[member])
                    message.ack()
            client.settled("flaky")
            program.send_signal(signal.SIGTERM)
            assert program.wait(WAIT_S_MAX) == 0
        finally:
            program.kill()
            program.wait()
