"""`curbstone queue`: create, change, show and delete a queue."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from curbstone.cli.queue import QUEUE_OPTIONS
from curbstone.core.options import QueueOptions
from tests.kit.commands import Done, curbstone
from tests.kit.server import ServerProcess

Run = Callable[..., Done]


@pytest.fixture
def run(server: ServerProcess, tmp_path: Path) -> Run:
    return lambda *args: curbstone(*args, cwd=tmp_path, CURBSTONE_SERVER=server.url)


def test_every_option_of_a_queue_can_be_set() -> None:
    with_own_commands = {"paused", "publish_paused", "schema"}
    assert QUEUE_OPTIONS.keys() | with_own_commands == {field.name for field in fields(QueueOptions)}


def test_create_show_change_and_delete_a_queue(run: Run) -> None:
    created = run("queue", "create", "made/jobs", "--cap=1MiB", "--max-tries=5", "--groups=a,b", "--nack-delay=2.5")
    assert (created.code, created.out) == (0, "queue made/jobs created\n")
    again = run("queue", "create", "made/jobs")
    assert (again.code, again.err) == (
        1,
        "curbstone: queue made/jobs exists; change its options with: curbstone queue set\n",
    )
    done = run(
        "queue", "set", "made/jobs", "--groups", "none", "--max-tries", "none", "--unused", "60", "--fair", "yes"
    )
    assert done.out == "queue made/jobs: max_tries = none, groups = none, unused = 60 s, fair = yes\n"
    (info,) = run("queue", "show", "made/jobs", "--json").json
    options = info["options"]
    assert (options["cap"], options["max_tries"], options["groups"], options["unused"]) == (1 << 20, 0, [], 60)
    assert options["nack_delay"] == 2.5, "an option that is not named stays"
    run("send", "made/jobs", "x")
    shown = run("queue", "show", "made/jobs").out
    assert "ready" in shown and re.search("max_tries +none", shown) and re.search("unused +60 s", shown)
    assert re.search(r"cap +1\.0 MiB \(1048576 bytes\)", shown), "sizes and durations have units"
    assert run("queue", "delete", "made/jobs").out == "queue made/jobs deleted, with 1 message\n"
    for verb in ("show", "set", "delete"):
        assert run("queue", verb, "made/jobs", *(["--ttl=1"] if verb == "set" else [])).code == 4, verb


def test_a_bad_option_is_refused_with_its_value(run: Run) -> None:
    assert "bad --max-tries 'many': expected a number" in run("queue", "create", "made/x", "--max-tries=many").err
    assert "bad --fair 'maybe': yes or no" in run("queue", "create", "made/x", "--fair=maybe").err
    assert "'huge' is not" in run("queue", "create", "made/x", "--overflow=huge").err
    assert run("queue", "show", "made/x").code == 4, "nothing was created"
    assert "no option to set" in run("queue", "set", "made/x").err


def test_a_missing_queue_is_named(run: Run) -> None:
    """It showed a URL and "answered 404"."""
    assert run("queue", "set", "made/none", "--ttl=1").err == "curbstone: no such queue: made/none\n"
    assert run("send", "made/none", "x").err == "curbstone: no such queue: made/none\n"


def test_empty_event_list_is_reported(run: Run) -> None:
    assert run("events", "made").out == "No queue of project made is bound to an event.\n"


def test_queue_given_as_project_is_named_in_the_error(run: Run) -> None:
    done = run("queues", "made/jobs")
    assert done.code == 2
    assert "'made/jobs' is not a project; to show one queue: curbstone queue show made/jobs" in done.err


def test_peek_shows_origin_and_reason_of_dead_letters(run: Run) -> None:
    run("queue", "create", "made/one", "--max-tries=1", "--dead-letter=made/failed")
    run("send", "made/one", "x")
    run("recv", "made/one")
    # The message moves after the nack was answered, in a transaction of its own.
    found = next(filter(None, (run("peek", "made/failed").out for _ in range(100))))
    assert "DEAD IN" in found and "made/one" in found and "1 delivery" in found
    assert run("redrive", "made/failed").out == "1 message moved\n"
    assert run("redrive", "made/failed").out == (
        "0 messages moved\nqueue made/failed has no dead letters that are ready\n"
    )
    run("queue", "delete", "made/one"), run("queue", "delete", "made/failed")


def test_messages_are_sent_with_a_priority_and_counted_by_it(run: Run) -> None:
    assert run("queue", "create", "ranked", "--oldest-every=10").code == 0
    for name, options in (("none", []), ("high", ["--priority", "9"]), ("low", ["--priority=0"])):
        assert run("send", "ranked", name, *options).code == 0
    assert re.search(r"by priority\s+9: 1, 4: 1, 0: 1", run("queue", "show", "ranked").out)
    lines = run("recv", "ranked", "--count=3", "--ack").out.split()
    assert lines == ["high", "none", "low"]
    assert "it is a whole number from 0 to 9" in run("send", "ranked", "x", "--priority", "300").err


def test_unique_name_is_released_as_the_options_say(run: Run) -> None:
    run("queue", "create", "named")
    until = ("--unique", "n", "--unique-until")
    assert run("send", "named", "1", *until, "delivered").out == "1 message sent\n"
    assert run("recv", "named").out == "1\n"
    assert run("send", "named", "2", *until, "settled").out == "1 message sent\n"
    assert run("send", "named", "3", *until, "later").code == 2
    assert run("send", "named", "4", "--replace", "n", "--replace-max", "0.5").out == "1 message sent\n"
    assert run("peek", "named", "--json").json[-1]["replace_max"] == 0.5
    assert run("send", "named", "5", "--replace-max", "0.5").code == 1


def test_keys_are_listed_with_their_backlog(run: Run) -> None:
    run("queue", "create", "fair", "--fair", "yes", "--key-limit", "0")
    assert run("keys", "fair").out.startswith("The queue has read no message with a key")
    for key, bodies in {"shop": ("1", "2", "3"), "bank": ("4",)}.items():
        run("send", "fair", "--key", key, *bodies)
    run("send", "fair", "5")
    lines = [line.split() for line in run("keys", "fair").out.splitlines()]
    assert lines[0][:2] == ["KEY", "WAITING"]
    assert lines[1:] == [["shop", "3", "0"], ["(none)", "1", "0"], ["bank", "1", "0"]]
    assert run("keys", "fair", "--limit", "1").out.splitlines()[-1] == "2 more"
    shown = run("keys", "fair", "--by", "in_flight", "--limit", "1", "--json").json
    assert shown[0]["total"] == 3 and [key["key"] for key in shown[0]["keys"]] == ["shop"]
    assert run("keys", "fair", "--by", "age").code == 2
    assert run("keys", "missing").code == 4
