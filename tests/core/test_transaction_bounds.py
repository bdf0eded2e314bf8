"""What a transaction over several queues can have: so many copies of messages to events, and so many bytes."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import MessageTooLarge
from curbstone.core.events.events import COPIES_AT_ONCE
from curbstone.core.transactions import transaction as transaction_module
from curbstone.core.transactions import two_phase
from tests.kit.lab import Lab, message


def bound(lab: Lab) -> list[LocalQueue]:
    """Return two queues that are bound to an event."""
    queues = [lab.queue(name) for name in ("a", "b")]
    for queue in queues:
        lab.answer(lambda done, name=queue.name: lab.broker.bind("order", name, done))  # type: ignore[misc]
    return queues


def test_copies_of_event_messages_in_a_transaction_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 messages to an event with 2,000 queues stopped the server for three seconds."""
    monkeypatch.setattr(transaction_module, "COPIES_MAX", 6)
    lab = Lab()
    queues = bound(lab)
    for count, is_taken in ((3, True), (4, False)):
        transaction = lab.broker.transaction()
        transaction.publish(queues[0], message("alone"))
        for number in range(count):
            transaction.publish_event("order", message(f"{number}"))
        error = lab.answer(transaction.commit)[0]
        assert error is None if is_taken else "send them in several parts" in str(error)
    assert [lab.bodies(queue) for queue in queues] == [[b"alone", b"0", b"1", b"2"], [b"0", b"1", b"2"]]


def test_a_transaction_over_queues_is_refused_by_its_size_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MB to an event with 1,000 queues were 8 GB in memory before the transaction was refused."""
    monkeypatch.setattr(transaction_module, "JOURNAL_BYTES_MAX", 5000)
    monkeypatch.setattr(two_phase, "encode_part", lambda *_: pytest.fail("it is encoded"))
    lab = Lab()
    queues = bound(lab)
    transaction = lab.broker.transaction()
    transaction.publish_event("order", message(b"x" * 3000))
    assert isinstance(lab.answer(transaction.commit)[0], MessageTooLarge)
    assert [lab.bodies(queue) for queue in queues] == [[], []]


def test_transactional_event_messages_queue_behind_a_backlog(lab: Lab) -> None:
    """All copies that waited were made in one turn: seconds, after a burst to a topic with many subscribers."""
    queues = bound(lab)
    answers: list[object] = []
    for number in range(4):
        messages = [message(f"{number}") for _ in range(COPIES_AT_ONCE)]
        lab.broker.publish_event("order", messages, lambda *given: answers.append(given))
    transaction = lab.broker.transaction()
    transaction.publish_event("order", message("last"))
    transaction.commit(answers.append)
    assert sum(len(publish.messages) for queue in queues for publish in queue.write_queue.publishes) == COPIES_AT_ONCE
    lab.settle()
    assert answers == [(None, 2, COPIES_AT_ONCE)] * 4 + [None]
    for queue in queues:
        bodies = lab.bodies(queue)
        assert len(bodies) == 4 * COPIES_AT_ONCE + 1 and bodies == sorted(bodies)
