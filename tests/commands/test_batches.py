"""`curbstone batches` against a real server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.commands import Done, curbstone
from tests.kit.server import ServerProcess


def test_batch_can_be_sent_shown_and_dropped(server: ServerProcess, tmp_path: Path) -> None:
    def run(*args: str) -> Done:
        return curbstone(*args, cwd=tmp_path, CURBSTONE_SERVER=server.url)

    def succeed(*args: str) -> str:
        done = run(*args)
        assert (done.code, done.err) == (0, "")
        return done.out

    succeed("send", "a", "--create", "--batch", "b/1", "--batch-size", "3", "--batch-to", "done", "one", "two")
    (batch,) = json.loads(succeed("batches", "a", "--json"))
    assert (batch["batch"], batch["size"], batch["to"], batch["stored"]) == ("b/1", 3, "done", 2)
    assert json.loads(succeed("batches", "a", "b/1", "--json")) == batch
    succeed("recv", "a", "--ack")
    shown = succeed("batches", "a")
    assert "2 of 3" in shown and "1 acked" in shown and "done" in shown
    assert "1 not ended" in succeed("queue", "show", "a")
    assert succeed("batches", "a", "b/1", "--drop") == "batch b/1 of queue default/a dropped\n"
    assert succeed("batches", "a") == "No batch of queue default/a is open.\n"
    assert "has no open batch 'b/1'" in run("batches", "a", "b/1").err
    assert run("batches", "a", "--drop").code == 2
