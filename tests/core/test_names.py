"""The rules of names; a name that breaks one is refused with the rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName, event_name, group_name, parse_queue_name, queue_name

GOOD_QUEUES = ["q", "a" * 200, "A-Z_a.z:0", "...", "-", "a.b", "0"]
BAD_QUEUES = ["", "a" * 201, "a b", "a/b", "ä", "a\n", "\n", "a\0", "a\\b", ".", "..", "a%", "a\u0661"]
GOOD_PROJECTS = ["p", "a" * 64, "A-z_0"]
BAD_PROJECTS = ["", "a" * 65, "a.b", "a:b", "a b", "ä", "p\n"]
GOOD_GROUPS = ["g", "g" * 64, "A-z_0.9"]
BAD_GROUPS = ["", "g" * 65, "a,b", "a:b", "a b", "ä", "g\n"]
GOOD_EVENTS = ["e", "order.created", "ä/€", "e" * 200, "a,b"]
BAD_EVENTS = ["", "e" * 201, "a b", "a\tb", "a\n", "a\0", "\x7f", "\u00a0", "\x84", "a\u202e"]


@pytest.mark.parametrize("name", GOOD_QUEUES)
def test_valid_queue_name_is_accepted(name: str) -> None:
    assert queue_name(name) == QueueName("default", name)
    assert str(queue_name(name, "p")) == f"p/{name}"


@pytest.mark.parametrize("name", BAD_QUEUES)
def test_invalid_queue_name_is_reported_with_its_rule(name: str) -> None:
    with pytest.raises(BadRequest, match="bad queue name .*: (1 to 200 of|'.' and '..' are not names)"):
        queue_name(name)


@pytest.mark.parametrize("name", GOOD_PROJECTS)
def test_valid_project_name_is_accepted(name: str) -> None:
    assert queue_name("q", name).project == name


@pytest.mark.parametrize("name", BAD_PROJECTS)
def test_invalid_project_name_is_reported_with_its_rule(name: str) -> None:
    with pytest.raises(BadRequest, match="bad project name .*: 1 to 64 of"):
        queue_name("q", name)


@pytest.mark.parametrize(
    ("check", "good", "bad", "rule"),
    [
        (group_name, GOOD_GROUPS, BAD_GROUPS, "bad group name .*: 1 to 64 of"),
        (event_name, GOOD_EVENTS, BAD_EVENTS, "bad event name .*: 1 to 200 characters"),
    ],
)
def test_groups_and_events_keep_their_rules(
    check: Callable[[str], str], good: list[str], bad: list[str], rule: str
) -> None:
    for name in good:
        assert check(name) == name
    for name in bad:
        with pytest.raises(BadRequest, match=rule):
            check(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("q", QueueName("mine", "q")),
        ("p/q", QueueName("p", "q")),
        ("default/a:b.c", QueueName("default", "a:b.c")),
    ],
)
def test_a_queue_is_named_with_or_without_its_project(text: str, name: QueueName) -> None:
    assert parse_queue_name(text, "mine") == name


@pytest.mark.parametrize("text", ["", "/", "/q", "p/", "p/q/r", "p/.", "p q/q"])
def test_invalid_project_queue_pair_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_queue_name(text)


def test_an_error_shows_at_most_the_beginning_of_a_long_name() -> None:
    with pytest.raises(BadRequest) as caught:
        queue_name("x" * 100_000)
    assert len(str(caught.value)) < 300
