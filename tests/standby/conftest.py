"""What the tests of a second copy share."""

from __future__ import annotations

from tests.sim.conftest import quiet as quiet
