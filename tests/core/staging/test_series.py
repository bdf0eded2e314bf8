"""Series of staged transactions, as the micro-batches of a streaming query are."""

from __future__ import annotations

from functools import partial

import pytest

from curbstone.core.errors import AlreadyCommitted, Conflict, NoSuchTransaction
from curbstone.core.staging.committed import KEPT_MS
from curbstone.core.staging.identity import Series
from tests.core.staging.lab import commit, drop, stage, staged_files, start_with_two_queues, state, upload
from tests.core.staging.test_staging import HOWS


@HOWS
def test_only_the_last_number_of_a_series_is_kept(how: str) -> None:
    lab = start_with_two_queues()
    for number in range(8, 11):
        stage(lab, f"query@{number}", "0", {"a": [b"%d" % number]})
        assert commit(lab, f"query@{number}") == (None, False, 1)
    stage(lab, "query", "0", {"b": [b"another id"]})
    assert commit(lab, "query") == (None, False, 1)
    assert len(lab.broker.staging.committed) == 2
    lab.restart(how)
    for number in (3, 9, 10):
        again = f"query@{number}"
        assert state(lab, again) == "committed"
        assert commit(lab, again)[:2] == (None, True)
        with pytest.raises(AlreadyCommitted):
            upload(lab, again, "0")
        with pytest.raises(AlreadyCommitted):
            drop(lab, again)
    assert state(lab, "query@11") == state(lab, "other@3") == ""
    stage(lab, "query@12", "0", {"a": [b"12"]})
    assert commit(lab, "query@12") == (None, False, 1)
    assert lab.bodies("a") == [b"8", b"9", b"10", b"12"]
    lab.restart(how, after_ms=KEPT_MS + 1000)
    assert state(lab, "query@12") == ""


@HOWS
def test_repeated_series_number_requires_the_same_content(how: str) -> None:
    """Spark repeats its last batch, and one with an old checkpoint plans another batch under a number of before."""
    lab = start_with_two_queues()
    for number in range(1, 4):
        stage(lab, f"query@{number}", "0", {"a": [b"%d" % number]})
        assert commit(lab, f"query@{number}", content=f"up to {number}00") == (None, False, 1)
    assert len(lab.broker.staging.committed) == 2
    lab.restart(how)
    assert commit(lab, "query@3", content="up to 300")[:2] == (None, True)
    assert commit(lab, "query@3")[:2] == (None, True)
    for other in (("query@3", "up to 400"), ("query@2", "up to 200"), ("query@2", "up to 250")):
        with pytest.raises(Conflict, match=f"{other[0]} was committed before, with other content"):
            commit(lab, other[0], content=other[1])
    assert lab.bodies("a") == [b"1", b"2", b"3"]
    stage(lab, "old@7", "0", {"a": [b"7"]})
    assert commit(lab, "old@7") == (None, False, 1)
    assert commit(lab, "old@7", content="unknown then")[:2] == (None, True)


def test_series_are_per_owner() -> None:
    lab = start_with_two_queues()
    stage(lab, "query@2", "0", {"a": [b"m"]})
    commit(lab, "query@2")
    with pytest.raises(NoSuchTransaction):
        lab.broker.staging.status("default", "query@1", owner="somebody")
    with pytest.raises(NoSuchTransaction):
        lab.broker.staging.status("another", "query@1")


def test_outdated_series_number_is_refused_and_not_treated_as_committed() -> None:
    lab = start_with_two_queues()
    stage(lab, "query@1", "0", {"a": [b"late"]})
    stage(lab, "query@2", "0", {"a": [b"m"]})
    assert commit(lab, "query@2") == (None, False, 1)
    with pytest.raises(Conflict, match="query@1 is too late: a later one of its series"):
        commit(lab, "query@1")
    assert state(lab, "query@1") == "staged" and drop(lab, "query@1") is None
    assert lab.bodies("a") == [b"m"] and not staged_files(lab)


def test_series_commits_take_no_room() -> None:
    lab = start_with_two_queues()
    lab.broker.disk.make_dir("staging")
    committed = lab.broker.staging.committed
    for number in range(3000):
        hashed = b"%016d" % number
        assert lab.answer(partial(committed.add, hashed, 1, series=Series(b"s" * 16, number))) == (None,)
        committed.forget(hashed)
    assert len(committed) == 1
    assert len(lab.disk.names["staging/committed"].cache) < 1010 * 36
