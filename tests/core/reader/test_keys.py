"""Counting by key: what waits, what is in flight, and which keys come first."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from curbstone.core.admin import keys as counting
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine import slices
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.message import Message
from curbstone.core.values import KeyList
from tests.core.delivery.test_ordering import keyed, publish
from tests.kit.lab import Lab, Peer


def counted(lab: Lab, queue: LocalQueue, limit: int = 20, **how: Any) -> dict[str, tuple[int, int]]:
    """Return the first keys in their order, each with what waits and what is in flight."""
    return {each.key: (each.waiting, each.in_flight) for each in listed(lab, queue, limit, **how).first}


def listed(lab: Lab, queue: LocalQueue, limit: int = 20, **how: Any) -> KeyList:
    (found,) = lab.answer(partial(queue.keys, limit, **how))
    assert isinstance(found, KeyList)
    return found


def test_fair_queue_counts_published_messages(lab: Lab) -> None:
    queue = lab.queue(key_limit=2, fair=True)
    publish(lab, queue, "a1 b1 a2 a3 a4 -1 -2 c1")
    assert counted(lab, queue) == {"a": (4, 0), "": (2, 0), "b": (1, 0), "c": (1, 0)}
    peer = Peer(lab, queue)
    assert counted(lab, queue) == {"a": (2, 2), "": (0, 2), "b": (0, 1), "c": (0, 1)}
    peer.nack(1, delay_ms=5000)
    assert counted(lab, queue, by_in_flight=True) == {"a": (1, 2), "": (0, 2), "b": (0, 1), "c": (0, 1)}
    peer.ack(1 + 1, 4, 6, 7, 8)
    assert counted(lab, queue) == {"a": (0, 2)}


def test_messages_settled_while_waiting_are_not_counted(lab: Lab) -> None:
    queue = lab.queue(fair=True, key_limit=0)
    publish(lab, queue, " ".join([f"a{n}" for n in range(9)]) + " b1 b2")
    assert lab.answer(partial(queue.settle_by_id, 4)) == (None, True)
    assert counted(lab, queue) == {"a": (8, 0), "b": (2, 0)}
    lab.purge(queue)
    assert listed(lab, queue) == KeyList(0, [])


def test_requeued_message_is_counted_once(lab: Lab) -> None:
    queue = lab.queue(fair=True, key_limit=0)
    publish(lab, queue, "a1 a2 a3 b1")
    peer = Peer(lab, queue, window=2)
    assert counted(lab, queue) == {"a": (2, 1), "b": (0, 1)}
    peer.close()
    assert counted(lab, queue) == {"a": (3, 0), "b": (1, 0)}


def test_ordered_keys_are_counted_when_reached(lab: Lab) -> None:
    queue = lab.queue(groups=["g"])
    publish(lab, queue, "a1 a2 a3 b1 -1")
    assert listed(lab, queue) == KeyList(0, [])
    Peer(lab, queue, window=2)
    assert counted(lab, queue) == {"a": (2, 1), "b": (0, 1)}
    assert counted(lab, queue, group="g") == counted(lab, queue, group="no such group") == {}


def test_key_reports_when_its_rate_allows_the_next_delivery(lab: Lab) -> None:
    queue = lab.queue(key_limit=0, key_rate=0.5)
    publish(lab, queue, "a1 a2")
    lab.pass_time(2000)
    Peer(lab, queue)
    (counts,) = listed(lab, queue).first
    assert (counts.waiting, counts.in_flight, counts.next_ms) == (1, 1, lab.host.now_ms() + 2000)


@pytest.mark.parametrize("by_in_flight", [False, True])
def test_top_keys_do_not_depend_on_the_slice_size(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, by_in_flight: bool
) -> None:
    queue = lab.queue(fair=True, key_limit=0)
    lab.publish_messages(queue, [keyed(f"k{n % 41}", str(n)) for n in range(500)])
    Peer(lab, queue, window=100)
    whole = listed(lab, queue, 1000, by_in_flight=by_in_flight)
    assert whole.total == len(whole.first) == 41
    monkeypatch.setattr(counting, "OUTRANKED_MAX", 3)
    monkeypatch.setattr(slices, "STEPS_AT_ONCE", 7)
    assert listed(lab, queue, 5, by_in_flight=by_in_flight) == KeyList(41, whole.first[:5])


def test_listing_keys_of_an_ending_queue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "STEPS_AT_ONCE", 1)
    lab = Lab()
    queue = lab.queue(fair=True, key_limit=0)
    lab.publish_messages(queue, [Message(b"", b"x-key:%d\n" % number) for number in range(20)])
    answers: list[KeyList | CurbstoneError] = []
    queue.keys(20, answers.append)
    queue.close(Unavailable("it ends"))
    lab.settle()
    assert len(answers) == 1 and isinstance(answers[0], CurbstoneError)
