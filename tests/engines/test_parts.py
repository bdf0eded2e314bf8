"""The pure parts of the engine on a cluster: the ladder, the registry, numbers, addresses."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curbstone.core.errors import BadRequest
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions
from curbstone.rabbit.amqp.address import parse
from curbstone.rabbit.shared import delay_ladder
from curbstone.rabbit.shared.ids import AT_ONCE_MAX, MessageIds, time_of
from curbstone.rabbit.shared.registry import Definition, Entry, Registry, RegistryLog
from curbstone.rabbit.shared.topology import LADDER_STEP_MS, LADDER_STEPS
from tests.engines.worlds import START_MS
from tests.kit.simulated import SimHost


@given(st.integers(1, 12 * 86_400_000))
def test_delay_steps_never_shorten_a_delay_and_are_few(delay_ms: int) -> None:
    step, key = delay_ladder.route(delay_ms, "cs/p/a.b#g")
    words = key.split(".", LADDER_STEPS)
    bits = [int(word) for word in words[:LADDER_STEPS]]
    assert words[LADDER_STEPS] == "cs/p/a.b#g"
    waits_ms = [LADDER_STEP_MS << (LADDER_STEPS - 1 - place) for place, bit in enumerate(bits) if bit]
    assert delay_ms <= sum(waits_ms) <= delay_ms * 129 / 128 + LADDER_STEP_MS
    assert len(waits_ms) <= delay_ladder.BITS_MAX
    assert waits_ms[0] == LADDER_STEP_MS << step


def test_delay_beyond_the_longest_step_repeats() -> None:
    step, _ = delay_ladder.route(400 * 86_400_000, "q")
    assert step == LADDER_STEPS - 1


def test_numbers_are_unique_ascending_and_tell_the_time() -> None:
    host = SimHost(Random(0), START_MS)
    numbers = MessageIds(host)
    numbers.gateway = 255
    last = 0
    for count in (1, 5, AT_ONCE_MAX, 1, AT_ONCE_MAX - 1, 2):
        first = numbers.take(count)
        assert first > last and first + count < 1 << 63
        last = first + count - 1
        assert 0 <= time_of(first) - START_MS <= 10
    host.pass_time(60_000)
    assert time_of(numbers.take(1)) == START_MS + 60_000


@pytest.mark.parametrize(
    ("url", "nodes", "rest"),
    [
        ("amqp://h", (("h", 5672),), ("guest", "guest", "/", False)),
        ("amqps://u:p%40@a,b:7,[::1]:8/v%2Fh", (("a", 5671), ("b", 7), ("::1", 8)), ("u", "p@", "v/h", True)),
    ],
)
def test_an_address_names_nodes_and_login(url: str, nodes: object, rest: object) -> None:
    address = parse(url)
    assert address.nodes == nodes
    assert (address.user, address.password, address.vhost, address.is_tls) == rest
    assert "p@" not in str(address)


@pytest.mark.parametrize(
    "url", ["", "amqp:", "http://u:secret@a", "amqp://u:secret@a:x", "amqp://u:secret@", "amqp://[a"]
)
def test_a_bad_address_is_reported_without_its_password(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(url)
    assert "secret" not in str(caught.value)


def known(name: str, uid: str) -> Entry:
    return Definition(queue_name(name), uid, QueueOptions()).as_entry()


def test_registry_entries_are_idempotent() -> None:
    entries: list[Entry] = [
        known("a", "1"),
        known("a", "2"),
        {"do": "options", "uid": "1", "options": {"groups": ["g"]}},
        {"do": "options", "uid": "2", "options": {"ttl": 5}},
        {"do": "bind", "uid": "1", "add": ["e", "f"], "remove": []},
        {"do": "bind", "uid": "1", "add": [], "remove": ["f"]},
        {"do": "group", "uid": "1", "group": "h"},
        {"do": "purged", "uid": "1", "number": 9},
        {"do": "later", "uid": "1"},
        known("b", "3"),
        {"do": "gone", "uid": "3"},
        {"do": "gone", "uid": "3"},
    ]
    registry = Registry()
    for entry in entries:
        registry.apply(entry)
        registry.apply(entry)
    (one,) = registry.by_name.values()
    assert (one.uid, one.options.ttl, one.options.groups) == ("1", 0, ("g",))
    assert (one.bindings, one.groups, one.purged) == (frozenset("e"), frozenset("gh"), 9)
    again = Registry()
    again.restore(registry.snapshot())
    assert again.by_name == registry.by_name


def test_late_registry_reader_starts_from_a_snapshot() -> None:
    changes: list[Any] = []
    host = SimHost(Random(0), START_MS)
    log = RegistryLog(host, _NoLink(), "stream", "life", lambda entry, _change: changes.append(entry), lambda: None)  # type: ignore[arg-type]
    full = Registry()
    for entry in (known("a", "1"), known("b", "2")):
        full.apply(entry)
    log._read(100, {"do": "gone", "uid": "1"})  # of a queue that it does not know
    log._read(101, known("c", "3"))
    log._read(102, {**full.snapshot(), "next": 101})
    log._read(103, {"do": "gone", "uid": "2"})
    assert sorted(log.registry.by_uid) == ["1", "3"]
    log._read(104, Registry().snapshot() | {"next": 104})
    assert sorted(log.registry.by_uid) == ["1", "3"], "who knows all needs no snapshot"


class _NoLink:
    """Nothing is ever connected."""

    connection = None
    trouble = ""

    def when(self, *_calls: object) -> None:
        """No client is notified."""
