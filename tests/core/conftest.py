"""The set-up of most tests of the engine."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from tests.kit.lab import Lab


@pytest.fixture
def queue(lab: Lab) -> LocalQueue:
    """The queue q of `lab`, with the default options."""
    return lab.queue()
