"""Builds that are compared in turn."""

import pytest

from bench.alternate import HEAD, main


def test_two_builds_are_measured_alternately(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one=", "other=", "--servers", "1", "--rounds", "2", "--count", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == HEAD.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| one", "| other"]
    for line in lines[2:]:
        best, middle, _p99, cpu, blocked = map(float, line.strip("| ").split(" | ")[1:6])
        assert 0 < best <= middle and cpu > 0 and blocked > 0
