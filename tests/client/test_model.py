"""The client's core against a small server, by chance: connections that come and go, queues that are full, slow
answers.

Held: each publish ends once, with what the server did; what is stored was sent, and twice only where the client says
so: where the server keeps numbers it is stored once, in order, and what was refused is not there; no settling names a
delivery of another connection; the window is kept; what is acked was delivered and stays so.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from curbstone_client.address import parse
from curbstone_client.consuming import Consumer, Subscription
from curbstone_client.errors import QueueFull, Stale, TooLarge
from curbstone_client.link import Link
from curbstone_client.message import BaseMessage
from curbstone_client.outcome import Outcome
from curbstone_client.publishing import Confirm, Publisher
from tests.client.fake_server import Connection, FakeServer

QUEUES = ["/queue/p/a", "/queue/p/b"]
STEPS = 400
WINDOW = 20
PREFETCH = 5


class World:
    """A client's core, its server, and the wire between them."""

    def __init__(self, seed: int, waits_when_full: bool, has_numbers: bool, producer: str | None = None) -> None:
        self.dice = random.Random(seed)
        self.waits = waits_when_full
        self.now = 0.0
        self.server = FakeServer(self.dice, 12, has_numbers)
        out, into = (Link([parse("stomp://server")]) for _ in range(2))
        self.links: dict[Link, Connection | None] = {out: None, into: None}
        self.publisher = Publisher(out, Confirm, waits_when_full=waits_when_full, window=WINDOW, producer=producer)
        self.seqs = dict.fromkeys(QUEUES, 0) if producer else None
        """The last number the application gave, by queue, where it numbers its messages; with gaps."""
        self.consumer = Consumer(into, BaseMessage, Outcome)
        out.role = self.publisher
        into.role = self.consumer
        self.sent: dict[str, list[tuple[bytes, Confirm]]] = {queue: [] for queue in QUEUES}
        self.ended: Counter[int] = Counter()
        self.subscriptions = [self.consumer.subscribe(queue, PREFETCH) for queue in QUEUES]
        self.in_hand: list[BaseMessage[Any]] = []
        self.acks: list[tuple[str, str, Outcome]] = []

    def publish(self) -> None:
        if not self.publisher.has_room:
            return
        queue = self.dice.choice(QUEUES)
        number = len(self.sent[queue])
        loud = b"!" if self.dice.random() < 0.1 else b""
        seq = None
        if self.seqs is not None:
            seq = self.seqs[queue] = self.seqs[queue] + self.dice.choice((1, 1, 2, 7))
        confirm = self.publisher.send(self.publisher.series(queue), b"%d" % number + loud, seq=seq)
        self.sent[queue].append((b"%d" % number + loud, confirm))
        assert self.publisher.unconfirmed <= WINDOW

        def ended() -> None:
            self.ended[confirm.order] += 1

        confirm.on_done(ended)

    def connect(self, link: Link) -> None:
        if self.links[link] is None:
            self.links[link] = self.server.open()
            link.opened(None, self.now)

    def lose(self, link: Link) -> None:
        connection = self.links[link]
        if connection is not None:
            # Of what lies in the wire some arrives, on both sides.
            self.server.turn(connection)
            self.server.lose(connection)
            self.links[link] = None
            assert 0 < link.lost("gone", self.now) <= 5

    def move(self, link: Link) -> None:
        connection = self.links[link]
        if connection is None:
            return
        self.server.take(connection, link.take_output())
        self.server.turn(connection)
        cut = self.dice.randrange(len(connection.outbound) + 1)
        data, connection.outbound = connection.outbound[:cut], connection.outbound[cut:]
        if data:
            link.receive(data, self.now)
        assert link.failure is None

    def consume(self) -> None:
        for subscription in self.subscriptions:
            assert len(subscription.inbox) <= PREFETCH
            if subscription.inbox:
                self.in_hand.append(subscription.inbox.popleft())

    def settle(self) -> None:
        if not self.in_hand:
            return
        message = self.in_hand.pop(self.dice.randrange(len(self.in_hand)))
        was_stale = message.is_stale
        try:
            if self.dice.random() < 0.8:
                outcome = self.consumer.ack(message)
                self.acks.append((_queue(message.subscription), message.id, outcome))
            else:
                self.consumer.nack(message, 0, "again")
        except Stale:
            assert was_stale
        else:
            assert not was_stale

    def step(self) -> None:
        link = self.dice.choice(list(self.links))
        self.now += 0.05
        chance = self.dice.random()
        if chance < 0.05:
            self.lose(link)
        elif chance < 0.15:
            self.connect(link)
        elif chance < 0.35:
            self.publish()
        elif chance < 0.5:
            self.consume()
        elif chance < 0.65:
            self.settle()
        else:
            self.move(link)
        if self.now >= link.due:
            link.tick(self.now)

    def finish(self) -> None:
        """Let all that is under way come to its end."""
        for _ in range(20_000):
            if not self.publisher.unconfirmed and not any(self.server.ready.values()) and not self.in_hand:
                break
            for link in self.links:
                self.connect(link)
                self.move(link)
                self.now += 0.05
                if self.now >= link.due:
                    link.tick(self.now)
            self.consume()
            self.settle()
        for _ in range(50):
            for link in self.links:
                self.move(link)


def _queue(subscription: Subscription) -> str:
    return subscription.destination


def check(world: World) -> None:
    for queue in QUEUES:
        stored = world.server.stored.get(queue, [])
        copies = Counter(stored)
        if world.server.keeps_numbers:
            expected = [body for body, confirm in world.sent[queue] if confirm.error is None]
            assert stored == expected
        for body, confirm in world.sent[queue]:
            assert confirm.done
            assert world.ended[confirm.order] == 1
            if confirm.error is not None:
                kinds = (TooLarge,) if world.waits else (TooLarge, QueueFull)
                assert isinstance(confirm.error, kinds)
                assert copies[body] == 0 or confirm.resent
            else:
                assert copies[body] == 1 or (copies[body] > 1 and confirm.stored().maybe_repeated)
        assert set(copies) <= {body for body, _ in world.sent[queue]}
        for name, message_id, outcome in world.acks:
            if name == queue and outcome.done and outcome.error is None:
                assert int(message_id[2:]) in world.server.settled[queue]


@pytest.mark.parametrize("waits_when_full", [True, False])
@pytest.mark.parametrize("has_numbers", [True, False])
def test_random_histories_end_each_publish_once_and_settle_correctly(waits_when_full: bool, has_numbers: bool) -> None:
    for seed in range(60):
        print(f"seed {seed}")
        world = World(seed, waits_when_full, has_numbers)
        for _ in range(STEPS):
            world.step()
        world.finish()
        check(world)


@pytest.mark.parametrize("waits_when_full", [True, False])
def test_random_histories_hold_with_application_numbers_with_gaps(waits_when_full: bool) -> None:
    for seed in range(60):
        print(f"seed {seed}")
        world = World(seed, waits_when_full, True, "billing")
        for _ in range(STEPS):
            world.step()
        world.finish()
        check(world)


def test_without_connection_loss_nothing_is_delivered_twice() -> None:
    for seed in range(60):
        print(f"seed {seed}")
        world = World(seed, True, False)
        for link in world.links:
            world.connect(link)
        world.lose = lambda link: None  # type: ignore[method-assign]
        for _ in range(STEPS):
            world.step()
        world.finish()
        check(world)
        for queue in QUEUES:
            stored = world.server.stored.get(queue, [])
            assert len(stored) == len(set(stored))
