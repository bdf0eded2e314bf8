"""Masks against what they say in words: a regular expression that is made of each."""

from __future__ import annotations

import re
import time
from random import Random

import pytest

from curbstone.core.masks import Masks, is_mask


def pattern_of(mask: str) -> re.Pattern[str]:
    """Return what a mask takes, of names that begin with a dot."""
    words = mask.split(".")
    if words[-1] == ">":
        words[-1] = "#"
    parts = {"*": r"\.[^.]*", "#": r"(\.[^.]*)*"}
    return re.compile("".join(parts.get(word, re.escape(f".{word}")) for word in words))


def test_mask_detection() -> None:
    assert all(map(is_mask, ["*", "#", ">", "a.*", "*.a", "a.#.b", "a.>"]))
    assert not any(map(is_mask, ["a", "a*", "a.b*", ">.a", "a.>.b", "a#.b", "a.b>"]))


@pytest.mark.parametrize(
    ("mask", "taken", "not_taken"),
    [
        ("order.*.paid", ["order.7.paid", "order..paid"], ["order.paid", "order.7.8.paid", "order.7.paid.x"]),
        ("order.#", ["order", "order.7", "order.7.paid"], ["orders", "x.order"]),
        ("order.>", ["order", "order.7", "order.7.paid"], ["orders"]),
        ("#", ["a", "a.b"], []),
        ("#.paid", ["paid", "order.paid", "a.b.paid"], ["paid.a"]),
        ("a.#.z", ["a.z", "a.b.z", "a.z.z", "a.b.c.z"], ["a", "z", "a.b"]),
    ],
)
def test_mask_matching(mask: str, taken: list[str], not_taken: list[str]) -> None:
    masks = Masks()
    masks.add(mask)
    assert all(masks.taking(event) == [mask] for event in taken)
    assert not any(masks.taking(event) for event in not_taken)


def test_mask_set_matches_its_masks_and_frees_everything() -> None:
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    rng = Random(seed)
    for _ in range(200):
        masks, patterns = Masks(), {}
        for _ in range(rng.randrange(1, 12)):
            mask = ".".join(rng.choices(["a", "b", "*", "#", ""], k=rng.randrange(1, 5))) + rng.choice(["", "", ".>"])
            if mask not in patterns:
                patterns[mask] = pattern_of(mask)
                masks.add(mask)
        for mask in rng.sample(sorted(patterns), len(patterns) // 3):
            del patterns[mask]
            masks.remove(mask)
        for _ in range(20):
            event = ".".join(rng.choices(["a", "b", "c", ""], k=rng.randrange(1, 6)))
            expected = {mask for mask, pattern in patterns.items() if pattern.fullmatch(f".{event}")}
            found = masks.taking(event)
            assert set(found) == expected and len(found) == len(expected), (event, patterns)
        for mask in patterns:
            masks.remove(mask)
        assert not masks


def test_mask_of_many_hashes_matches() -> None:
    masks = Masks()
    masks.add("#.a." * 40 + "b")
    assert masks.taking(".".join(["a"] * 100)) == []
    assert masks.taking(".".join(["a"] * 100 + ["b"])) == ["#.a." * 40 + "b"]


def test_ambiguous_masks_match_in_linear_time() -> None:
    """A thousand of them took 20 s for each event, because each of their words was one more place to walk on from."""
    rng = Random(1)
    chosen = {"#." + ".".join(rng.choices(["a", "*"], k=98)) for _ in range(1000)}
    masks = Masks()
    for mask in chosen:
        masks.add(mask)
    start = time.thread_time()
    found = masks.taking(".".join(["a"] * 99))
    took_ms = 1000 * (time.thread_time() - start)
    print(f"{took_ms:.1f} ms")
    assert set(found) == chosen
    assert took_ms < 250
