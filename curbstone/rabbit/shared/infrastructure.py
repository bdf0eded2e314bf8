"""Declares, at each start, the objects in RabbitMQ that all queues share: exchanges for events and dead letters, and
the delay ladder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from curbstone.core.errors import CurbstoneError
from curbstone.core.values import Done
from curbstone.rabbit.amqp.link import Calls, unavailable
from curbstone.rabbit.amqp.port import AmqpError, Channel
from curbstone.rabbit.shared.declare import Step, run_concurrently, run_in_order
from curbstone.rabbit.shared.delay_ladder import end_pattern, pattern
from curbstone.rabbit.shared.topology import LADDER_STEPS, Names, lost_arguments, step_arguments, transactions_arguments

Run = Callable[[Channel, Callable[[AmqpError | None], None]], None]


def make(names: Names, calls: Calls, on_done: Done) -> None:
    """Declare the exchanges, then the queues, then the bindings."""

    def step(run: Run) -> Step:
        def take(done: Done) -> None:
            calls.do(run, lambda error: done(_error_of(error)))

        return take

    def phase(runs: list[Run]) -> Step:
        return partial(run_concurrently, [step(run) for run in runs])

    run_in_order([phase(_exchanges(names)), phase(_queues(names)), phase(_bindings(names))], on_done)


def _error_of(error: AmqpError | None) -> CurbstoneError | None:
    return unavailable(error, "the objects that all queues share can't be declared") if error else None


def _exchanges(names: Names) -> list[Run]:
    aside: dict[str, object] = {"alternate-exchange": names.lost}
    kinds: list[tuple[str, str, dict[str, object]]] = [
        (names.lost, "fanout", {}),
        (names.dead, "direct", aside),
        (names.events, "topic", {}),
        (names.due, "topic", aside),
        *((names.step(number), "topic", {}) for number in range(LADDER_STEPS)),
    ]
    return [partial(_declare_exchange, *each) for each in kinds]


def _declare_exchange(
    name: str, kind: str, arguments: dict[str, object], channel: Channel, done: Callable[[AmqpError | None], None]
) -> None:
    channel.declare_exchange(name, kind, done, arguments=arguments)


def _queues(names: Names) -> list[Run]:
    made: list[tuple[str, dict[str, object]]] = [
        (names.lost, lost_arguments()),
        (names.transactions, transactions_arguments()),
        *((names.step(number), step_arguments(names, number)) for number in range(LADDER_STEPS)),
    ]
    return [partial(_declare_queue, *each) for each in made]


def _declare_queue(
    name: str, arguments: dict[str, object], channel: Channel, done: Callable[[AmqpError | None], None]
) -> None:
    channel.declare_queue(name, lambda error, *_: done(error), arguments=arguments)


def _bindings(names: Names) -> list[Run]:
    transactions = names.transactions
    runs: list[Run] = [
        lambda channel, done: channel.bind_queue(names.lost, names.lost, "", done),
        lambda channel, done: channel.bind_queue(transactions, names.due, end_pattern(transactions), done),
    ]
    for number in range(LADDER_STEPS):
        runs.append(partial(_bind_wait, names.step(number), pattern(number, 1)))
        runs.append(partial(_bind_pass, names.step(number - 1), names.step(number), pattern(number, 0)))
    return runs


def _bind_wait(name: str, key: str, channel: Channel, done: Callable[[AmqpError | None], None]) -> None:
    channel.bind_queue(name, name, key, done)


def _bind_pass(name: str, source: str, key: str, channel: Channel, done: Callable[[AmqpError | None], None]) -> None:
    channel.bind_exchange(name, source, key, done)
