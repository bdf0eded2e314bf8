"""The examples on the pages, as a reader would run them: top to bottom, against a server of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.mqks_peer import MqksPeer
from tests.kit.server import ServerProcess, clean_environment
from tests.kit.wheel import ROOT

PATIENCE_S = 180
_FENCED = re.compile(r"^```(\w*)\n((?s:.*?))^```$|^((?:    .*\n)+)", re.M)
# curl ends with 28 where a page has it stop reading a stream after a while, and that is no mistake.
CURL = """
curl() {
    case "$*" in *--max-time*) command curl --no-progress-meter --fail-with-body --noproxy '*' "$@" || [ $? = 28 ];;
    *) command curl --no-progress-meter --fail-with-body --noproxy '*' "$@";; esac
}
"""


@pytest.fixture
def run(server: ServerProcess, tmp_path: Path) -> Iterator[Runner]:
    with_tools = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "CURBSTONE_SERVER": server.url}
    yield Runner(server, tmp_path, clean_environment(**with_tools))


class Runner:
    """Runs blocks of a page."""

    def __init__(self, server: ServerProcess, folder: Path, env: dict[str, str]) -> None:
        self.server = server
        self._folder = folder
        self._env = env

    def blocks(self, page: str, *kinds: str) -> list[str]:
        """Return the blocks of a page of these kinds, with the addresses of the server; "" is one by indentation."""
        text = (ROOT / page).read_text(encoding="utf-8")
        host, port = self.server.http
        found = []
        for kind, fenced, indented in _FENCED.findall(text):
            if kind in kinds and (fenced or indented):
                block = fenced or re.sub(r"^    ", "", indented, flags=re.M)
                block = re.sub(r"(?:localhost|127\.0\.0\.1):8080", f"{host}:{port}", block)
                block = block.replace('"127.0.0.1", 61613', f'"{self.server.stomp[0]}", {self.server.stomp[1]}')
                found.append(block.replace(".venv/bin/", ""))
        return found

    def shell(self, block: str) -> str:
        """Run commands, each of which has to succeed; return what they print."""
        command = ["bash", "-euo", "pipefail", "-c", CURL + block]
        done = subprocess.run(command, cwd=self._folder, env=self._env, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, block: str, *, lines: int = 0) -> str:
        """Run a program to its end, or until it has printed so many lines and is told to stop by Ctrl-C."""
        command = [sys.executable, "-u", "-c", block]
        with subprocess.Popen(command, cwd=self._folder, env=self._env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            shown = "".join([process.stdout.readline() for _ in range(lines)])
            if lines:
                process.send_signal(signal.SIGINT)
                process.wait(PATIENCE_S)
                return shown
            shown = process.communicate(timeout=PATIENCE_S)[0]
            assert process.returncode == 0
        return shown


def needs_no_server_of_its_own(block: str) -> bool:
    return "curl" in block or re.search(r"^curbstone (?!serve|ready)", block, re.M) is not None


@pytest.mark.parametrize("page", ["docs/start.md", "docs/guide-http.md"])
def test_guide_commands_run(run: Runner, page: str) -> None:
    if "guide" in page:
        run.shell(f"curl -X PUT {run.server.url}/v2/demo/queues/jobs")
    blocks = [block for block in run.blocks(page, "sh", "console") if needs_no_server_of_its_own(block)]
    assert len(blocks) >= 3
    shown = [run.shell(block) for block in blocks]
    assert "201 Created" in shown[0] or "x-msg-id" in shown[0].lower() or not shown[0].strip()


def test_websocket_guide_runs(run: Runner) -> None:
    run.shell(f"curl -X PUT {run.server.url}/v2/demo/queues/jobs")
    program, several = run.blocks("docs/guide-websocket.md", "python")
    assert run.python(program) == "hello\n"
    run.shell(f"curl -X PUT {run.server.url}/v2/demo/queues/mails")
    assert sorted(run.python(several).splitlines()) == ["jobs hello", "mails hello"]
    (stream,) = run.blocks("docs/guide-websocket.md", "sh")
    run.shell(stream)


def test_readme_tour_runs(run: Runner) -> None:
    tour = run.blocks("README.md", "", "python")
    curls = [block for block in tour if block.startswith("curl")]
    publish, look = curls[0], curls[1]
    work, consume, sockets = (block for block in tour if "import" in block)
    assert "201 Created" in run.shell(publish)
    shown = run.python(work, lines=2)
    assert {*shown.splitlines()} == {"got hello from curl en", "got hello from Python en"}
    run.shell(publish)
    # Whatever the program before was given and had not acked when it was stopped comes again.
    assert "got hello from" in run.python(consume)
    run.shell(f"curl -X POST {run.server.url}/v2/demo/queues/jobs/purge")
    assert "hello from a WebSocket" in run.python(sockets)
    assert run.shell(look).splitlines()[-1].startswith("jobs ")


def test_mqks_guide_dialogue_matches_the_server(run: Runner) -> None:
    (dialogue,) = (block for block in run.blocks("docs/guide-mqks.md", "text") if "consume" in block)
    lines = dialogue.splitlines()
    answers = [line for line in lines if line.split(" ")[1] == "ok"]
    said: list[str] = []
    with MqksPeer(run.server.mqks, PATIENCE_S) as peer:
        for number, line in enumerate(lines):
            if line not in answers:
                peer.send(line.encode())
                expected = sum(each in answers for each in lines[:number]) + 1
                following = [*lines[number + 1 :], "end"]
                expected += next(i for i, each in enumerate(following) if each not in answers) - 1
                while len(said) < expected:
                    said += [
                        f"{each.request_id} ok {each.data.decode()}".rstrip() for each in peer.read() if each.is_ok
                    ]
    assert sorted(said) == sorted(answers)
