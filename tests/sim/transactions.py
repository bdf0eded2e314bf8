"""Transactions of a simulated run: all or nothing, over one queue or two, with acks and what else ends a delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.transactions.transaction import Transaction
from tests.sim.history import Unit

if TYPE_CHECKING:
    from tests.sim.run import Run


def transact(run: Run) -> None:
    """Publish to one or two queues, and ack what a consumer holds: all or nothing."""
    transaction = run.broker.transaction()
    unit = Unit()
    for _ in range(run.rng.choice([0, 1, 3])):
        queue = run.any_queue()
        message = run.history.message(run.rng.randrange(10, run.max_size))
        unit.publishes.append(run.history.token(message))
        transaction.publish(queue, message)
    holders = [consumer for consumer in run.consumers if consumer.unsettled]
    if holders:
        consumer = run.rng.choice(holders)
        seqs = run.rng.sample(list(consumer.unsettled), min(len(consumer.unsettled), run.rng.choice([1, 2])))
        unit.acks = [run.history.token(consumer.unsettled[seq].message, consumer.group) for seq in seqs]
        transaction.ack(consumer, seqs)
        _give_up_in(run, transaction, consumer, [seq for seq in consumer.unsettled if seq not in seqs], unit)
        for token in unit.acks:  # who has it while the transaction is under way is not followed
            run.history.live.pop(token, None)
    run.history.units.append(unit)
    run.doom(unit.acks, alone=False)

    def done(error: CurbstoneError | None) -> None:
        if error is None:
            unit.confirmed = True
            run.history.confirmed.update(unit.publishes)
            run.history.gone.update(unit.acks)
        elif isinstance(error, QueueFull):
            run.history.refused.update(unit.publishes)
            unit.publishes.clear()
            unit.acks.clear()
            run.history.spare_again()

    transaction.commit(done)


def _give_up_in(run: Run, transaction: Transaction, consumer: Consumer, held: list[int], unit: Unit) -> None:
    """Let a transaction give back or reject one more delivery."""
    kind = run.rng.choice(["", "nack", "reject"])
    if not held or not kind:
        return
    seq = run.rng.choice(held)
    token = run.history.token(consumer.unsettled[seq].message, consumer.group)
    if kind == "nack":
        transaction.nack(consumer, [seq], run.rng.choice([None, 0, 100]), "no")
    else:
        transaction.reject(consumer, [seq], "bad")
    queue = consumer.queue
    assert isinstance(queue, LocalQueue)
    options = queue.options
    if (kind == "reject" or options.max_tries) and not options.dead_letter:
        unit.acks.append(token)
    else:
        run.history.live.pop(token, None)
