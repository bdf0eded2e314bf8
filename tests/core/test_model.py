"""Random histories of one queue, the engine's and a plain-Python one side by side, compared after every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from curbstone.core import headers
from curbstone.core.errors import StaleDelivery
from curbstone.core.message import Delivery, Message
from curbstone.core.orders import orders_of, parse_priority
from curbstone.core.values import Lease, Outcome
from tests.core.model import UNNAMED, Dead, Model
from tests.core.receiver import Receiver
from tests.kit.lab import Lab, Peer

CAP = 64 * 1024
FULL = CAP * 2 // 5
"""Unsettled bodies stay below this: then whatever was settled, every publish must be accepted."""
GROUPS = (UNNAMED, "declared", "named")
LEASE_MS = 5000
RESTART_MS = 1000
DEAD_MAX = 30


class History:
    """The engine's queue and the model's, and the dice."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.lab = Lab(seed=seed, max_message_size=CAP // 8)
        self.steps: list[str] = []
        self.takers: list[Receiver] = []
        self.leases: dict[str, tuple[Lease, str, int]] = {}
        self.ended: list[str] = []
        self.bodies = 0
        self.keys = self.dice.choice([[""], ["", "a", "b"], ["a", "b", "c", "d", "e"]])
        # What dies while it is being handed out passes the turn of its key on in the midst of that, sooner or later.
        max_tries = self.dice.choice([0, 0, 2, 4]) if self.keys == [""] else 0
        nack_delay = self.dice.choice([0, 0, 3])
        dead_letter = self.dice.random() < 0.5
        self.priorities = self.dice.choice([[4], [4, 4, 9, 0], [*range(10)]])
        oldest_every = self.dice.choice([0, 0, 2, 5])
        self.names = [f"{how} {name}" for how in ("settled", "delivered", "replaces") for name in "ab"]
        in_flight = self.dice.choice([0, 0, 1, 4, 30])
        key_limit = self.dice.choice([1, 1, 0, 2, 3])
        self.dead = self.lab.queue("dead")
        self.queue = self.lab.queue(
            cap=CAP,
            max_tries=max_tries,
            nack_delay=nack_delay,
            dead_letter="dead" if dead_letter else "",
            groups=["declared"],
            oldest_every=oldest_every,
            in_flight=in_flight,
            key_limit=key_limit,
        )
        self.model = Model(
            declared=("declared",), max_tries=max_tries, nack_delay_ms=nack_delay * 1000, dead_letter=dead_letter
        )
        self.model.oldest_every = oldest_every
        self.model.in_flight = in_flight
        self.model.key_limit = key_limit
        self.model.now_ms = self.lab.host.now_ms()

    def run(self, steps: int) -> None:
        """Do some steps; what differs is raised with all that led to it."""
        weights = {action: self.dice.choice([1, 2, 4]) for action in ACTIONS}
        weights[History.publish] += 3
        for _ in range(steps):
            action = self.dice.choices(list(weights), list(weights.values()))[0]
            self.steps.append(action.__name__)
            action(self)
            self.dispatch()
            self.compare()

    def say(self, what: str) -> None:
        """Write down what a step does."""
        self.steps[-1] += f" {what}"

    # --- producers

    def new_bodies(self, count: int) -> list[bytes]:
        """Return new bodies, as many as keep the queue below half full."""
        bodies: list[bytes] = []
        room = FULL - self.model.bytes_held
        for _ in range(count):
            size = self.dice.choice([100, 100, 150, CAP // 100])
            room -= size
            if room < 0:
                break
            self.bodies += 1
            bodies.append((b"%d:" % self.bodies).ljust(size, b"abcdefg"[self.bodies % 7 :][:1]))
        return bodies

    def publish(self) -> None:
        """A few messages, all alike but for their bodies."""
        delay_ms, ttl_ms = self.dice.choice([0, 0, 0, 500, 4000]), self.dice.choice([0, 0, 0, 1500, 60_000])
        groups = self.dice.choice([(), (), (), ("named",), ("named", UNNAMED)])
        bodies = self.new_bodies(self.dice.choice([1, 3, 8, 60]))
        if not bodies:
            return
        priority = self.dice.choice(self.priorities)
        self.say(f"{len(bodies)}, delay {delay_ms}, ttl {ttl_ms}, groups {groups}, priority {priority}")
        keys = self.dice.choices(self.keys, k=len(bodies))
        orders = orders_of(delay_ms=delay_ms, ttl_ms=ttl_ms, groups=groups, level=parse_priority(str(priority)))
        messages = [Message(body, block_of(key), orders) for body, key in zip(bodies, keys, strict=True)]
        atomic = len(bodies) <= 8 and self.dice.random() < 0.5
        seqs = self.lab.publish_messages(self.queue, messages, atomic=atomic)
        priorities = [priority] * len(bodies)
        assert seqs == self.model.publish(
            bodies, delay_ms=delay_ms, ttl_ms=ttl_ms, groups=groups, keys=keys, priorities=priorities
        )

    def publish_named(self) -> None:
        """One message with a name: it is left out while another one has it, or replaces that one."""
        name, delay_ms = self.dice.choice(self.names), self.dice.choice([0, 0, 500])
        groups = self.dice.choice([(), (), ("named",)])
        bodies, key = self.new_bodies(1), self.dice.choice(self.keys)
        if not bodies:
            return
        how = name.partition(" ")[0]
        if how == "delivered":
            key = ""  # nobody can be sure after a restart whether one with a key was delivered
        lines = [("x-replace", name)] if how == "replaces" else [("x-unique", name), ("x-unique-until", how)]
        orders = orders_of(delay_ms=delay_ms, groups=groups, named=True)
        message = Message(bodies[0], block_of(key) + headers.encode(lines), orders)
        self.lab.publish_messages(self.queue, [message], atomic=self.dice.random() < 0.3)
        seq = -message.seq if message.is_duplicate else message.seq
        self.say(f"{name}, delay {delay_ms}, groups {groups}: {seq}")
        assert seq == self.model.publish_named(name, bodies[0], key=key, delay_ms=delay_ms, groups=groups)

    def transaction(self) -> None:
        transaction = self.lab.broker.transaction()
        bodies = self.new_bodies(2)
        keys = self.dice.choices(self.keys, k=len(bodies))
        # The lowest: the window of who acks may have room again, and get others, before these are there.
        priorities = [min(self.priorities)] * len(bodies)
        for body, key, priority in zip(bodies, keys, priorities, strict=True):
            orders = orders_of(level=parse_priority(str(priority)))
            transaction.publish(self.queue, Message(body, block_of(key), orders))
        taker = self.some_holder()
        seqs = self.some_of(taker)[:5]
        if taker:
            transaction.ack(taker.peer.consumer, seqs)
        self.say(f"publishes {len(bodies)}, acks {seqs}")
        assert self.lab.answer(transaction.commit) == (None,)
        self.model.publish(bodies, delay_ms=0, ttl_ms=0, groups=(), keys=keys, priorities=priorities)
        if taker:
            self.settled(taker, seqs)

    # --- consumers

    def subscribe(self) -> None:
        if len(self.takers) < 5:
            group, window = self.dice.choice(GROUPS), self.dice.choice([1, 2, 5, 30])
            self.say(f"to {group!r}, window {window}")
            self.takers.append(Receiver(Peer(self.lab, self.queue, window=window, group=group), group, window))

    def some_holder(self) -> Receiver | None:
        """Return a consumer that holds something."""
        holders = [taker for taker in self.takers if taker.held]
        return self.dice.choice(holders) if holders else None

    def some_of(self, taker: Receiver | None) -> list[int]:
        """Return some of what a consumer holds, in no order."""
        return self.dice.sample(sorted(taker.held), self.dice.randrange(1, len(taker.held) + 1)) if taker else []

    def settled(self, taker: Receiver, seqs: list[int]) -> None:
        """The model's side of an ack."""
        for seq in seqs:
            taker.held.discard(seq)
            self.model.settle(taker.group, seq)

    def settle(self) -> None:
        """Ack, nack or reject some of what some consumer holds."""
        taker = self.some_holder()
        if taker is None:
            return
        seqs = self.some_of(taker)
        kind = self.dice.choice(["ack", "ack", "nack", "reject"])
        self.say(f"{kind} {seqs} in {taker.group!r}")
        if kind == "ack":
            self.settled(taker, seqs)
            taker.peer.ack(*seqs)
        elif kind == "nack":
            delay_ms = self.dice.choice([None, 0, 2000])
            taker.held.difference_update(seqs)
            for seq in seqs:
                self.model.release(taker.group, seq, self.model.nack_delay_ms if delay_ms is None else delay_ms, "no")
            taker.peer.nack(*seqs, delay_ms=delay_ms, error="no")
        else:
            taker.held.difference_update(seqs)
            for seq in seqs:
                self.model.reject(taker.group, seq, "bad")
            taker.peer.reject(*seqs, error="bad")

    def settle_unheld(self) -> None:
        """One wrong seq among good ones: an error, and nothing changes."""
        if self.takers:
            taker = self.dice.choice(self.takers)
            seqs = [*sorted(taker.held), 1_000_000]
            consumer = taker.peer.consumer
            for call in (consumer.ack, consumer.nack, consumer.reject):
                with pytest.raises(StaleDelivery):
                    call(seqs)

    def leave(self) -> None:
        """A consumer pauses, continues, or goes."""
        if not self.takers:
            return
        taker = self.dice.choice(self.takers)
        how = self.dice.choice(["pause", "hold", "resume", "close"])
        self.say(how)
        if how == "close":
            self.takers.remove(taker)
            for seq in taker.held:
                self.model.release(taker.group, seq, 0, "")
            taker.peer.close()
        elif how == "resume":
            taker.is_open = not taker.peer.consumer.paused
            taker.peer.consumer.resume()
        else:
            taker.is_open = False
            (taker.peer.consumer.hold if how == "hold" else taker.peer.consumer.pause)()
        self.lab.settle()

    # --- takers of a single answer

    def lease(self) -> None:
        """Take a few for a while."""
        group, count = self.dice.choice(GROUPS), self.dice.choice([1, 3, 20])
        ready = self.model.deliver_once(group, count)
        leases = self.lab.lease(self.queue, count, LEASE_MS, group)
        seqs = [lease.delivery.message.seq for lease in leases]
        self.say(f"{seqs} in {group!r}")
        assert seqs == ready[: len(seqs)], "not the first that were ready"
        assert bool(seqs) == bool(ready)
        self.model.undo_delivery(
            group, ready[len(seqs) :]
        )  # "up to": what must be read first may come with the next call
        for lease in leases:
            self.check_delivery(lease.delivery, group)
            self.leases[lease.token] = (lease, group, self.model.now_ms + LEASE_MS)

    def settle_leases(self) -> None:
        """Some that run and some that ended."""
        tokens = self.dice.sample(sorted(self.leases), min(len(self.leases), 3))
        stale = self.ended[-2:]
        outcome = self.dice.choice(list(Outcome))
        self.say(f"{outcome} of {len(tokens)}")
        for token in tokens:
            lease, group, _ = self.leases.pop(token)
            seq = lease.delivery.message.seq
            if outcome is Outcome.ACK:
                self.model.settle(group, seq)
            elif outcome is Outcome.NACK:
                self.model.release(group, seq, self.model.nack_delay_ms, "no")
            else:
                self.model.reject(group, seq, "no")
        answer = self.lab.answer(
            lambda done: self.queue.settle_leases([*tokens, *stale], outcome, done, error="no"), passing_ms=0
        )
        assert answer == (None, len(tokens), stale)
        self.ended += tokens

    def extend(self) -> None:
        tokens = self.dice.sample(sorted(self.leases), min(len(self.leases), 3))
        assert self.lab.extend(self.queue, [*tokens, *self.ended[-1:]], 2 * LEASE_MS) == self.ended[-1:]
        for token in tokens:
            lease, group, _ = self.leases[token]
            self.leases[token] = (lease, group, self.model.now_ms + 2 * LEASE_MS)

    def pop(self) -> None:
        group = self.dice.choice(GROUPS)
        ready = self.model.deliver_once(group, 1)
        expected = self.model.messages[ready[0]].body if ready else None
        self.say(f"{ready} in {group!r}")
        assert self.lab.pop(self.queue, group) == expected
        for seq in ready:
            self.model.settle(group, seq)

    # --- the rest

    def settle_by_id(self) -> None:
        seq = self.dice.randrange(1, self.model.next_seq + 1)
        there = seq in self.model.unsettled(UNNAMED)
        self.say(f"{seq}, {'there' if there else 'not there'}")
        if there:
            self.model.settle(UNNAMED, seq)
            for taker in self.takers:
                if taker.group == UNNAMED:
                    taker.held.discard(seq)
            self.end_leases(lambda lease, group, _: group == UNNAMED and lease.delivery.message.seq == seq)
        assert self.lab.answer(lambda done: self.queue.settle_by_id(seq, done)) == (None, there)

    def end_leases(self, which: Callable[[Lease, str, int], bool]) -> list[tuple[Lease, str]]:
        """Forget leases that have ended; return them."""
        ended = {token: entry for token, entry in self.leases.items() if which(*entry)}
        for token in ended:
            del self.leases[token]
        self.ended += ended
        return [(lease, group) for lease, group, _ in ended.values()]

    def purge(self) -> None:
        if self.dice.random() < 0.15:
            assert self.lab.purge(self.queue) == self.model.purge()

    def time(self) -> None:
        """Time passes, from one event to the next."""
        self.pass_time(self.dice.choice([1, 400, 2000, 7000]))

    def pass_time(self, ms: int) -> None:
        end_ms = self.model.now_ms + ms
        self.say(f"to {end_ms}")
        while self.model.now_ms < end_ms:
            dues = [due_ms for _, _, due_ms in self.leases.values()]
            event_ms = self.model.next_event_ms()
            next_ms = min([end_ms, *dues, *([] if event_ms is None else [event_ms])])
            self.settle_before_expiry(next_ms)
            self.lab.pass_time(next_ms - self.lab.host.now_ms())
            self.model.time(next_ms)
            for lease, group in self.end_leases(lambda _lease, _group, due_ms: due_ms <= self.model.now_ms):
                self.model.release(group, lease.delivery.message.seq, 0, "the lease ran out")
            self.dispatch()

    def settle_before_expiry(self, now_ms: int) -> None:
        """What expires in somebody's hands is another test's business."""
        while self.settle_some_before(now_ms):  # what that makes room for may expire too
            self.dispatch()

    def settle_some_before(self, now_ms: int) -> bool:
        """Settle what is held and expires; return whether there was any."""
        expiring = {seq for seq, held in self.model.messages.items() if 0 < held.expires_ms <= now_ms}
        any_held = False
        for taker in self.takers:
            for seq in sorted(taker.held & expiring):
                any_held = True
                self.settled(taker, [seq])
                taker.peer.ack(seq)
        for lease, group, _ in list(self.leases.values()):
            if lease.delivery.message.seq in expiring:
                any_held = True
                self.end_leases(partial(is_lease, lease))
                self.model.settle(group, lease.delivery.message.seq)
                self.lab.answer(partial(self.queue.settle_leases, [lease.token], Outcome.ACK))
        return any_held

    def restart(self) -> None:
        """Shut down, killed, or a power cut, once all is quiet."""
        if self.dice.random() > 0.3:
            return
        how = self.dice.choice(["shutdown", "kill", "power"])
        self.say(how)
        self.settle_before_expiry(self.model.now_ms + RESTART_MS + 100)  # a shutdown takes some time too
        self.lab.settle()
        self.takers.clear()
        self.end_leases(lambda *_: True)
        self.model.restart()
        self.lab.restart(how, after_ms=RESTART_MS)
        self.model.time(self.lab.host.now_ms())
        self.queue, self.dead = self.lab.reopened(self.queue), self.lab.reopened(self.dead)
        assert not self.queue.damaged
        self.check_tries()

    def check_tries(self) -> None:
        """What was held at the end counts as delivered once more."""
        for group in GROUPS:
            for seq, place in self.model.unsettled(group).items():
                tries = self.queue.index.groups[group].tries_of(seq)  # no public call tells without taking
                assert tries in place.possible_tries, f"tries of {seq} in {group!r}"

    # --- judging

    def dispatch(self) -> None:
        """Hand out in the model what there is room for, and compare with what the consumers were given."""
        for group in GROUPS:
            takers = [taker for taker in self.takers if taker.group == group]
            expected = self.model.deliver(group, sum(taker.credit for taker in takers))
            given: list[int] = []
            for taker in takers:
                news = taker.news()
                seqs = [delivery.message.seq for delivery in news]
                for key in filter(None, self.keys):
                    of_key = [seq for seq in seqs if self.model.messages[seq].key == key]
                    assert of_key == sorted(of_key) or self.model.key_limit != 1, f"out of order: {seqs}"
                if self.keys == [""]:
                    assert seqs == [seq for seq in expected if seq in seqs], f"out of order: {seqs}, not as {expected}"
                assert len(seqs) <= taker.credit, "more than the window takes"
                taker.held.update(seqs)
                given += seqs
                for delivery in news:
                    self.check_delivery(delivery, group)
            if self.keys != [""] and len(given) == len(expected):
                self.model.deliver_instead(group, expected, given)
            else:
                assert sorted(given) == sorted(expected), f"given in {group!r}: {sorted(given)} for {sorted(expected)}"
        self.model.passed.clear()

    def check_delivery(self, delivery: Delivery, group: str) -> None:
        """It is the message that was sent, and says how often it was tried."""
        seq = delivery.message.seq
        held = self.model.messages[seq]
        assert delivery.message.body == held.body
        place = held.places[group]
        assert delivery.tries in place.possible_tries, f"tries of {seq} in {group!r}"
        place.tries, place.is_unsure = delivery.tries, False
        assert delivery.redelivered == (delivery.tries > 0)

    def compare(self) -> None:
        """All that can be seen is as in the model."""
        for group in GROUPS:
            counts = self.queue.counts(group)
            assert (counts.rdy, counts.wip, counts.delayed) == self.model.counts(group), f"group {group!r}"
            assert self.queue.by_priority(group) == self.model.by_priority(group), f"group {group!r}"
            assert counts.consumers == sum(not taker.peer.consumer.paused for taker in self.takers)
        for taker in self.takers:
            assert set(taker.peer.consumer.unsettled) == taker.held
        found = self.lab.peek(self.queue)
        assert [peeked.message.seq for peeked in found] == sorted(self.model.messages)
        for peeked in found:
            held = self.model.messages[peeked.message.seq]
            assert peeked.message.body == held.body
            places = [held.places[UNNAMED]] if UNNAMED in held.places else held.places.values()
            views = {(place.state, tries, place.due_ms) for place in places for tries in place.possible_tries}
            assert (peeked.state, peeked.tries, peeked.due_ms) in views
        self.compare_dead()

    def compare_dead(self) -> None:
        """The dead letters are those that died, each with its story."""
        found = []
        for peeked in self.lab.peek(self.dead):
            reported = dict(headers.decode(peeked.message.headers))
            seq = self.queue.parse_id(reported["x-dead-id"])
            assert seq is not None and reported["x-dead-queue"] == "default/q"
            story = reported["x-dead-reason"], int(reported["x-dead-tries"]), reported.get("x-dead-error", "")
            found.append(Dead(peeked.message.body, seq, *story))
        unsure = self.model.unsure
        assert sorted(how_sure(dead, unsure) for dead in found) == sorted(how_sure(d, unsure) for d in self.model.dead)
        if len(found) > DEAD_MAX:
            assert self.lab.purge(self.dead) == len(found)
            self.model.dead.clear()


ACTIONS: list[Callable[[History], None]] = [
    History.publish,
    History.publish_named,
    History.transaction,
    History.subscribe,
    History.settle,
    History.settle,
    History.settle_unheld,
    History.leave,
    History.lease,
    History.settle_leases,
    History.extend,
    History.pop,
    History.settle_by_id,
    History.purge,
    History.time,
    History.restart,
]


def block_of(key: str) -> bytes:
    return headers.encode([(headers.KEY, key)]) if key else b""


def how_sure(dead: Dead, unsure: set[int]) -> Dead:
    """Return a death without the tries that nobody can be sure of."""
    return replace(dead, tries=0) if dead.seq in unsure else dead


def is_lease(mine: Lease, other: Lease, _group: str, _due_ms: int) -> bool:
    return other is mine


@pytest.mark.parametrize("seed", range(40))
def test_queue_matches_the_model_after_every_step(seed: int) -> None:
    history = History(seed)
    try:
        history.run(150)
    except Exception as error:
        error.add_note(f"seed {seed}, after: {'; '.join(history.steps)}")
        raise
