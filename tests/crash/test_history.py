"""The judge finds what it is there to find, and nothing else."""

from __future__ import annotations

import pytest

from tests.crash.history import Answered, Delivered, Event, History, Requeued, Sent, Settled, Settling

QUEUE = "p/q"


def sent(value: str, body: bytes = b"x", *, producer: str = "p 1", unit: str = "") -> Sent:
    return Sent(value, QUEUE, body, producer, unit)


def got(
    value: str,
    seq: int,
    body: bytes = b"x",
    *,
    consumer: str = "c 1",
    boot: int = 1,
    tries: int = 0,
    queue: str = QUEUE,
) -> Delivered:
    return Delivered(value, queue, f"abc-{seq}", body, consumer, boot, tries)


def settled(seq: int, boot: int = 1) -> list[Event]:
    return [Settling(f"abc-{seq}"), Settled(f"abc-{seq}", boot)]


def problems(*events: Event) -> dict[str, int]:
    return {kind: len(found) for kind, found in History(events).judge().problems.items()}


def test_history_without_faults_is_valid() -> None:
    events: list[Event] = [sent("1.0"), Answered("1.0", True), got("1.0", 1), *settled(1)]
    assert problems(*events) == {}
    History(events).judge().check()


def test_unconfirmed_publish_may_or_may_not_exist() -> None:
    verdict = History([sent("1.0"), sent("2.0"), got("2.0", 1), *settled(1)]).judge()
    assert not verdict.problems
    assert (verdict.sent, verdict.confirmed, verdict.unanswered, verdict.stored_unanswered) == (2, 0, 2, 1)


def test_unconfirmed_ack_may_or_may_not_count() -> None:
    events: list[Event] = [sent("1.0"), Answered("1.0", True), got("1.0", 1), Settling("abc-1")]
    assert problems(*events) == {}
    verdict = History([*events, got("1.0", 1, boot=2, tries=1), *settled(1, 2)]).judge()
    assert not verdict.problems
    assert (verdict.redelivered, verdict.unmarked) == (1, 0)


def test_unmarked_redelivery_is_counted() -> None:
    events: list[Event] = [sent("1.0"), got("1.0", 1), got("1.0", 1, boot=2, consumer="c 2"), *settled(1, 2)]
    assert History(events).judge().unmarked == 1


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("lost", [sent("1.0"), Answered("1.0", True)]),
        ("lost", [sent("1.0"), Answered("1.0", True), got("1.0", 1)]),
        (
            "returned",
            [sent("1.0"), got("1.0", 1), *settled(1), got("1.0", 1, boot=2, tries=1), Settling("abc-1")],
        ),
        ("returned", [sent("1.0"), got("1.0", 1), got("1.0", 1, boot=2, tries=1), *settled(1, 1)]),
        ("refused", [sent("1.0"), Answered("1.0", False), got("1.0", 1), *settled(1)]),
        ("doubled", [sent("1.0"), got("1.0", 1), *settled(1), got("1.0", 2), *settled(2)]),
        ("shared", [sent("1.0"), got("1.0", 1), got("1.0", 1, tries=1, consumer="c 2"), *settled(1)]),
        ("phantom", [got("1.0", 1), *settled(1)]),
        ("phantom", [sent("1.0"), got("1.0", 1, queue="p/other"), *settled(1)]),
        ("corrupt", [sent("1.0", b"x"), got("1.0", 1, b"y"), *settled(1)]),
        ("unordered", [sent("1.0"), sent("2.0"), got("1.0", 2), got("2.0", 1, consumer="c 2")]),
        ("unordered", [sent("1.0", producer="p 2"), sent("2.0"), got("1.0", 2), got("2.0", 1)]),
        ("torn", [sent("1.0", unit="u"), sent("2.0", unit="u"), got("1.0", 1), *settled(1)]),
    ],
)
def test_violations_are_detected(kind: str, events: list[Event]) -> None:
    assert problems(*events) == {kind: 1}
    with pytest.raises(AssertionError, match=f"{kind}=1"):
        History(events).judge().check()


def test_requeued_delivery_may_go_to_another_consumer() -> None:
    again = got("1.0", 1, tries=1, consumer="c 2")
    assert problems(sent("1.0"), got("1.0", 1), Requeued("abc-1", 1), again, *settled(1)) == {}


def test_ack_of_a_transaction_counts_iff_its_sends_do() -> None:
    begun: list[Event] = [sent("1.0"), got("1.0", 1), sent("2.0", unit="u"), Settling("abc-1", "u")]
    back: list[Event] = [got("1.0", 1, boot=2, tries=1), *settled(1, 2)]
    there: list[Event] = [got("2.0", 2, boot=2), *settled(2, 2)]
    assert problems(*begun, *back) == {}
    assert problems(*begun, *there) == {}
    assert problems(*begun) == {"torn": 1}
    assert problems(*begun, *back, *there) == {"torn": 1}


def test_a_value_is_sent_once() -> None:
    with pytest.raises(AssertionError, match="not unique"):
        History([sent("1.0"), sent("1.0")]).judge()
