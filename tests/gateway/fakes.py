"""Stand-ins for tests of sessions: a wire that keeps what it is given, a queue that does as it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from curbstone.access.ack_ids import Holder
from curbstone.access.authorization import AuthorizedBroker
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, StaleDelivery
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, queue_name
from curbstone.core.options import QueueOptions
from curbstone.core.stats import Stats
from curbstone.core.values import UNKNOWN, ClientInfo, EarlyAnswer, IdempotencyKey, Numbered
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.login import SocketLogin
from curbstone.gateway.websocket.session import Session

Sent = str | bytes


def text(data: str = "") -> Inbound:
    """A text message from the peer."""
    return Inbound(True, data.encode())


def binary(data: bytes = b"") -> Inbound:
    """A binary message from the peer."""
    return Inbound(False, data)


class Anybody(SocketLogin):
    """A login that never ends."""

    def __init__(self, name: str = "k") -> None:
        """`name` is what its ackIds begin with."""
        self._name = name

    @property
    def meter(self) -> None:
        """See `SocketLogin`."""

    @property
    def client_info(self) -> ClientInfo:
        return UNKNOWN

    def begin(self, fail: Callable[[CurbstoneError], None], unacked: Callable[[], int] = lambda: 0) -> None:
        """See `SocketLogin`."""

    def leave(self) -> None:
        """See `SocketLogin`."""

    def hold(self, holder: Holder) -> str:
        return self._name

    def detach(self, name: str) -> None:
        """See `SocketLogin`."""

    def holding(self, ack_id: str) -> None:
        """See `SocketLogin`."""


ANYBODY = Anybody()


class Allowed:
    """What a client may do that is allowed everything, in the place of an `AuthorizedBroker`."""

    def check_batches(self, name: QueueName, messages: Sequence[Message]) -> None:
        """Everything is allowed."""


def anything() -> AuthorizedBroker:
    """Return what a client may do."""
    return cast(AuthorizedBroker, Allowed())


class FakeWire:
    """Keeps what a session sends; `code` is set once it is closed."""

    def __init__(self, session: Session) -> None:
        self._client = Protocol(Side.CLIENT, state=State.OPEN, max_size=None)
        self._session = session
        self.code: int | None = None
        self.is_held = False
        session.start(self)

    def send(self, frames: bytes) -> None:
        if self.code is None:
            self._client.receive_data(frames)

    def at_flush(self, fn: Callable[[], None], more_bytes: int = 0) -> None:
        fn()

    def limit_unsent(self, bytes_max: int) -> None:
        """See `net.websocket_port.WebSocketPort`."""

    def close(self, code: int, reason: str = "") -> None:
        if self.code is None:
            self.code = code
            self._session.closed()

    def keeps(self, size: int) -> None:
        self.kept_bytes = size

    def pause(self) -> None:
        self.is_held = True

    def resume(self) -> None:
        self.is_held = False

    def take(self) -> list[Sent]:
        """What was sent since the last call: str for text messages, bytes for binary ones."""
        frames = [event for event in self._client.events_received() if isinstance(event, Frame)]
        assert self._client.parser_exc is None
        return [bytes(f.data).decode() if f.opcode is Opcode.TEXT else bytes(f.data) for f in frames]

    def take_json(self) -> list[Any]:
        """What was sent, text messages as the JSON they hold."""
        return [orjson.loads(item) if isinstance(item, str) else item for item in self.take()]


class FakeConsumer:
    """Records what is settled; unknown seqs are stale."""

    def __init__(self, deliver: Callable[[list[Delivery]], None], on_closed: Callable[[CurbstoneError], None]) -> None:
        self.deliver = deliver
        self.on_closed = on_closed
        self.calls: list[tuple[Any, ...]] = []
        self.unsettled: dict[int, Delivery] = {}

    def give(self, *deliveries: Delivery) -> None:
        self.unsettled.update({delivery.message.seq: delivery for delivery in deliveries})
        self.deliver(list(deliveries))

    def ack(self, seqs: Sequence[int], on_done: object = None) -> None:
        self._settle(seqs, ("ack", list(seqs)))

    def nack(self, seqs: Sequence[int], delay_ms: int | None = None, error: str = "", on_done: object = None) -> None:
        self._settle(seqs, ("nack", list(seqs), delay_ms, error))

    def reject(self, seqs: Sequence[int], error: str = "", on_done: object = None) -> None:
        self._settle(seqs, ("reject", list(seqs), error))

    def _settle(self, seqs: Sequence[int], call: tuple[Any, ...]) -> None:
        if not set(seqs) <= set(self.unsettled):
            raise StaleDelivery("not unsettled")
        for seq in seqs:
            del self.unsettled[seq]
        self.calls.append(call)

    def hold(self) -> None:
        self.calls.append(("hold",))

    def resume(self) -> None:
        self.calls.append(("resume",))

    def pause(self) -> None:
        self.calls.append(("pause",))

    def close(self) -> None:
        self.calls.append(("close",))


class FakeQueue:
    """Takes messages; the test says what becomes of them."""

    def __init__(self) -> None:
        self.name = queue_name("q", "p")
        self.options = QueueOptions(max_message_size=1000)
        self.is_closed = False
        self.stats = Stats()
        self.published: list[list[Message]] = []
        self.done: list[Callable[[CurbstoneError | None, int, int], None]] = []
        self.watchers: list[Callable[[], None]] = []
        self.consumers: list[FakeConsumer] = []
        self.subscribed: dict[str, Any] = {}

    @property
    def queue(self) -> LocalQueue:
        """The fake as what it stands for."""
        return cast(LocalQueue, self)

    def message_id(self, seq: int) -> str:
        return f"uid-{seq}"

    def publish(
        self,
        messages: list[Message],
        on_done: Callable[[CurbstoneError | None, int, int], None],
        *,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
        early: EarlyAnswer | None = None,
    ) -> None:
        """Keep the messages and the callback."""
        assert key is None and numbered is None
        self.published.append(messages)
        self.done.append(on_done)

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        self.watchers.append(fn)
        return lambda: self.watchers.remove(fn)

    def subscribe(
        self, deliver: Callable[[list[Delivery]], None], *, on_closed: Callable[[CurbstoneError], None], **options: Any
    ) -> FakeConsumer:
        self.subscribed = options
        self.consumers.append(FakeConsumer(deliver, on_closed))
        return self.consumers[-1]


def delivery(seq: int, body: bytes = b"body", block: bytes = b"", tries: int = 0) -> Delivery:
    """A delivery of a message with that seq."""
    message = Message(body, block)
    message.seq = seq
    message.timestamp_ms = 1_700_000_000_000
    return Delivery(message, tries, 0)
