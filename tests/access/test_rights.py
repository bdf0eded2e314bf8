"""Grants: what they are, what they match, and that they are the sum of what each gives."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest

from curbstone.access.identity import Identity
from curbstone.access.rights import EVERYTHING, ON_QUEUES, BadGrant, Grants, Right, matches, names_to_cover, parse_grant
from curbstone.core.masks import Masks
from curbstone.core.names import private_name, queue_name


@pytest.mark.parametrize(
    ("grant", "rule"),
    [
        ("send", "expected rights and a pattern"),
        ("send shop/a extra", "expected rights and a pattern"),
        ("sned shop/a", "the rights are send, receive, peek, manage, metrics, admin, replicate"),
        ("send, receive shop/a", "expected rights and a pattern"),
        ("admin shop/a", "the right admin does not apply to a queue"),
        ("peek topic:shop/a", "the right peek does not apply to a topic"),
        ("send server", "the right send does not apply to the server"),
        ("replicate shop/a", "the right replicate does not apply to a queue"),
        ("send shop", "expected the pattern project/queue"),
        ("send shop/a/b", "expected the pattern project/queue"),
        ("send sh?p/a", "expected the pattern project/queue"),
        ("send ~private/a", "expected the pattern project/queue"),
    ],
)
def test_invalid_grant_is_reported_with_its_rule(grant: str, rule: str) -> None:
    with pytest.raises(BadGrant, match=re.escape(rule)):
        parse_grant(grant)


@pytest.mark.parametrize(
    ("grant", "name", "may"),
    [
        ("send shop/orders*", "shop/orders", True),
        ("send shop/orders*", "shop/orders.new", True),
        ("send shop/orders*", "shop/order", False),
        ("send shop/*", "shops/a", False),
        ("send */a", "shop/a", True),
        ("send */a", "_temp/a", False),
        ("send _*/a", "_temp/a", True),
        ("send *hop/a*b*c", "shop/a1b2c", True),
        ("send shop/a*a", "shop/a", False),
        ("send shop/A", "shop/a", False),
    ],
)
def test_a_pattern_matches_the_whole_name(grant: str, name: str, may: bool) -> None:
    project, _, queue = name.partition("/")
    assert bool(Grants.parse([grant]).on_queue(queue_name(queue, project)) & Right.SEND) is may


def test_matching_agrees_with_a_regular_expression() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(3000):
        pattern = "".join(rng.choices("ab*", k=rng.randrange(8)))
        name = "".join(rng.choices("ab", k=rng.randrange(10)))
        wanted = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
        assert matches(pattern, name) is wanted, (pattern, name)


def test_random_grants_match_a_plain_model() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    words = {right.word: right for right in (Right.SEND, Right.RECEIVE, Right.PEEK, Right.MANAGE)}
    names = [queue_name(queue, project) for project in ("a", "ab", "_t") for queue in ("q", "qq", "q.1")]
    patterns = ["a/*", "*/q", "a*/q*", "ab/q.1", "_t/*", "*/*", "a/qq"]
    for _ in range(200):
        texts = [f"{rng.choice(list(words))} {rng.choice(patterns)}" for _ in range(rng.randrange(6))]
        grants = Grants.parse(texts)
        for name in names:
            expected = 0
            for text in texts:
                word, pattern = text.split()
                found = re.fullmatch(pattern.replace(".", r"\.").replace("*", "[^/]*"), str(name))
                if found and (not name.project.startswith("_") or pattern.startswith("_")):
                    expected |= words[word]
            assert grants.on_queue(name) == expected, (texts, name)


def test_user_name_in_a_grant_is_literal() -> None:
    grants = Grants.parse(["manage shop/{user}.*"], "web-1")
    assert grants.on_queue(queue_name("web-1.a", "shop")) == Right.MANAGE
    assert grants.on_queue(queue_name("web-2.a", "shop")) == 0


def test_star_covers_slashes_in_events() -> None:
    grants = Grants.parse(["send topic:shop/order/*"])
    assert grants.on_topic("shop", "order/new") == Right.SEND
    assert grants.on_topic("shop", "order/new/1") == Right.SEND
    assert grants.on_topic("other", "order/new") == 0


@pytest.mark.parametrize(
    "pattern", ["*", "order.*", "*.paid", "order.*.paid", "order.7", "order*", "#", "*#", "order.#"]
)
@pytest.mark.parametrize("mask", ["#", "order.*", "order.#", "#.paid", "order.#.paid", "*.*", "order.7", "order.>"])
def test_grant_that_covers_a_mask_covers_its_events(pattern: str, mask: str) -> None:
    """`order.#` takes `order` as well, which `order.*` does not cover. A grant of `#` is of the name `#` alone."""
    grants = Grants.parse([f"receive topic:shop/{pattern}"])
    taken = Masks()
    taken.add(mask)
    words = ["order", "paid", "7"]
    events = [".".join(each) for size in (1, 2, 3) for each in product(words, repeat=size)]
    is_covered = all(grants.on_topic("shop", name) for name in names_to_cover(mask))
    for event in events:
        if is_covered and (event == mask or taken.taking(event)):
            assert grants.on_topic("shop", event)


def test_each_layer_of_grants_narrows_the_previous() -> None:
    name = queue_name("a", "shop")
    identity = Identity("u", [EVERYTHING, Grants.parse(["send,peek shop/*"])])
    assert identity.on_queue(name) == Right.SEND | Right.PEEK
    assert not identity.is_admin and not identity.on_server()
    identity.change([EVERYTHING], "default")
    assert identity.on_queue(name) == ON_QUEUES
    assert identity.is_admin


def test_no_rights_on_private_queues_or_after_the_login_ended() -> None:
    identity = Identity("u", [EVERYTHING])
    assert identity.on_queue(private_name("temp.x")) == 0
    reported: list[str] = []
    identity.watch(lambda: reported.append(identity.end_reason))
    identity.end("over")
    assert reported == ["over"]
    assert identity.on_queue(queue_name("a")) == identity.on_topic("default", "e") == identity.on_server() == 0
