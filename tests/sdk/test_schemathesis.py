"""Schemathesis tries out a server with what the contract allows and forbids: nothing undocumented returns.

A full queue (507) is the one answer 5xx that is no fault; it can't happen here.
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from tests.kit.server import ServerProcess
from tests.sdk.tools import ROOT, run, tool

HERE = Path(__file__).resolve().parent
CONTRACT = ROOT / "openapi" / "openapi.yaml"
QUEUES = ("/v2/p1/queues/q", "/v2/p1/queues/changed", "/mq/q")


def examine(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: object) -> None:
    """Run it; at the end the server still answers and has nothing to complain of in its log."""
    for queue in QUEUES:
        assert httpx.put(server.url + queue, trust_env=False).status_code == 201
    monkeypatch.setenv("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
    # Its own folder comes first on the path of what is run there.
    (tmp_path / "schemathesis_hooks.py").write_bytes((HERE / "schemathesis_hooks.py").read_bytes())
    config = ("--config-file", HERE / "schemathesis.toml")
    common = ("--url", server.url, "--request-timeout", 20, "--no-color", "--continue-on-failure")
    run(tool("python"), "-m", "schemathesis.cli", *config, "run", CONTRACT, *common, *options, cwd=tmp_path)
    assert httpx.get(server.url + "/readyz", trust_env=False).status_code == 200
    assert "Traceback" not in server.log


@pytest.fixture
def server(tmp_path: Path) -> ServerProcess:
    """A server whose queues hold all that is published in a run."""
    return ServerProcess(tmp_path / "data", "--cap=1GiB")


def test_the_server_keeps_to_the_contract(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server:
        examine(
            server, tmp_path, monkeypatch,
            "--phases=examples,coverage,fuzzing", "--max-examples=2", "--generation-deterministic",
        )  # fmt: skip


@pytest.mark.soak
def test_the_server_keeps_to_the_contract_for_long(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = os.environ.get("CURBSTONE_SCHEMATHESIS_SECONDS", "300")
    with server:
        examine(server, tmp_path, monkeypatch, f"--max-time={seconds}", "--max-examples=200")
