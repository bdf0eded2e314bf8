"""Publishes that happen together: a message in the quorum queue `cs/tx` is the commit, and one gateway carries it out.

A unit that is confirmed there is on the disks of a majority, so it happens: whichever gateway has the queue publishes
its messages and only then settles it. Where that gateway dies between, another one does all of it again, under the same
numbers: a message may be stored twice, and none is left out. A unit that is not confirmed has published nothing.

A queue that is at its cap when a unit is carried out gets its message when it has room. Meanwhile all gateways know
that, and commit nothing more for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from curbstone.core.errors import CurbstoneError, MessageTooLarge, QueueFull
from curbstone.core.values import Done
from curbstone.rabbit.carrying import Carrying
from curbstone.rabbit.door import AmqpError, Arrived, Channel, Connection, Properties
from curbstone.rabbit.inside import Engine
from curbstone.rabbit.link import Link
from curbstone.rabbit.publisher import Parcel
from curbstone.rabbit.settling import Settling
from curbstone.rabbit.unit import UNIT_BYTES_MAX, Addressed, Unit, decode, encode

WINDOW = 100
"""Units that are carried out at once."""
AGAIN_MS = 500
APPLIED_MS_MAX = 5000
"""So long a commit waits until what is committed can be seen; it happens all the same."""
FULL_MS = 3000
TAKEN_MAX = 10_000
TAG = "tx"

logger = logging.getLogger("curbstone.rabbit")

_Taken = dict[int, None]
"""The last units that came over one channel: one that a lost connection left twice in the queue is carried out once.

What is not settled when the channel ends comes again over the next one, and is new there.
"""


class _Begun:
    """A unit of this gateway that is under way."""

    __slots__ = ("is_known", "on_committed", "on_done")

    def __init__(self, on_committed: Done, on_done: Callable[[], None]) -> None:
        self.on_committed = on_committed
        self.on_done = on_done
        self.is_known = False
        """Whether `on_committed` was called."""

    def known(self, error: CurbstoneError | None) -> None:
        """Tell whether it is committed, once."""
        if not self.is_known:
            self.is_known = True
            self.on_committed(error)


class Journal:
    """See the module's docstring."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine = engine
        self._link = link
        self._is_started = False
        self._settling: Settling | None = None
        self._begun: dict[int, _Begun] = {}
        self._full: dict[str, int] = {}
        """Until when it is thought so, by the uid of the queue."""
        link.when(self._up, self._down)

    # --- committing

    def mark_full(self, uid: str) -> None:
        """A queue has no room for what is committed."""
        self._full[uid] = self._engine.host.now_ms() + FULL_MS

    def begin(self, messages: list[Addressed], on_committed: Done, on_done: Callable[[], None]) -> None:
        """Publish these as a whole: `on_committed` says whether they will be; if so, `on_done` when they are."""
        engine = self._engine
        refusal = self._refusal(messages)
        if refusal is not None:
            engine.host.call_soon(partial(on_committed, refusal))
            return
        number = engine.numbers.take(1)
        body = encode(Unit(engine.inbox.address, number, messages))
        self._begun[number] = _Begun(on_committed, on_done)
        parcel = Parcel("", engine.names.transactions, Properties({}, f"tx-{number}"), body, True)
        engine.publisher.send(engine.names.transactions, parcel, partial(self._confirmed, number))

    def _refusal(self, messages: list[Addressed]) -> CurbstoneError | None:
        """Return why these can't be published as a whole, or None: what was committed already waits for room, too."""
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
            return  # it was carried out before its confirm came
        if error is not None:
            del self._begun[number]
            if isinstance(error, QueueFull):
                error = QueueFull("too many transactions wait for queues that are at their cap")
            begun.known(error)
            return
        begun.known(None)
        wait_ms = 0 if self._engine.is_stopping else APPLIED_MS_MAX
        self._engine.host.call_later(wait_ms, partial(self.carried_out, number))

    def carried_out(self, number: int) -> None:
        """A unit has been, or it is no longer waited for."""
        begun = self._begun.pop(number, None)
        if begun is not None:
            begun.known(None)
            begun.on_done()

    # --- the queue of what is committed

    def start(self) -> None:
        """The queue is there: take units from it."""
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
            settling.set_window(WINDOW, _ignore)
            channel.consume(self._engine.names.transactions, TAG, partial(self._arrived, settling, taken), _ignore)

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
            logger.error("a transaction is not understood, and left out: %s", error)
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
        """Carry out a unit, once its queues are known here: they may have been made elsewhere just now."""

        def stored() -> None:
            settling.ack(tag)
            self._tell_carried_out(unit)

        def caught_up(error: CurbstoneError | None) -> None:
            if error is None:
                carrying.begin()
            else:
                self._engine.host.call_later(AGAIN_MS, look)

        def look() -> None:
            if settling.channel.is_open and not self._engine.is_stopping:  # else it comes again, somewhere
                self._engine.catch_up(caught_up)

        carrying = Carrying(self._engine, unit, settling.channel, self._tell_full, stored)
        if carrying.knows_all:
            carrying.begin()
        else:
            look()

    def _tell_full(self, uid: str) -> None:
        self.mark_full(uid)
        self._engine.inbox.tell_all({"do": "full", "uid": uid})

    def _tell_carried_out(self, unit: Unit) -> None:
        inbox = self._engine.inbox
        number = inbox.number_of(unit.origin)
        if inbox.is_mine(unit.origin):
            self.carried_out(unit.number)
        elif number is not None:
            inbox.call(number, {"do": "carried out", "number": unit.number}, lambda _answer: None)

    # --- the end

    def stop(self) -> None:
        """Take no more, and wait no longer for what others carry out."""
        settling = self._settling
        if settling is not None and settling.channel.is_open:
            settling.channel.cancel(TAG, _ignore)
        for number, begun in list(self._begun.items()):
            if begun.is_known:
                self.carried_out(number)

    def close(self) -> None:
        """Hand over the last acks, and end the channel behind them; units that are not carried out go back."""
        settling, self._settling = self._settling, None
        if settling is None or not settling.channel.is_open:
            return
        settling.flush()
        channel = settling.channel
        self._engine.closing(channel)
        channel.qos(1, lambda _error: channel.close(partial(self._engine.closed, channel)))


def _ignore(_error: AmqpError | None) -> None:
    """A channel that ends says so elsewhere."""
