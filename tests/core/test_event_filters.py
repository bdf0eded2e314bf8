"""Filters on bindings: each queue gets what passes, in order, also over a restart and in a transaction."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from zlib import crc32

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.meta import Meta, load_meta
from curbstone.core.errors import BadRequest, CurbstoneError, EventRefused
from curbstone.core.events.events import COPIES_AT_ONCE
from curbstone.core.message import Message
from curbstone.core.names import private_name, queue_name
from curbstone.core.options import QueueOptions
from curbstone.core.transactions import transaction
from tests.kit.lab import Lab, message

EU = "region = 'eu'"


def bind(lab: Lab, name: str, wanted: str = "", event: str = "order") -> LocalQueue:
    lab.answer(partial(lab.broker.bind, event, queue_name(name), filter_text=wanted))
    return lab.named(name)


def of(region: str, body: str) -> Message:
    return message(body, headers=f"region:{region}\n".encode())


def publish(lab: Lab, *messages: Message, event: str = "order") -> list[tuple[CurbstoneError | None, int, int]]:
    """Publish to an event; return all answers."""
    answers: list[tuple[CurbstoneError | None, int, int]] = []
    lab.broker.publish_event(event, list(messages), lambda *given: answers.append(given))
    assert not answers, "they come in a later turn"
    lab.settle()
    return answers


def bodies(lab: Lab) -> dict[str, list[bytes]]:
    return {queue.name.queue: lab.bodies(queue) for queue in lab.broker.queues()}


def test_each_queue_gets_matching_messages_and_the_answer_counts_copies(lab: Lab) -> None:
    for name, wanted in (("eu", EU), ("us", "region = 'us'"), ("not", "NOT region = 'eu'"), ("all", "")):
        bind(lab, name, wanted)
    answers = publish(lab, of("eu", "1"), message("2"), of("us", "3"), of("us", "4"), of("eu", "5"))
    assert answers == [(None, 2, 1), (None, 1, 1), (None, 3, 2), (None, 2, 1)]
    assert bodies(lab) == {
        "eu": [b"1", b"5"],
        "us": [b"3", b"4"],
        "not": [b"3", b"4"],
        "all": [b"1", b"2", b"3", b"4", b"5"],
    }
    assert [queue.stats.filtered for queue in lab.broker.queues()] == [3, 3, 3, 0]


def test_a_message_that_passes_no_filter_is_confirmed(lab: Lab) -> None:
    bind(lab, "eu", EU)
    assert publish(lab, of("us", "1"), of("us", "2")) == [(None, 0, 2)]
    assert publish(lab) == [(None, 0, 0)]
    assert bodies(lab) == {"eu": []}


def test_queue_with_several_matching_bindings_gets_one_copy(lab: Lab) -> None:
    bind(lab, "q", EU, "order.#")
    bind(lab, "q", "region = 'us'", "order.new")
    bind(lab, "p", EU, "order.*")
    bind(lab, "p", "", "order.new")
    messages = [of(region, region) for region in ("eu", "us", "asia")]
    assert publish(lab, *messages, event="order.new") == [(None, 2, 2), (None, 1, 1)]
    assert bodies(lab) == {"q": [b"eu", b"us"], "p": [b"eu", b"us", b"asia"]}


def test_rebinding_replaces_the_filter_and_keeps_waiting_messages(lab: Lab) -> None:
    bind(lab, "q", EU)
    publish(lab, of("eu", "1"), of("us", "2"))
    queue = bind(lab, "q", "region = 'us'")
    publish(lab, of("eu", "3"), of("us", "4"))
    assert lab.broker.bindings(queue.name) == {"order": "region = 'us'"}
    bind(lab, "q")
    publish(lab, of("eu", "5"))
    assert lab.bodies(queue) == [b"1", b"4", b"5"]


def test_invalid_filter_is_refused_without_creating_the_queue(lab: Lab) -> None:
    with pytest.raises(BadRequest, match="bad filter at character 8: unexpected"):
        lab.broker.bind("order", queue_name("q"), lambda _error: None, filter_text="region ! 'eu'")
    assert not lab.broker.queues()


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_a_filter_survives_a_restart_and_a_rebind_of_its_event(lab: Lab, how: str) -> None:
    name = bind(lab, "q", EU).name
    lab.restart(how)
    publish(lab, of("eu", "1"), of("us", "2"))
    lab.answer(lambda done: lab.broker.rebind(name, frozenset({"order", "other"}), done))
    assert lab.broker.bindings(name) == {"order": EU, "other": ""}
    lab.answer(lambda done: lab.broker.occupy(name, frozenset({"order"}), 60, done))
    publish(lab, of("eu", "3"), of("us", "4"))
    assert bodies(lab) == {"q": [b"1", b"3"]} and lab.broker.bindings(name) == {"order": EU}


def test_refusal_concerns_only_matching_messages(lab: Lab) -> None:
    queue = bind(lab, "small", EU)
    bind(lab, "all")
    lab.answer(lambda done: lab.broker.declare(queue.name, {"max_message_size": 3}, done))
    answers = publish(lab, of("us", "long"), of("eu", "few"), of("eu", "more"), of("us", "last"))
    assert [(error is None, queues, count) for error, queues, count in answers] == [
        (True, 1, 1), (True, 2, 1), (False, 0, 1), (True, 1, 1),
    ]  # fmt: skip
    error = answers[2][0]
    assert isinstance(error, EventRefused) and (list(error.refused), error.stored) == ([queue.name], 1)
    assert bodies(lab) == {"small": [b"few"], "all": [b"long", b"few", b"more", b"last"]}


def test_a_private_queue_does_not_wait_for_a_queue_that_gets_nothing(lab: Lab) -> None:
    """Its copies are held until those of all others are stored, and a filter leaves some without any."""
    private = private_name("secret.topic0")
    lab.answer(lambda done: lab.broker.declare(private, {}, done))
    lab.answer(partial(lab.broker.bind, "order", private))
    bind(lab, "eu", EU)
    assert publish(lab, of("us", "1")) == [(None, 1, 1)]
    assert publish(lab, of("us", "2"), of("eu", "3")) == [(None, 1, 1), (None, 2, 1)]
    assert lab.bodies(lab.broker.get(private)) == [b"1", b"2", b"3"]


def test_filters_that_cost_much_are_spread_over_turns_and_the_order_stays(lab: Lab) -> None:
    dear = " OR ".join(["region LIKE '%_x%'"] * 4)
    queues = [bind(lab, f"q{number}", f"region = '{number}' OR {dear}") for number in range(3)]
    assert publish(lab, *[of(str(number % 4), str(number)) for number in range(8)])
    answers: list[Any] = []
    lab.broker.publish_event("order", [of("0", "a"), of("1", "b")], lambda *given: answers.append(given))
    lab.broker.publish_event("order", [of("0", "c")], lambda *given: answers.append(given))
    assert all(queue.writer.is_idle for queue in queues), f"one costs more than {COPIES_AT_ONCE} copies"
    lab.settle()
    assert len(answers) == 2 and all(error is None for error, *_ in answers)
    assert [lab.bodies(queue) for queue in queues] == [[b"0", b"4", b"a", b"c"], [b"1", b"5", b"b"], [b"2", b"6"]]


# --- transactions


def test_transaction_applies_filters_per_queue(lab: Lab) -> None:
    bind(lab, "eu", EU)
    bind(lab, "us", "region = 'us'")
    bind(lab, "asia", "region = 'asia'")
    work = lab.broker.transaction()
    for each in (of("eu", "1"), of("us", "2"), of("eu", "3")):
        work.publish_event("order", each)
    assert lab.answer(work.commit) == (None,) and work.queues_reached == 2
    assert bodies(lab) == {"eu": [b"1", b"3"], "us": [b"2"], "asia": []}


def test_transaction_without_matching_filter_is_committed(lab: Lab) -> None:
    bind(lab, "eu", EU)
    work = lab.broker.transaction()
    work.publish_event("order", of("us", "1"))
    assert lab.answer(work.commit) == (None,) and work.queues_reached == 0


def test_transaction_with_too_much_filter_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "COSTS_AT_ONCE", 10)
    lab = Lab()
    bind(lab, "eu", EU)
    held = lab.queue("held")
    work = lab.broker.transaction()
    work.publish(held, message("0"))
    for number in range(6):
        work.publish_event("order", of("eu", str(number)))
    (error,) = lab.answer(work.commit)
    assert isinstance(error, BadRequest) and "send them in several parts" in str(error)
    assert bodies(lab) == {"eu": [], "held": []}


# --- on disk


def test_version_without_filters_receives_all_messages() -> None:
    """It takes `bindings` and ignores the member `filters`."""
    meta = Meta("1-2", queue_name("q"), QueueOptions(), bindings={"order": EU, "other": ""})
    facts = json.loads(meta.encode().partition(b"\n")[0])
    assert (facts["bindings"], facts["filters"]) == (["order", "other"], {"order": EU})


def test_filter_of_a_later_version_matches_all_and_is_reported(lab: Lab) -> None:
    queue = bind(lab, "q", EU)
    path = f"{queue.log.directory}/meta"
    lab.broker.shutdown(lambda: None)
    lab.settle()
    meta = load_meta(lab.disk, queue.log.directory, QueueOptions())
    assert meta is not None
    line = meta.encode().partition(b"\n")[0].replace(EU.encode(), b"$.region ~ 'eu'")
    file = lab.disk.open(path)
    file.truncate(0)
    file.write(0, [line + b"\n%08x\n" % crc32(line)])
    file.sync()
    file.close()
    lab.restart("kill")
    found = lab.broker.get(queue.name)
    assert "it gets all messages to order, as the filter of its binding is not understood" in found.damaged[0]
    publish(lab, of("us", "1"))
    assert lab.bodies(found) == [b"1"] and lab.broker.bindings(found.name) == {"order": "$.region ~ 'eu'"}
