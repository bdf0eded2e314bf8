"""SEND: converts frames to messages, and collects them, so that each read publishes once to each queue.

Clients repeat the same head. So the interpreted head is kept as a `SendPlan`, which the parser returns with each frame
that has this head.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from curbstone.access.rights import Right
from curbstone.core import batches
from curbstone.core import headers as blocks
from curbstone.core.errors import CurbstoneError
from curbstone.core.masks import is_mask
from curbstone.core.message import Message
from curbstone.core.names import QueueName, reply_address
from curbstone.core.orders import NAMES, PRIORITY, Orders, orders_of, with_flags
from curbstone.core.values import Numbered
from curbstone.stomp import arguments, extensions, frames, header_values, producer_sequence, temp_queues
from curbstone.stomp.codec import V10, Head
from curbstone.stomp.destinations import TEMP_PREFIX, Destination, Kind
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.session_state import SessionState
from curbstone.stomp.targets import Target, Targets
from curbstone.stomp.unsupported import HEADERS, check_headers

if TYPE_CHECKING:
    from curbstone.access.producer_claims import ProducerClaims

SERVER_HEADERS = frozenset(
    ["subscription", "message-id", "destination", "ack", "content-length"]
    + ["timestamp", "redelivered", "x-tries", "x-mature"]
)
"""Headers of a MESSAGE that only the server sets."""

DELAY = "AMQ_SCHEDULED_DELAY"
"""ActiveMQ's name for `x-delta-t`."""

ORDERING_KEYS = (blocks.KEY, "JMSXGroupID")
"""The headers for an ordering key, ours and ActiveMQ's. Messages with the same key are delivered one at a time, in
order."""

KEY = "idempotency-key"
"""The header for an idempotency key: a SEND that is repeated with the same key is stored once."""

NOT_STORED = (
    SERVER_HEADERS | {"receipt", "transaction", "x-http-charset"} | {"x-delta-t", "x-next-t", "x-ks-groups", DELAY, KEY}
)
"""Headers of a SEND that are not stored with the message: those that the server sets, instructions to the server, and
the gateway's own."""

_ORDERS = (
    frozenset(
        [
            "x-delta-t",
            "x-next-t",
            "x-ks-groups",
            DELAY,
            KEY,
            PRIORITY,
            *NAMES,
            *batches.HEADERS,
            *header_values.TTL,
            producer_sequence.PRODUCER,
            *ORDERING_KEYS,
        ]
    )
    | HEADERS
    | arguments.OF_SEND
)
"""Headers of a SEND that are instructions, or are refused. Most SENDs have none of them."""

_ONCE = ("x-next-t", "expires", KEY, batches.BATCH_TO)
"""Headers whose value differs in each frame: a point in time, a key, or a queue for which a right is needed. The plan
of such a head is not kept."""

_ALIAS_LINE = re.compile(rb"^JMSXGroupID:(.*)$", re.MULTILINE)
_DEAD_PREFIX = "x-dead-"
_DESTINATIONS_MAX = 2048


class SendPlan:
    """The interpreted head of a SEND."""

    __slots__ = ("block", "is_aliased", "key", "numbers", "orders", "target", "transaction")

    def __init__(
        self,
        head: Head,
        varied: bytes,
        target: Target,
        rest: bytes,
        orders: Orders | None = None,
        key: str = "",
        key_line: bytes = b"",
    ) -> None:
        """`rest` are the lines to store without those that vary; `key_line` is stored in addition."""
        self.numbers: producer_sequence.SequenceHeaders | None = None
        self.target = target
        self.is_aliased = bool(key_line) and _ALIAS_LINE.search(varied) is not None
        """Whether a line that varies has an ordering key under ActiveMQ's name, which is stored under ours, too."""
        self.block = rest if self.is_aliased else rest + key_line
        """The lines to store of a frame without those that vary; see `block_with`."""
        self.orders = orders
        self.transaction = head.headers.get("transaction")
        self.key = key
        """The idempotency key; empty if there is none."""

    def block_with(self, varied: bytes) -> bytes:
        """Return the block of a frame with these lines that vary."""
        block = self.block + varied
        if self.is_aliased and (alias := _ALIAS_LINE.search(varied)) is not None:
            block += blocks.encode([(blocks.KEY, alias[1].decode())])
        return block

    def message(self, varied: bytes, body: bytes) -> Message:
        """Return the message of a frame with these lines that vary and this body."""
        return Message(body, self.block_with(varied), self.orders)


