"""Publishes several messages atomically: a message in the quorum queue `cs/tx` commits them, a gateway publishes them.

A unit that is confirmed in `cs/tx` is on the disks of a majority, so it is certain to be carried out: the gateway that
consumes from `cs/tx` publishes the messages of the unit and only then settles it. If that gateway dies in between,
another one repeats all of it under the same numbers; so a message may be stored twice, but none is lost. A unit that is
not confirmed has published nothing.

If a queue is at its cap when a unit is carried out, it gets its message when it has room. Meanwhile all gateways commit
nothing more for the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError, MessageTooLarge, QueueFull
from curbstone.core.values import Done, ignore
from curbstone.rabbit.amqp.link import Link
from curbstone.rabbit.amqp.port import Arrived, Channel, Connection, Properties
from curbstone.rabbit.amqp.settling import Settling
from curbstone.rabbit.publishing.batch_runner import BatchRunner
from curbstone.rabbit.publishing.publisher import Outgoing
from curbstone.rabbit.publishing.unit import UNIT_BYTES_MAX, Addressed, Unit, decode, encode

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine

WINDOW = 100
"""How many units are carried out concurrently."""
AGAIN_MS = 500
APPLIED_MS_MAX = 5000
"""How long a commit waits at most for its messages to be published. They are published in any case."""
FULL_MS = 3000
TAKEN_MAX = 10_000
TAG = "tx"

logger = logging.getLogger("curbstone.rabbit")

_Taken = dict[int, None]
"""The last units delivered over one channel.

