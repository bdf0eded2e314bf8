"""Fixtures of the tests that kill a server."""

from __future__ import annotations

import pytest

from tests.crash.tracer import why_no_strace


@pytest.fixture(scope="session")
def strace() -> None:
    """Skip the test, with the reason, where there is no strace."""
    if reason := why_no_strace():
        pytest.skip(reason)
