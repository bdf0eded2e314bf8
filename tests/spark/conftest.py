"""One quiet Spark session for all tests here: two cores, half a gigabyte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.kit import LOCAL, missing, spark_environment


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Spark, and leave it out, with the reason, where Spark can't run on a developer's machine."""
    here = Path(__file__).parent
    reason = missing()
    for item in items:
        if item.path.parent != here:
            continue
        item.add_marker("spark")
        if reason and os.environ.get("CURBSTONE_REQUIRE_SPARK") != "1":
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of this process."""
    reason = missing()
    assert not reason, reason
    from curbstone.spark import session

    os.environ.update(spark_environment())
    with session.session("tests", more=LOCAL) as opened:
        opened.sparkContext.setLogLevel("OFF")
        yield opened