If a lost connection left a unit twice in the queue, it is carried out once. Units that are unsettled when the channel
ends are delivered again over the next channel, and count as new there.
"""


class _Begun:
    """A unit that this gateway has begun to commit."""

    __slots__ = ("is_known", "on_committed", "on_done")

    def __init__(self, on_committed: Done, on_done: Callable[[], None]) -> None:
        self.on_committed = on_committed
        self.on_done = on_done
        self.is_known = False
        """Whether `on_committed` was called."""

    def report(self, error: CurbstoneError | None) -> None:
        """Call `on_committed`, once."""
        if not self.is_known:
            self.is_known = True
            self.on_committed(error)


class Journal:
    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine = engine
        self._link = link
        self._is_started = False
        self._settling: Settling | None = None
        self._begun: dict[int, _Begun] = {}
        self._full: dict[str, int] = {}
        """Until when each queue is considered full, by its uid."""
        link.when(self._up, self._down)

    # --- committing

    def mark_full(self, uid: str) -> None:
        """Note that a queue is full."""
        self._full[uid] = self._engine.host.now_ms() + FULL_MS

    def begin(self, messages: list[Addressed], on_committed: Done, on_done: Callable[[], None]) -> None:
        """Publish messages atomically.

        `on_committed` is called once they are certain to be published, or with an error; `on_done` after that.
        """
        engine = self._engine
        refusal = self._refusal(messages)
        if refusal is not None:
            engine.host.call_soon(partial(on_committed, refusal))
            return
        number = engine.ids.take(1)
        body = encode(Unit(engine.rpc.address, number, messages))
        self._begun[number] = _Begun(on_committed, on_done)
        outgoing = Outgoing("", engine.names.transactions, Properties({}, f"tx-{number}"), body, True)
        engine.publisher.send(engine.names.transactions, outgoing, partial(self._confirmed, number))

    def _refusal(self, messages: list[Addressed]) -> CurbstoneError | None:
        """Return why messages can't be committed, or None. A queue is full while committed messages wait for it."""
        now_ms = self._engine.host.now_ms()
        full = next((each.name for each in messages if self._full.get(each.place, 0) > now_ms), None)
        if full is not None:
            return QueueFull(f"queue {full} is at its cap")
        size = sum(len(each.message.body) + len(each.message.headers) for each in messages)
        if size > UNIT_BYTES_MAX:
            return MessageTooLarge(
                f"on a cluster a transaction or batch has at most {UNIT_BYTES_MAX} bytes; this one has {size}"
            )
        return None

    def _confirmed(self, number: int, error: CurbstoneError | None) -> None:
        begun = self._begun.get(number)
        if begun is None:
            return  # the unit was carried out before its confirm
        if error is not None:
            del self._begun[number]
            if isinstance(error, QueueFull):
                error = QueueFull("too many transactions wait for queues that are at their cap")
            begun.report(error)
            return
        begun.report(None)
        wait_ms = 0 if self._engine.is_stopping else APPLIED_MS_MAX
        self._engine.host.call_later(wait_ms, partial(self.carried_out, number))

    def carried_out(self, number: int) -> None:
        """Note that a unit was carried out, or that nothing waits for it any more."""
        begun = self._begun.pop(number, None)
        if begun is not None:
            begun.report(None)
            begun.on_done()

    # --- the queue of committed units

    def start(self) -> None:
        """Begin to consume units from `cs/tx`, which exists now."""
        self._is_started = True
        if self._link.connection is not None:
            self._up(self._link.connection)

    def _up(self, connection: Connection) -> None:
        if not self._is_started or self._engine.is_stopping or self._link.connection is not connection:
            return

        def opened(channel: Channel) -> None:
            settling = self._settling = Settling(self._engine.host, channel)
            taken: _Taken = {}
            channel.on_cancelled(lambda _tag: channel.close(again))
            settling.set_window(WINDOW, ignore)
            channel.consume(self._engine.names.transactions, TAG, partial(self._arrived, settling, taken), ignore)

        def again(_error: object = None) -> None:
            self._engine.host.call_later(AGAIN_MS, partial(self._up, connection))

        connection.channel(opened, again)

    def _down(self, _reason: str) -> None:
        self._settling = None

    def _arrived(self, settling: Settling, taken: _Taken, arrived: Arrived) -> None:
        settling.delivered(arrived.tag)
        if self._engine.is_stopping:
            settling.give_back(arrived.tag)
            return
        try:
            unit = decode(arrived.body)
        except ValueError as error:
            logger.error("skipped a transaction that can't be decoded: %s", error)
            settling.ack(arrived.tag)
            return
        if unit.number in taken:
            settling.ack(arrived.tag)
            return
        taken[unit.number] = None
        if len(taken) > TAKEN_MAX:
            del taken[next(iter(taken))]
        self._begin(unit, settling, arrived.tag)

    def _begin(self, unit: Unit, settling: Settling, tag: int) -> None:
        """Carry out a unit once its queues are known. Another gateway may have just created one."""

        def stored() -> None:
            settling.ack(tag)
            self._notify_carried_out(unit)

        def caught_up(error: CurbstoneError | None) -> None:
            if error is None:
                runner.begin()
            else:
                self._engine.host.call_later(AGAIN_MS, look)

        def look() -> None:
            if settling.channel.is_open and not self._engine.is_stopping:  # otherwise the broker delivers it again
                self._engine.catch_up(caught_up)

        runner = BatchRunner(self._engine, unit, settling.channel, self._send_full, stored)
        if runner.has_all_queues:
            runner.begin()
        else:
            look()

    def _send_full(self, uid: str) -> None:
        self.mark_full(uid)
        self._engine.rpc.broadcast({"do": "full", "uid": uid})

    def _notify_carried_out(self, unit: Unit) -> None:
        rpc = self._engine.rpc
        number = rpc.number_of(unit.origin)
        if rpc.is_mine(unit.origin):
            self.carried_out(unit.number)
        elif number is not None:
            rpc.call(number, {"do": "carried out", "number": unit.number}, lambda _answer: None)

    # --- the end

    def stop(self) -> None:
        """Begin no more units, and stop waiting for units of other gateways."""
        settling = self._settling
        if settling is not None and settling.channel.is_open:
            settling.channel.cancel(TAG, ignore)
        for number, begun in list(self._begun.items()):
            if begun.is_known:
                self.carried_out(number)

    def close(self) -> None:
        """Send the last acks, and then close the channel. Units that were not carried out are requeued."""
        settling, self._settling = self._settling, None
        if settling is None or not settling.channel.is_open:
            return
        settling.flush()
        channel = settling.channel
        self._engine.closing(channel)
        channel.qos(1, lambda _error: channel.close(partial(self._engine.closed, channel)))
