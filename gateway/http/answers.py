"""Lets a coroutine wait for callbacks of the engine, with one future each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from curbstone.core.errors import CurbstoneError

if TYPE_CHECKING:
    from curbstone.core.values import Published

T = TypeVar("T")


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
    told: list[tuple[int, int]] = []
    errors: list[CurbstoneError] = []

    def on_done(error: CurbstoneError | None, first_seq: int, covered: int) -> None:
        told.append((first_seq, covered))
        if error is not None:
            errors.append(error)
        if sum([each for _, each in told]) >= count and not future.done():
            future.set_result(None)

    start(on_done)
    await future
    if errors:
        raise errors[0]
    return told


async def all_answers(starts: Sequence[Callable[[Callable[..., None]], object]]) -> None:
    """Make several calls at once and wait for all their answers; raise the first error."""
    await asyncio.gather(*[answer(start) for start in starts])


async def answers(
    starts: Sequence[Callable[[Callable[..., None]], object]],
) -> list[tuple[Any, ...] | CurbstoneError]:
    """Make several calls at once; return, for each, its callback's arguments or its error."""
    results = await asyncio.gather(*[answer(start) for start in starts], return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, CurbstoneError):
            raise result
    return [result for result in results if isinstance(result, tuple | CurbstoneError)]


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result. It may take long, and must not touch anything shared."""
    return await asyncio.to_thread(work)
