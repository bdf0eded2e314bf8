"""The notes of what declared groups have lost: when they are written, again, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from curbstone.core.engine.facts.losses import NOTHING, Loss, Losses


def losses(*groups: str) -> tuple[Losses, Any]:
    """Losses of a queue that has declared these groups."""
    queue = SimpleNamespace(meta=SimpleNamespace(groups=dict.fromkeys(groups, 1)), stats=SimpleNamespace(lost=0))
    return Losses(cast(Any, queue)), queue


def test_losses_add_up_and_their_floor_never_falls() -> None:
    book, queue = losses("g", "h")
    book.add("g", 3, 10)
    book.add("g", 2, 5)
    book.add("h", 1, 7)
    assert (book.of("g"), book.of("h")) == (Loss(10, 5), Loss(7, 1))
    assert queue.stats.lost == 6


def test_nothing_lost_and_groups_that_are_not_declared_are_not_noted() -> None:
    book, queue = losses("g")
    book.add("g", 0, 10)
    book.add("stranger", 3, 10)
    assert book.of("g") == book.of("stranger") == NOTHING
    assert book.to_log(1) == {}
    assert queue.stats.lost == 0


def test_a_loss_is_logged_once_and_again_when_the_segment_with_its_note_goes() -> None:
    book, _ = losses("g", "h")
    book.add("g", 3, 10)
    assert book.to_log(0) == {"g": Loss(10, 3)}
    book.logged(book.to_log(0), 4)
    assert book.to_log(0) == book.to_log(4) == {}
    assert book.to_log(5) == {"g": Loss(10, 3)}
    book.logged(book.to_log(5), 9)
    assert book.to_log(9) == {}
    book.add("h", 1, 12)
    assert book.to_log(9) == {"h": Loss(12, 1)}
    book.add("g", 1, 12)
    assert list(book.to_log(9)) == ["g", "h"]


def test_a_group_that_is_forgotten_is_noted_as_nothing_and_then_no_more() -> None:
    book, _ = losses("g")
    book.add("g", 3, 10)
    book.logged(book.to_log(0), 4)
    book.forget("g")
    assert book.of("g") == NOTHING
    assert book.to_log(0) == {"g": NOTHING}
    book.logged(book.to_log(0), 5)
    assert book.to_log(100) == {}


def test_what_the_log_knows_is_not_written_again_after_a_restart() -> None:
    book, _ = losses("g", "anew")
    book.recover("g", Loss(10, 3), 4, is_earlier=False)
    book.recover("gone", Loss(10, 3), 4, is_earlier=False)
    book.recover("anew", Loss(10, 3), 4, is_earlier=True)
    assert book.of("g") == Loss(10, 3)
    assert book.of("gone") == book.of("anew") == NOTHING
    assert book.to_log(4) == {"anew": NOTHING, "gone": NOTHING}, "the log still says otherwise of these"
