"""Arguments of a queue in STOMP headers: what they make of a queue, and what they can't change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions
from curbstone.stomp.limits import Limits
from tests.kit.engine import wait_until
from tests.stomp.client import Peer
from tests.stomp.serving import World, serving


def run(path: Path, *frames: str) -> tuple[dict[str, object] | None, str]:
    """Send frames on a connection each; return the options of the queue q, if it is there, and the last answer."""

    async def main() -> tuple[dict[str, object] | None, str]:
        async with serving(path, QueueOptions(), Limits()) as world:
            said = ""
            for frame in frames:
                said = await answer(await world.peer(), frame)
            return options_of(world), said

    return asyncio.run(main())


async def answer(peer: Peer, frame: str) -> str:
    head = frame.replace("|", "\n")
    await peer.send(f"{head}\nreceipt:r\n\n\0".encode())
    received = await peer.frame()
    return received.headers["message"] if received.command == "ERROR" else received.command


def options_of(world: World) -> dict[str, object] | None:
    found = [queue for queue in world.broker.queues() if queue.name == queue_name("q")]
    return found[0].options.as_json() if found else None


@pytest.mark.parametrize("command", ["SUBSCRIBE|id:1", "SEND"])
@pytest.mark.parametrize(
    ("header", "option", "value"),
    [
        ("x-expires:1500", "unused", 1.5),
        ("x-max-length-bytes:100000|x-overflow:reject-publish", "cap", 100_000),
        ("x-max-length-bytes:100000|x-overflow:drop-head", "overflow", "drop-oldest"),
        ("x-overflow:drop-head", "overflow", "drop-oldest"),
        ("x-dead-letter-routing-key:dead", "dead_letter", "default/dead"),
        ("x-dead-letter-exchange:|x-dead-letter-routing-key:dead", "dead_letter", "default/dead"),
    ],
)
def test_arguments_set_the_queue_options(tmp_path: Path, command: str, header: str, option: str, value: object) -> None:
    frame = f"{command}|destination:/queue/q|{header}"
    options, said = run(tmp_path, frame, frame)
    assert said == "RECEIPT"
    assert options is not None and options[option] == value


def test_ttl_of_a_subscribe_applies_to_the_queue(tmp_path: Path) -> None:
    options, said = run(tmp_path, "SUBSCRIBE|id:1|destination:/queue/q|x-message-ttl:2500")
    assert said == "RECEIPT" and options is not None and options["ttl"] == 2.5


@pytest.mark.parametrize("header", ["auto-delete:true", "exclusive:true"])
@pytest.mark.parametrize("end", ["DISCONNECT", "UNSUBSCRIBE|id:1"])
def test_queue_is_deleted_with_its_last_subscriber(tmp_path: Path, header: str, end: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, QueueOptions(), Limits()) as world:
            peer = await world.peer()
            assert await answer(peer, f"SUBSCRIBE|id:1|destination:/queue/q|{header}") == "RECEIPT"
            assert await answer(peer, "SEND|destination:/queue/q") in ("RECEIPT", "MESSAGE")
            await peer.send(f"{end.replace('|', chr(10))}\nreceipt:e\n\n\0".encode())
            await wait_until(lambda: options_of(world) is None)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (
            "SEND|destination:/queue/q",
            "SUBSCRIBE|id:1|destination:/queue/q|auto-delete:true",
            "with neither auto-delete",
        ),
        ("SEND|destination:/queue/q", "SEND|destination:/queue/q|x-expires:5", "nor x-expires;"),
        ("SEND|destination:/queue/q", "SUBSCRIBE|id:1|destination:/queue/q|x-message-ttl:5", "with no x-message-ttl;"),
    ],
)
def test_existing_queue_is_not_changed(tmp_path: Path, first: str, then: str, said: str) -> None:
    options, error = run(tmp_path, first, then)
    assert said in error and "over HTTP" in error
    assert options is not None and (options["unused"], options["ttl"]) == (None, 0)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("x-expires:60000", "x-expires:5000"),
        ("auto-delete:true", "x-expires:5000"),
        ("x-max-length-bytes:100000|x-overflow:drop-head", "x-max-length-bytes:200000|x-overflow:drop-head"),
        ("x-overflow:drop-head", "x-overflow:reject-publish"),
        ("x-overflow:reject-publish", "x-overflow:drop-head"),
        ("x-dead-letter-routing-key:default/dead", "x-dead-letter-routing-key:other"),
    ],
)
def test_conflicting_argument_is_reported_with_the_matching_header(tmp_path: Path, first: str, then: str) -> None:
    """It was reported as an option and in its units, such as `unused 60.0`: a STOMP client knows neither."""
    error = run(tmp_path, *[f"SEND|destination:/queue/q|{header}" for header in (first, then)])[1]
    assert f"exists with {first.partition('|')[0]};" in error


def test_an_exclusive_queue_has_one_subscriber(tmp_path: Path) -> None:
    frame = "SUBSCRIBE|id:1|destination:/queue/q|exclusive:true"
    assert "can't be exclusive" in run(tmp_path, frame, frame)[1]


def test_exclusive_subscriber_does_not_exclude_non_exclusive_ones(tmp_path: Path) -> None:
    frame = "SUBSCRIBE|id:1|destination:/queue/q"
    assert run(tmp_path, f"{frame}|exclusive:true", frame.replace("id:1", "id:2"))[1] == "RECEIPT"
    assert "can't be exclusive" in run(tmp_path / "other", frame, f"{frame.replace('id:1', 'id:2')}|exclusive:true")[1]


def test_a_second_subscriber_of_an_exclusive_queue_is_refused_as_exclusive(tmp_path: Path) -> None:
    """Where the first one had asked for more, the second was told of the option in which they differ."""
    frame = "SUBSCRIBE|id:1|destination:/queue/q|exclusive:true"
    assert "because it has a consumer" in run(tmp_path, f"{frame}|x-expires:60000", frame)[1]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("SUBSCRIBE|id:1|destination:/queue/q|x-max-length-bytes:100000", "needs x-overflow: reject-publish"),
        ("SUBSCRIBE|id:1|destination:/queue/q|x-overflow:drop-tail", "reject-publish or drop-head"),
        ("SUBSCRIBE|id:1|destination:/queue/q|x-dead-letter-exchange:dlx", "no exchanges"),
        ("SUBSCRIBE|id:1|destination:/queue/q|x-expires:soon", "whole number"),
        ("SUBSCRIBE|id:1|destination:/queue/q|x-max-length-bytes:5|x-overflow:reject-publish", "bad option cap"),
        ("SUBSCRIBE|id:1|destination:/topic/q|x-expires:5", "outlive their connection"),
        ("SEND|destination:/temp-queue/q|x-dead-letter-routing-key:a", "outlive their connection"),
    ],
)
def test_invalid_argument_is_an_error_and_creates_nothing(tmp_path: Path, frame: str, said: str) -> None:
    options, error = run(tmp_path, frame)
    assert said in error and options is None


@pytest.mark.parametrize("destination", ["/topic/q", "/temp-queue/q"])
@pytest.mark.parametrize("header", ["auto-delete:true", "exclusive:true"])
def test_redundant_argument_is_accepted(tmp_path: Path, destination: str, header: str) -> None:
    assert run(tmp_path, f"SUBSCRIBE|id:1|destination:{destination}|{header}") == (None, "RECEIPT")


def test_arguments_apply_to_durable_subscriptions(tmp_path: Path) -> None:
    options, said = run(tmp_path, "SUBSCRIBE|id:1|destination:/topic/news|durable-subscription-name:q|x-expires:60000")
    assert said == "RECEIPT" and options is not None and options["unused"] == 60
