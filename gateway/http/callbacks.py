"""Lets a coroutine wait for callbacks of the engine, with one future each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from curbstone.core.errors import CurbstoneError

if TYPE_CHECKING:
    from curbstone.core.values import Published

T = TypeVar("T")
TOKENS_AT_ONCE = 5_000
"""The most leases that one call settles or extends in one turn of the loop."""


async def answer(start: Callable[[Callable[..., None]], object]) -> tuple[Any, ...]:
    """Call `start` with a callback; return the callback's arguments.

    If the first argument is an error, it is raised.
    """
    future: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
    # The traceback of an error refers to this frame. If the future or this frame kept the error, the two would form a
    # cycle and stay in memory.
    errors: list[CurbstoneError] = []

    def on_done(*results: Any) -> None:
        if not future.done():
            if isinstance(results[0], CurbstoneError):
                errors.append(results[0])
                results = ()
            future.set_result(results)

    start(on_done)
    results = await future
    if errors:
        raise errors.pop()
    return results


async def answers_for(count: int, start: Callable[[Published], object]) -> list[tuple[int, int]]:
    """Call `start` with a publish's callback; return its (first seq, count) once they cover `count` messages.

    If there were errors, the first is raised then.
    """
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcomes: list[tuple[int, int]] = []
    errors: list[CurbstoneError] = []

    def on_done(error: CurbstoneError | None, first_seq: int, covered: int) -> None:
        outcomes.append((first_seq, covered))
        if error is not None:
            errors.append(error)
        if sum([each for _, each in outcomes]) >= count and not future.done():
            future.set_result(None)

    start(on_done)
    await future
    if errors:
        raise errors[0]
    return outcomes


async def all_answers(starts: Sequence[Callable[[Callable[..., None]], object]]) -> None:
    """Make several calls concurrently and wait for all their answers; raise the first error."""
    await asyncio.gather(*[answer(start) for start in starts])


async def answers(
    starts: Sequence[Callable[[Callable[..., None]], object]],
) -> list[tuple[Any, ...] | CurbstoneError]:
    """Make several calls concurrently; return, for each, its callback's arguments or its error."""
    results = await asyncio.gather(*[answer(start) for start in starts], return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, CurbstoneError):
            raise result
    return [result for result in results if isinstance(result, tuple | CurbstoneError)]


def in_pieces(tokens: list[str]) -> Iterator[list[str]]:
    """Yield leases in pieces that are settled in one turn each; at least one piece."""
    for start in range(0, max(len(tokens), 1), TOKENS_AT_ONCE):
        yield tokens[start : start + TOKENS_AT_ONCE]


async def next_turn() -> None:
    """Let the event loop poll its sockets, and continue in its next turn."""
    await asyncio.sleep(0)


class OneAtATime:
    """Runs work in a thread, one piece at a time; for work that holds the interpreter's lock most of the time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await in_thread(work)


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result. It may take long, and must not touch anything shared."""
    return await asyncio.to_thread(work)
