"""What is unconfirmed is too much above a bound, and until half of it is confirmed."""

from __future__ import annotations

from curbstone.net.in_flight import InFlight


def test_reading_resumes_when_half_is_confirmed() -> None:
    unconfirmed = InFlight(10, 1000)
    unconfirmed.add(10, 1000)
    assert not unconfirmed.is_over_limit
    unconfirmed.add(1, 0)
    assert unconfirmed.is_over_limit
    assert not unconfirmed.remove(6, 499)
    assert not unconfirmed.remove(1, 0), "there are too many bytes still"
    assert unconfirmed.remove(0, 1), "now it may continue, and that is reported once"
    assert not unconfirmed.remove(0, 1)
    unconfirmed.add(0, 502)
    assert unconfirmed.is_over_limit
    assert (unconfirmed.count, unconfirmed.bytes) == (4, 1001)