class Publisher:
    """Publishes a session's messages. `flush` hands the collected messages to the engine, in order for each queue."""

    def __init__(self, connection: SessionState) -> None:
        self._connection = connection
        self._targets = Targets()
        self._destinations: dict[str, Target] = {}
        self.opened: list[Target] = []
        """The targets that have collected messages."""
        self._producing: ProducerClaims | None = None
        self.has_numbers = False
        """Whether this connection has sent a message as a numbered producer."""

    def plan(self, head: Head, varied: bytes) -> SendPlan:
        """Return the plan for a SEND's head and its lines that vary; raise ProtocolError.

        The head keeps it if later frames can use it, too.
        """
        plan, lasting = self._plan(head.having(varied), varied)
        if lasting and plan.transaction is None:
            head.plan = plan
        return plan

    def _plan(self, head: Head, varied: bytes) -> tuple[SendPlan, bool]:
        """Return a plan, and whether it holds for all frames with this head that are not in a transaction."""
        headers = head.headers
        destination = header_values.required(head, "destination")
        target = self._destinations.get(destination)
        if target is None:
            target = self._target(destination)
        if headers.keys().isdisjoint(_ORDERS):
            return SendPlan(head, varied, target, self._block(head, varied)), True
        check_headers(head, target.destination.shown_kind)
        if has_arguments := not arguments.OF_SEND.isdisjoint(headers):
            arguments.apply(self._connection, head, target.destination)
        delay = header_values.delay_ms(head, self._connection.wall_ms)
        if delay is None:
            delay = header_values.number(head, DELAY, 0, header_values.DURATION_MS_MAX)
        orders = orders_of(
            delay_ms=delay or 0,
            ttl_ms=header_values.ttl_ms(head, self._connection.wall_ms) or 0,
            groups=header_values.groups(head, "x-ks-groups"),
            level=header_values.priority(head),
        )
        key, numbers = self._key(head, target.destination), None
        if producer_sequence.PRODUCER in headers and extensions.NUMBERS in self._connection.extensions:
            if key:
                raise ProtocolError(f"a SEND can't have both {producer_sequence.PRODUCER} and {KEY}", head.lines[KEY])
            target, numbers = self._numbered(head, target.destination)
        key_line = header_values.ordering_key(head, *ORDERING_KEYS)
        if flags := header_values.flags(head):
            orders = with_flags(orders, flags)
        plan = SendPlan(head, varied, target, self._block(head, varied), orders, key, key_line)
        plan.numbers = numbers
        return plan, not has_arguments and numbers is None and headers.keys().isdisjoint(_ONCE)

    @staticmethod
    def _key(head: Head, destination: Destination) -> str:
        """Return the idempotency key of a SEND, or an empty string; raise ProtocolError."""
        key = head.headers.get(KEY)
        if key is None:
            return ""
        if not key:
            raise ProtocolError(f"{KEY} must not be empty", head.lines[KEY])
        if destination.kind is not Kind.QUEUE or destination.private or "transaction" in head.headers:
            raise ProtocolError(
                f"{KEY} is for a SEND outside of transactions to a queue that outlives the connection",
                head.lines[KEY],
            )
        return key

    def add(self, plan: SendPlan, receipt: bytes | None, message: Message) -> None:
        """Collect one message. `Session._carry_out` has an inlined copy for the most frequent case."""
        target = plan.target
        if message.orders is not None and message.orders.batched:
            try:
                self._connection.access.check_batches(target.name, [message])
            except CurbstoneError as error:
                self.flush()
                self._connection.refuse(error, [receipt])
                return
        if not target.messages:
            self.opened.append(target)
        if plan.numbers is not None:
            target.numbers[len(target.messages)] = plan.numbers
        target.messages.append(message)
        target.receipts.append(receipt)

    def publish_once(self, plan: SendPlan, receipt: bytes | None, message: Message) -> None:
        """Publish a message with an idempotency key, by itself. The caller has flushed what was collected before."""
        try:
            self._connection.access.check_batches(plan.target.name, [message])
            _Run(self._connection, plan.target, [message], [receipt], plan.key)
        except CurbstoneError as error:
            self._connection.refuse(error, [receipt])

    def holds(self, name: QueueName) -> bool:
        """Return whether messages for this queue are collected."""
        return any(target.name == name for target in self.opened)

    def flush(self) -> None:
        """Publish the collected messages; drop them if the connection is ending."""
        opened, self.opened = self.opened, []
        for target in opened:
            messages, target.messages = target.messages, []
            receipts, target.receipts = target.receipts, []
            if self._connection.ending:
                continue
            if target.producer:
                self._flush_numbered(target, messages, receipts)
                continue
            try:
                _Run(self._connection, target, messages, receipts)
            except CurbstoneError as error:
                self._connection.refuse(error, receipts)

    def close(self) -> None:
        """Release the numbered producers: the connection is ending."""
        if self._producing is not None:
            self._producing.release()

    def _numbered(
        self, head: Head, destination: Destination
    ) -> tuple[Target, producer_sequence.SequenceHeaders | None]:
        """Return the target of a numbered producer's SEND, and the number in its head."""
        numbers = producer_sequence.sequence_headers(head, destination)
        connection = self._connection
        producer = connection.access.producer(head.headers[producer_sequence.PRODUCER])
        if self._producing is None:
            self._producing = connection.access.producing(connection.fail)
            self.has_numbers = True
        return self._targets.get(destination, producer), numbers

    def _flush_numbered(self, target: Target, messages: list[Message], receipts: list[bytes | None]) -> None:
        numbers, target.numbers = target.numbers, {}
        try:
            self._claim(target)
            for run in producer_sequence.runs_of(target.producer, messages, receipts, numbers):
                try:
                    _Run(self._connection, target, run.messages, run.receipts, numbered=run.numbered)
                except CurbstoneError as error:
                    self._connection.refuse(error, run.receipts)
        except ProtocolError as error:
            self._connection.fail(error)

    def _claim(self, target: Target) -> None:
        """Make this connection the only one that publishes as this producer; raise ProtocolError if it has too many.

        A client without the right to send to the queue claims nothing, so that it can't end another client's
        connection; its messages are refused when they are published.
        """
        connection, producing = self._connection, self._producing
        assert producing is not None
        if producing.holds(target.producer, target.name) or not connection.access.may(Right.SEND, target.name):
            return
        if producing.count >= connection.limits.producers_max:
            raise ProtocolError(f"a connection has at most {connection.limits.producers_max} numbered producers")
        producing.claim(target.producer, target.name)

    def _target(self, destination: str) -> Target:
        parsed = self._connection.destination(destination)
        if parsed.kind is Kind.COUNT:
            raise ProtocolError("a count is for SUBSCRIBE; send to the queue itself", f"destination:{destination}")
        if parsed.kind is Kind.TOPIC and is_mask(parsed.event):
            raise ProtocolError(
                "a topic with wildcards is for SUBSCRIBE; send to one event", f"destination:{destination}"
            )
        target = self._targets.get(parsed)
        if len(self._destinations) >= _DESTINATIONS_MAX:
            self._destinations.clear()
        self._destinations[destination] = target
        return target

    def _block(self, head: Head, varied: bytes) -> bytes:
        """Return the header lines to store, without those that vary.

        Lines of 1.2 are stored unchanged: the store has the same encoding.
        """
        not_stored = NOT_STORED
        if varied:
            not_stored = not_stored.union([line.partition(b":")[0].decode() for line in varied.splitlines()])
        if producer_sequence.PRODUCER in head.headers and extensions.NUMBERS in self._connection.extensions:
            not_stored = not_stored.union(producer_sequence.HEADERS)
        lines = [line for name, line in head.lines.items() if name not in not_stored]
        lines.append(b"")
        block = b"\n".join(lines)
        reply_to = head.headers.get("reply-to", "")
        temporary = reply_to.startswith(TEMP_PREFIX)
        if not temporary and self._connection.version != V10 and b"\r" not in block and b"-dead-" not in block.lower():
            return block
        pairs = {
            name: value
            for name, value in head.headers.items()
            if name not in not_stored and not name.lower().startswith(_DEAD_PREFIX)
        }
        if temporary:
            # The stored address allows the replying connection to send to this queue only.
            named = self._connection.destination(reply_to)
            if named.private:
                self._connection.on_reply_to(reply_to, named.queue)
            pairs["reply-to"] = reply_address(named.queue) if named.private else f"/queue/{named.queue}"
        return blocks.encode(pairs.items())


