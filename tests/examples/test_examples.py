"""The examples run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from curbstone_client.sync import Client
from tests.interop import control
from tests.interop.control import Control
from tests.kit.browser import open_page
from tests.kit.server import ServerProcess, clean_environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BIN = Path(sys.executable).parent
WAIT_S_MAX = 180


@contextmanager
def running(folder: str, *command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of an example; at the end it is asked to stop, and must."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=EXAMPLES / folder,
        env=clean_environment(PYTHONDONTWRITEBYTECODE="1", **environment),
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S_MAX)
        finally:
            process.kill()


def test_jobs(server: ServerProcess) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        listener.set_inheritable(True)
        web = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", f"--fd={listener.fileno()}"],
            cwd=EXAMPLES / "jobs",
            env=clean_environment(PYTHONDONTWRITEBYTECODE="1", CURBSTONE_URL=server.url),
            pass_fds=[listener.fileno()],
        )
    try:
        with running("jobs", "worker.py", CURBSTONE_URL=server.url), Client(server.url, project="shop") as client:
            placed = [
                httpx.post(
                    f"http://127.0.0.1:{port}/orders", json={"total": total}, timeout=WAIT_S_MAX, trust_env=False
                )
                for total in (12, 30, -1)
            ]
            assert [reply.status_code for reply in placed] == [202] * 3
            invoices = client.queue("invoices").consume()
            made = {message.json()["order"]: message.json()["amount"] for message in (next(invoices), next(invoices))}
            assert made == {placed[0].json()["id"]: 12, placed[1].json()["id"]: 30}
            dead = next(client.queue("orders.dead").consume())
            assert dead.headers["x-dead-error"] == "an order has no negative total"
    finally:
        web.send_signal(signal.SIGTERM)
        web.wait(WAIT_S_MAX)


def test_embedded(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.set_inheritable(True)
        shop = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", f"--fd={listener.fileno()}"],
            cwd=EXAMPLES / "embedded",
            env=clean_environment(PYTHONDONTWRITEBYTECODE="1", SHOP_DATA=str(tmp_path)),
            pass_fds=[listener.fileno()],
        )
    try:
        with httpx.Client(base_url=url, timeout=WAIT_S_MAX, trust_env=False) as client:
            for _ in range(2):  # as a browser sends it again
                assert client.post("/orders", json={"id": 7, "total": 12}).status_code == 202
            taken = [client.delete("/messaging/v2/shop/queues/orders/messages") for _ in range(2)]
            assert taken[0].json() == {"id": 7, "total": 12}
            assert taken[1].status_code == 204
    finally:
        shop.send_signal(signal.SIGTERM)
        shop.wait(WAIT_S_MAX)


def test_pipeline(server: ServerProcess) -> None:
    with Client(server.url, project="shop") as client:
        for line in ("ERROR disk", "INFO fine", "ERROR fan"):
            client.queue("logs").publish(line)
        environment = clean_environment(CURBSTONE_SERVER=server.url, PATH=f"{BIN}:{os.environ['PATH']}")
        subprocess.run([EXAMPLES / "pipeline" / "errors.sh"], env=environment, check=True, timeout=WAIT_S_MAX)
        errors = client.queue("errors").consume()
        assert [next(errors).text, next(errors).text] == ["ERROR disk", "ERROR fan"]
        assert client.queue("logs").info()["rdy"] == 0


def test_celery(server: ServerProcess) -> None:
    worker = ["-m", "celery", "-A", "tasks", "worker", "--pool=solo", "--without-mingle", "--without-gossip"]
    with running("celery", *worker, CURBSTONE_URL=server.url):
        program = "import tasks; print(tasks.remind.delay('Ada').get(timeout=150))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=EXAMPLES / "celery",
            env=clean_environment(PYTHONDONTWRITEBYTECODE="1", CURBSTONE_URL=server.url),
            capture_output=True, text=True, timeout=WAIT_S_MAX,
        )  # fmt: skip
        assert done.stdout == "Dear Ada, your order waits.\n", done.stderr


def test_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("index.js", "publishing.js", "frames.js", "errors.js"):
        file = EXAMPLES.parent / "client" / "js" / name
        monkeypatch.setitem(control.FILES, f"/client/js/{name}", (file, "text/javascript"))
    monkeypatch.setitem(control.FILES, "/live.html", (EXAMPLES / "live" / "page.html", "text/html; charset=utf-8"))
    with (
        Control(lambda: None) as pages,
        ServerProcess(tmp_path / "data", f"--cors-origin={pages.origin}") as server,
        open_page(f"{pages.origin}/live.html?url={quote(server.url, safe='')}") as page,
    ):
        # Until the subscription is there nothing comes, so the button is pressed until something does.
        press = "document.querySelector('button').click() ?? document.querySelector('li')?.textContent"
        assert re.search(r": 12$", page.wait_for(press))
        assert not page.problems
