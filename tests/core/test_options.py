"""Options, sizes and sync modes: every bad value names its rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from curbstone.core.errors import BadRequest
from curbstone.core.options import QueueOptions, SyncMode, parse_size

SIZES = [
    ("0", 0),
    ("1048576", 1 << 20),
    ("10MiB", 10 << 20),
    ("64KiB", 64 << 10),
    ("64k", 64_000),
    ("10 MB", 10_000_000),
    ("10mb", 10_000_000),
    (" 1GiB ", 1 << 30),
    ("2TiB", 2 << 40),
    ("2tb", 2 * 10**12),
    ("5b", 5),
    ("7Ki", 7 << 10),
]
BAD_SIZES = ["", " ", "ten", "-1", "1.5MiB", "1e6", "MiB", "10 MiB x", "10XB", "0x10", "1_000", "1" * 16, "1\n2"]


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", [*BAD_SIZES, "١٢"])
def test_a_bad_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadRequest, match="bad size .*as in 10MiB"):
        parse_size(text)


GOOD: list[tuple[str, Any, Any]] = [
    ("cap", 65536, 65536),
    ("cap", "64KiB", 65536),
    ("max_message_size", 1, 1),
    ("max_message_size", "1GiB", 1 << 30),
    ("ttl", 0, 0),
    ("ttl", 0.25, 0.25),
    ("max_tries", 0, 0),
    ("max_tries", 1_000_000, 1_000_000),
    ("dead_letter", "", ""),
    ("dead_letter", "dead", "mine/dead"),
    ("dead_letter", "other/dead", "other/dead"),
    ("nack_delay", 1.5, 1.5),
    ("nack_delay_max", 300, 300),
    ("paused", True, True),
    ("publish_paused", True, True),
    ("overflow", "drop-oldest", "drop-oldest"),
    ("overflow", "refuse", "refuse"),
    ("schema", None, ""),
    ("schema", {"type": "object"}, '{"type":"object"}'),
    ("unused", None, None),
    ("unused", 0, 0),
    ("unused", 1.5, 1.5),
    ("lease", 0.001, 0.001),
    ("groups", [], ()),
    ("groups", ["a", "b", "a"], ("a", "b")),
]


@pytest.mark.parametrize(("name", "value", "taken"), GOOD)
def test_valid_option_is_accepted(name: str, value: Any, taken: Any) -> None:
    assert getattr(QueueOptions().merged({name: value}, "mine"), name) == taken


NUMBER: list[Any] = [True, None, "x", [], {}, float("nan"), float("inf"), -1]
NO_FLAG: list[Any] = [None, 0, 1, "true", []]
BAD: list[tuple[str, Any]] = [
    *[("cap", value) for value in [*NUMBER, 65535, "63KiB", 1.5, 1 << 45, "10 parsecs"]],
    *[("max_message_size", value) for value in [*NUMBER, 0, 1.5, (1 << 30) + 1]],
    *[("ttl", value) for value in [*NUMBER, 1e12, "60"]],
    *[("max_tries", value) for value in [*NUMBER, 1.0, 1_000_001, "3"]],
    *[("dead_letter", value) for value in [None, 1, True, ["dead"], "a b", "a/b/c", "..", "/"]],
    *[("nack_delay", value) for value in [*NUMBER, 1e12]],
    *[("nack_delay_max", value) for value in [*NUMBER, 1e12]],
    *[("paused", value) for value in NO_FLAG],
    *[("publish_paused", value) for value in NO_FLAG],
    *[("overflow", value) for value in ["", "drop", None, 1, ["refuse"]]],
    *[("schema", value) for value in ["", "{}", True, [], 1, {"a": float("nan")}, {"description": "x" * 8192}]],
    *[("unused", value) for value in [*NUMBER[:1], *NUMBER[2:]]],
    *[("lease", value) for value in [*NUMBER, 0, 1e12]],
    *[("groups", value) for value in ["a", None, 1, {"a": 1}, [1], ["a", None], ["a b"], [""], [["a"]]]],
    ("groups", [f"g{number}" for number in range(33)]),
    ("window", 1),
    ("Cap", 65536),
    ("", 1),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_invalid_option_is_named_in_the_error(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        QueueOptions().merged({name: value}, "default")
    assert any(
        word in str(caught.value) for word in (f"option {name}", "unknown option", "bad size", "name", "project")
    )


def test_an_unknown_option_lists_those_there_are() -> None:
    with pytest.raises(BadRequest, match="unknown option 'window'; there are cap, max_message_size, ttl"):
        QueueOptions().merged({"window": 1}, "default")


def test_one_invalid_option_changes_nothing() -> None:
    options = QueueOptions()
    with pytest.raises(BadRequest):
        options.merged({"ttl": 5, "cap": 1}, "default")
    assert options == QueueOptions()


def test_options_round_trip_through_json() -> None:
    changes: dict[str, object] = {"cap": 1 << 20, "ttl": 0.5, "groups": ["a"], "dead_letter": "p/d", "max_tries": 3}
    options = QueueOptions().merged(changes, "default")
    as_json = json.loads(json.dumps(options.as_json()))
    assert as_json["groups"] == ["a"]
    assert QueueOptions().merged(as_json, "default") == options


@pytest.mark.parametrize("text", ["always", "never", "interval:1", "interval:100", "interval:60000"])
def test_a_sync_mode_is_read_and_written(text: str) -> None:
    assert str(SyncMode.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "Always", "always:1", "never:", "interval", "interval:", "interval:0", "interval:60001", "interval:-1", "5"]
    + ["interval:1.5", "interval: 5", "interval:٣", "sometimes"],
)
def test_a_bad_sync_mode_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(BadRequest, match=r"always, interval:MS \(1 to 60000\) or never"):
        SyncMode.parse(text)


def test_retry_delay_backs_off_to_a_maximum_with_jitter() -> None:
    options = QueueOptions(nack_delay=1, nack_delay_max=60)
    for tries in range(100):
        whole = min(1000 * 2**tries, 60_000)
        delays = [options.nack_delay_ms(tries, seq) for seq in range(50)]
        assert 0.85 * whole - 1 <= min(delays) < max(delays) <= 1.15 * whole + 1
    assert options.nack_delay_ms(3, 7) == options.nack_delay_ms(3, 7)


@pytest.mark.parametrize("options", [QueueOptions(nack_delay=2), QueueOptions(nack_delay=2, nack_delay_max=1)])
def test_without_a_higher_maximum_the_retry_delay_is_constant(options: QueueOptions) -> None:
    assert {options.nack_delay_ms(tries, seq) for tries in range(5) for seq in range(5)} == {2000}
