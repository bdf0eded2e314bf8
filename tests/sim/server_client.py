"""What the simulated clients of all protocols share: a socket, requests that wait for answers, deliveries in hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Protocol

from tests.sim.history import Violation
from tests.sim.server_history import Copy, History, Received, Sent
from tests.sim.server_net import SimLoop, SimSocket

EVERYTHING = 1 << 30
VALUES = ("1", "a:b", "\u00fc", "back\\slash", "two words")
ALLOWED = (
    *("too little room", "settles more than", "can't", "never fit", "disk", " failed: "),
    *("shutting down", "is stopping", "took too long", "within"),
)
"""Words of errors that a client may get who keeps all rules: the queue is full, the disk fails, the server stops."""
FINAL = ("too little room", "settles more than", "can't fit", "never fit")
"""Words of those that say that nothing was stored, and nothing will be."""


class World(Protocol):
    """What clients know of the run they are in."""

    rng: Random
    history: History
    loop: SimLoop
    queues: list[str]
    groups: list[tuple[str, ...]]
    readers: list[str]
    max_size: int
    high: int
    steps_done: int
    can_expire: bool

    def note(self, text: str) -> None:
        """Add a line to the trace."""


class ClientConsumer:
    """A consumer as its client sees it: what it was given and has not settled."""

    def __init__(self, client: Client, name: str, queue: str, group: str, window: int) -> None:
        self._client = client
        self._socket = client.socket
        self.name = f"{client.name}/{name}"
        self.queue = queue
        self.group = group
        self.window = window
        self.last: dict[str, int] = {}
        self.held: dict[str, Copy] = {}
        """By the id that settles it, in the order of delivery."""
        self.is_busy = False
        """Whether an open transaction settles some of it."""

    @property
    def holds(self) -> bool:
        return self._client.socket is self._socket and self._socket is not None and self._socket.serves

    def take(self, key: str, received: Received) -> None:
        """Take a delivery that is to be settled under this key; "" for one that is settled already."""
        history = self._client.world.history
        copy = history.receive(self, received)
        if not key:
            history.live.pop(copy, None)
            return
        if key in self.held:
            raise Violation(f"{self.name} was given {copy} twice under {key}")
        self.held[key] = copy
        if len(self.held) > self.window:
            raise Violation(f"{self.name} holds {len(self.held)}, its window is {self.window}")

    def release_dropped(self, keys: list[str]) -> list[Copy]:
        """Settle these: they are in hands no more. Return what they were."""
        live = self._client.world.history.live
        copies = [self.held.pop(key) for key in keys]
        for copy in copies:
            live.pop(copy, None)
        return copies


class Client(ABC):
    """One client in its slot: connects when it has to, acts when told to, reads what comes."""

    PORT: ClassVar[int]
    ACTS: ClassVar[dict[str, int]]
    """The names of what it can do, and how often it does so."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.socket: SimSocket | None = None
        self.pending: dict[str, Callable[[], Any]] = {}
        """Requests that were not answered yet."""
        self._input = bytearray()
        self._count = 0
        self._places: dict[str, int] = {}
        self._lives = 0
        self.is_leaving = False

    @property
    def rng(self) -> Random:
        return self.world.rng

    @property
    def history(self) -> History:
        return self.world.history

    # --- what a protocol adds

    @abstractmethod
    def begin(self) -> None:
        """Send what comes first on a connection."""

    @abstractmethod
    def feed(self, data: bytearray) -> None:
        """Take what is whole off the front of what was read."""

    @abstractmethod
    def forget(self) -> None:
        """The connection is gone."""

    # --- steps

    def step(self, act: str) -> None:
        """Do one thing; connect first where there is no connection."""
        if self.socket is None:
            self.connect()
            if self.socket is None:
                return
        if not self.is_leaving or act in ("die", "end"):
            getattr(self, "do_" + act)()

    def connect(self) -> None:
        if self.PORT not in self.world.loop.factories:
            return
        self._lives += 1
        self._places.clear()
        self.socket = SimSocket(self.world.loop, self.PORT, self.world.high)
        self.begin()

    def say(self, data: bytes, count: int = 1) -> None:
        assert self.socket is not None
        self.world.steps_done += count
        self.socket.send(data)

    def do_die(self) -> None:
        self.world.note(f"{self.name} dies")
        assert self.socket is not None
        if self.rng.random() < 0.5:
            self.socket.push(self.rng.randrange(1, 200))
        self.socket.die()
        self.gone()

    def do_end(self) -> None:
        self.world.note(f"{self.name} sends no more")
        assert self.socket is not None
        self.is_leaving = True
        self.socket.end()

    def next_id(self) -> str:
        self._count += 1
        return f"{self.name}.{self._count}"

    def message(self, queue: str, *, plain: bool = False, ordered: bool = True, named: bool = True) -> Sent:
        """Return a new message; `named`: whether it may have a header."""
        rng = self.rng
        fields = {rng.choice(("x-msg-x-n", "x-n")): rng.choice(VALUES)} if named and rng.random() < 0.4 else {}
        sent = self.history.new(queue, rng.randrange(8, self.world.max_size), fields, plain=plain)
        if ordered:
            sent.producer = f"{self.name}.{self._lives}"
            sent.place = self._places[queue] = self._places.get(queue, 0) + 1
        return sent

    def options(self, sent: Sent) -> None:
        """Give a message groups, a delay or an end, now and then."""
        rng = self.rng
        sent.groups = rng.choice(self.world.groups) or sent.groups
        dice = rng.random()
        if dice < 0.1:
            sent.delay_ms = rng.choice((50, 3000))
        elif dice < 0.15 and self.world.can_expire:
            sent.ttl_ms = rng.choice((1000, 20_000))
            self.history.doom(sent.copies)

    def check_error(self, text: str) -> bool:
        """Return whether a refusal is final for want of room; raise Violation where it had no reason."""
        if not any(word in text for word in ALLOWED):
            raise Violation(f"{self.name} was refused: {text}")
        return any(word in text for word in FINAL)

    # --- bytes

    def pump(self) -> None:
        """Let some bytes move, both ways."""
        socket = self.socket
        if socket is None:
            return
        rng = self.rng
        if socket.can_push and rng.random() < 0.8:
            socket.push(rng.choice((7, 100, EVERYTHING, EVERYTHING)))
        if (socket.unread or socket.is_over) and rng.random() < 0.7:
            self.read(rng.choice((50, EVERYTHING, EVERYTHING)))

    def flow(self) -> bool:
        """Let all bytes move; return whether any did."""
        socket = self.socket
        if socket is None:
            return False
        moved = socket.can_push or socket.unread > 0 or socket.is_over
        socket.push(EVERYTHING)
        self.read(EVERYTHING)
        return moved

    def read(self, most: int) -> None:
        socket = self.socket
        assert socket is not None
        data = socket.read(most)
        if data:
            self._input += data
            self.feed(self._input)
        if self.socket is socket and socket.is_over:
            self.socket.end()
            self.gone()

    def gone(self) -> None:
        self.forget()
        self.socket = None
        self.is_leaving = False
        self.pending.clear()
        self._input.clear()