class _Run:
    """The messages of one read for one target, until they are on disk and their RECEIPTs are sent."""

    __slots__ = (
        "_bytes", "_connection", "_done", "_is_sent", "_messages", "_numbered", "_prepared", "_receipts", "_uid",
    )  # fmt: skip

    def __init__(
        self,
        connection: SessionState,
        target: Target,
        messages: list[Message],
        receipts: list[bytes | None],
        key: str = "",
        numbered: Numbered | None = None,
    ) -> None:
        self._connection = connection
        self._numbered = numbered
        self._messages = messages
        self._receipts = receipts
        self._uid = ""
        self._done = 0
        self._prepared = b""
        """The RECEIPTs, if `prepare` has encoded them."""
        self._is_sent = False
        # Headers and receipts count too: they also use memory, and may be larger than the bodies.
        size = 0
        for message, receipt in zip(messages, receipts, strict=True):
            size += len(message.body) + len(message.headers)
            if receipt is not None:
                size += len(receipt)
        self._bytes = size
        connection.traffic.published += len(messages)
        connection.charge(len(messages), size)
        if self._publish(target, messages, key):
            connection.unconfirmed.add(len(messages), size)
        elif asked := [receipt for receipt in receipts if receipt is not None]:
            connection.write(frames.receipts(asked))

    def _publish(self, target: Target, messages: list[Message], key: str) -> bool:
        """Hand the messages to the engine; return False if they are a reply and the requester is gone."""
        access = self._connection.access
        destination = target.destination
        if not destination.private:
            # Looked up each time, because the queue may have been deleted; STOMP creates a queue on use.
            queue = access.ensure(target.name, Right.SEND)
            if extensions.IDS in self._connection.extensions:
                self._uid = queue.uid
            once = access.key(key, messages) if key else None
            early = self if once is None and self._numbered is None else None
            queue.publish(messages, self._published, key=once, numbered=self._numbered, early=early)
        elif destination.kind is Kind.TOPIC:
            access.publish_event(destination.event, messages, self._published)
        elif destination.kind is Kind.REPLY:
            return access.reply(target.name, messages, self._published)
        else:
            temp_queues.make(self._connection, target.name).publish(messages, self._published)
        return True

    def prepare(self, first_seq: int) -> None:
        """Encode the RECEIPTs; see `core.values.EarlyAnswer`."""
        self._prepared = self._encode(self._receipts, first_seq, 0)

    def send(self) -> None:
        if self._prepared:
            self._is_sent = self._connection.send_at_once(self._prepared)

    def _encode(self, receipts: list[bytes | None], first_seq: int, first: int) -> bytes:
        """Return the requested RECEIPTs of messages that are on disk, from the place `first` on."""
        asked = [receipt for receipt in receipts if receipt is not None]
        if not asked:
            return b""
        if len(receipts) == 1 and (message := self._messages[first]).orders is not None and message.is_duplicate:
            return extensions.duplicate(asked[0], self._uid, first_seq)
        if self._numbered is not None and not first_seq:
            return extensions.repeats(asked)
        return extensions.receipts_with_ids(receipts, self._uid, first_seq) if self._uid else frames.receipts(asked)

    def _published(self, error: CurbstoneError | None, first_seq: int, count: int) -> None:
        """Act on the outcome of the next `count` messages."""
        connection = self._connection
        first = self._done
        self._done += count
        mine = self._receipts if count == len(self._receipts) else self._receipts[first : first + count]
        if error is not None:
            connection.refuse(error, mine)
        else:
            connection.traffic.confirmed += count
            if not (self._is_sent or connection.lost):
                receipts = self._prepared or self._encode(mine, first_seq, first)
                if receipts:
                    connection.write(receipts)
        size = 0
        if self._done >= len(self._receipts):
            size, self._bytes = self._bytes, 0
        connection.confirmed(count, size)
