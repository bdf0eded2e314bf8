"""Java uses the archive of Spark's classes that the tests made for it; if it does not fit, Java says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.kit import CLASS_ARCHIVE


@pytest.mark.skipif(not CLASS_ARCHIVE.exists(), reason="tests/spark/install.sh could not make it")
def test_java_uses_the_archive(spark: Any) -> None:
    process = spark._jvm.java.lang.ProcessHandle.current().pid()
    assert str(CLASS_ARCHIVE) in Path(f"/proc/{process}/maps").read_text()
