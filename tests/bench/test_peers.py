"""The other queues: which program is measured, and in which version."""

import sys
from pathlib import Path

import pytest

from bench import peers

FAKE = f"""#!{sys.executable}
import socket, sys, time
if sys.argv[1:] == ["-v"]:
    print("beanstalkd 9.8.7")
else:
    server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])))
    time.sleep(600)
"""


def test_environment_variable_selects_the_program_and_its_version_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "another-beanstalkd"
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("CURBSTONE_BENCH_BEANSTALKD", str(program))
    said: list[str] = []
    found = [(one.name, one.version) for one in peers.each(tmp_path, {"beanstalkd"}, said.append)]
    assert found == [("beanstalkd -f0", "beanstalkd 9.8.7")] and not said


def test_missing_program_is_skipped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURBSTONE_BENCH_RABBITMQ", str(tmp_path / "rabbitmq-server"))
    said: list[str] = []
    assert not list(peers.each(tmp_path, {"rabbitmq"}, said.append))
    assert said == [f"{tmp_path}/rabbitmq-server is not installed: left out"]


def test_program_without_version_output_is_measured() -> None:
    assert peers.version_of("/bin/true", "") == "of unknown version"
    assert peers.version_of("/bin/true", "missing") == "of unknown version"
