"""One simulated history: random work on a few queues, faults, crashes, and in the end a drain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.disk import Disk
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.errors import CurbstoneError, QueueFull
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, queue_name
from curbstone.core.options import SyncMode
from curbstone.core.values import Lease
from tests.kit.room_check import check_room
from tests.kit.simulated import Crash, SimHost
from tests.sim.answers import Answers
from tests.sim.batching import Batching
from tests.sim.constants import Constants
from tests.sim.directories import ACTIONS as OF_DIRECTORIES
from tests.sim.directories import Directories
from tests.sim.disk_faults import disk_recovers, from_the_start, inject_fault
from tests.sim.drained import drain_queue, see_drained
from tests.sim.durable import Durable
from tests.sim.fairness import Fairness
from tests.sim.history import History, Unit, Violation
from tests.sim.leases import give_back, take_or_settle
from tests.sim.naming import Naming
from tests.sim.overflow import Overflow
from tests.sim.producer import Producers
from tests.sim.purging import purge
from tests.sim.reader import GROUP, Reader
from tests.sim.recording_disk import RecordingDisk
from tests.sim.sharing import Sharing
from tests.sim.states import States
from tests.sim.transactions import transact
from tests.sim.turns import Turns
from tests.sim.undoing import Undoing


class Run:
    """See the module's docstring. Everything comes from the seed."""

    def __init__(
        self, seed: int, *, steps: int = 200, faults: bool = True, focus: str = "", reached: Counter[str] | None = None
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.steps = steps
        self.faults = faults
        self.disk = RecordingDisk(self.rng)
        self.states = States(self, reached)
        self.constants = Constants(seed, focus)
        self.directories = Directories(self, seed, focus)
        self.durable = Durable(self, seed, focus)
        self.overflow = Overflow(self, seed, focus)
        self.undoing = Undoing(self, seed, focus)
        self.naming = Naming(self, seed, focus)
        self.batching = Batching(self, seed, focus)
        self.disk.caps = self.directories.cap_of
        self.history = History()
        self.history.keys = 3 if focus == "keys" else Random(f"keys {seed}").choice([0, 0, 0, 2, 7])
        self.history.priorities = 10 if focus == "priority" else Random(f"priority {seed}").choice([0, 0, 0, 3, 10])
        self.fairness = Fairness(self, seed, focus)
        self.turns = Turns(self.history, self._is_leased)
        self.answers = Answers(self.history)
        self.producers = Producers(self.history, self.answers, seed, focus)
        self.wall_ms = 1_700_000_000_000
        self.names = [queue_name(name) for name in ("a", "b", "dead")][: self.rng.choice([2, 3, 3])]
        self.sharing = Sharing(self, seed, focus)
        self.names += self.sharing.names
        grouped = self.rng.random() < 0.3
        self.entitled: list[tuple[str, ...]] = [(), ("g",), ("g", "h")] if grouped else [()]
        self.readers = ["", "g", "h"] if grouped else [""]
        modes = ["always", "always", "always", "interval:50", "never"]
        self.sync = SyncMode.parse(self.rng.choice(modes[:3] if focus == "share" else modes))
        # After a failed sync the cache shows what the disk has not: nobody can tell after a kill. Modes that
        # confirm before the sync promise to survive a kill, not a power cut.
        ends = [["power"], ["power"], ["kill"]] if faults else [["power"], ["kill"], ["power", "kill"]]
        self.ends = self.rng.choice(ends) if self.sync.kind == "always" else ["kill"]
        self.max_size = self.rng.choice([60, 400, 3000])
        self.least_size = 10
        if focus == "large":  # a segment of the smallest cap takes one or two
            self.least_size, self.max_size = Random(f"large {seed}").choice([(1000, 2500), (1900, 2100), (2000, 4400)])
        elif focus == "roomy":
            self.least_size, self.max_size = Random(f"roomy {seed}").choice([(200, 4000), (1000, 9000)])
        self.crashes = 0
        self.ordered: dict[QueueName, list[int]] = {name: [] for name in self.names}
        self.consumers: list[Consumer] = []
        self.leases: list[tuple[LocalQueue, Lease]] = []
        self.asked: set[str] = set()
        """Leases that somebody asked to settle: where that was refused they may be settled all the same."""
        self.drained: list[int] = []
        self.reader = Reader(self.rng) if self.rng.random() < 0.4 else None
        self.start()
        if faults:
            from_the_start(self.rng, self.disk)

    def start(self) -> None:
        """Start, and start again where a crash comes in the middle of recovery."""
        while True:
            self.host = self.new_host()
            self.directories.starting()
            self.constants.draw()
            self.states.starting()
            try:
                self.broker = Broker.open(
                    self.host,
                    self.opened_disk(),
                    defaults=self.directories.defaults(),
                    sync=self.sync,
                    salt=lambda: self.rng.randrange(1 << 32),
                )
                break
            except Crash as crash:
                self.power_off(crash)
                if self.rng.random() < 0.3:
                    self.disk.aim(self.rng, 30)
        self.disk.aim_at_nothing()
        self.constants.give(self.broker, self.host)
        self.states.started()
        for queue in self.broker.queues():
            if queue.damaged:
                raise Violation(f"a crash alone left damage: {queue.damaged}")
        if damage := [*self.broker.kept_redo.texts, *self.broker.tx_log.damage]:
            raise Violation(f"a crash alone left damage: {damage}")
        self.directories.started()
        self.answers.started()
        self.epoch = object()
        self.overflow.started()
        self.durable.started()
        self.batching.started()

    def new_host(self) -> SimHost:
        """Return the host of the next life."""
        return SimHost(self.rng, self.wall_ms)

    def opened_disk(self) -> Disk:
        """Return the disk as the engine of the next life is given it."""
        return self.disk

    def power_off(self, crash: Crash | None = None) -> None:
        self.crashes += 1
        self.naming.look()
        self.states.crashed(crash)
        self.durable.crashed()
        if self.rng.choice(self.ends) == "power":
            self.disk.crash()
            self.states.lost_power()
        self.disk.aim_at_nothing()
        disk_recovers(self.rng, self.disk)
        self.wall_ms = self.host.now_ms() + self.rng.choice([1, 1000, 60_000])
        self.consumers.clear()
        self.leases.clear()
        self.history.crashed()

    # --- the work

    def run(self) -> History:
        """Do it all; raise Violation where a promise was not kept."""
        with self.constants:
            self._run()
        self.states.ended()
        return self.history

    def _run(self) -> None:
        weights = {name: self.rng.choice([0, 1, 1, 2, 4]) for name in ACTIONS}
        weights["publish"] += 2
        weights["advance"] += 6
        more = (self.directories, self.producers, self.durable, self.overflow, self.undoing, self.sharing, self.naming)
        for others in (*more, self.fairness, self.batching):
            weights |= others.weights()
        names = list(weights)
        rests = Random(f"rests {self.seed}")
        for _ in range(self.steps):
            action = self.rng.choices(names, list(weights.values()))[0]
            self._guarded(lambda action=action: ALL_ACTIONS[action](self))  # type: ignore[misc]
            self._check()
            self.states.stepped()
            if not self.faults and rests.random() < 0.1:
                self._guarded(self._rest)
            if self.rng.random() < (0.05 if self.states.is_delicate else 0.01):
                self._crash()
        if self.rng.random() < 0.5:
            self._crash()
        self.drain()

    def _check(self) -> None:
        self.history.check()
        self.naming.look()
        if self.broker.alarms.faults:
            raise self.broker.alarms.faults[0]
        self.disk.check_cap()
        if self.disk.over_cap:
            raise Violation(self.disk.over_cap[0])
        for queue in self.broker.queues():
            check_room(queue)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Crash as crash:
            self.power_off(crash)
            self.start()

    def _crash(self) -> None:
        """Stop at some call of the operating system that is still to come, or now."""
        came = None
        if self.rng.random() < 0.7:
            self.disk.aim(self.rng, 12)
            try:
                for _ in range(20):
                    if not (self.host.work() or self.host.turn()):
                        break
            except Crash as crash:
                came = crash
        self.power_off(came)
        if self.rng.random() < 0.2:
            self.disk.aim(self.rng, 30)
        self.start()

    def _rest(self) -> None:
        """Let everything happen that can; a queue that is made anew looks now and then whether the old one is gone."""
        for _ in range(200):
            self.host.settle()
            if not self.answers.owed:
                return
            self.host.pass_time(5)
        raise Violation(f"not answered, and nothing is under way: {self.answers.owed[:3]}")

    def any_queue(self) -> LocalQueue:
        return self.broker.ensure(self.rng.choice(self.names))

    def publish(self) -> None:
        """Publish a few, maybe atomically, with a delay, or to expire."""
        self.publish_to(self.any_queue())

    def publish_to(self, queue: LocalQueue, least_size: int = 0) -> None:
        """Publish a few to one queue."""
        least_size = least_size or self.least_size
        count = self.rng.choice([1, 1, 3, 20])
        delay = self.rng.choice([0, 0, 0, 50, 5000])
        groups = self.rng.choice(self.entitled)
        sizes = [self.rng.randrange(least_size, max(self.max_size, least_size + 1)) for _ in range(count)]
        ttl = 0 if self.reader else self.rng.choice([0, 0, 0, 0, 100, 20_000])
        messages = [self.history.message(size, delay, groups, ttl) for size in sizes]
        waiting = [self.history.tokens(message) for message in messages]
        if ttl:  # also what a crash keeps from being confirmed may be there, and expire
            self.doom([token for tokens in waiting for token in tokens])
        atomic = self.rng.random() < 0.2
        if atomic:
            self.history.units.append(Unit([token for tokens in waiting for token in tokens]))

        def done(error: CurbstoneError | None, first_seq: int, covered: int) -> None:
            mine = [token for tokens in waiting[:covered] for token in tokens]
            del waiting[:covered]
            if error is None:
                self.history.confirmed.update(mine)
                if self.reader and not groups:
                    self.reader.published(queue, first_seq, mine)
                if not delay and not groups:
                    self.ordered.setdefault(queue.name, []).extend(mine)
            elif isinstance(error, QueueFull):
                self.history.refused.update(mine)

        queue.publish(messages, self.answers.in_order(queue, count, done), atomic=atomic)

    def subscribe(self) -> None:
        if len(self.consumers) > 4:
            return
        queue = self.any_queue()
        window = self.rng.choice([1, 5, 50])
        group = self.rng.choice(self.readers)
        consumer: Consumer

        def deliver(deliveries: list[Delivery]) -> None:
            self.fairness.see(queue, group, deliveries)
            for delivery in deliveries:
                self.turns.handed_out(queue, group, delivery.message)
                self.history.delivered(delivery.message, f"a consumer of {queue.name}", group)

        weight = self.rng.choice([1, 2])
        consumer = queue.subscribe(deliver, window=window, weight=weight, group=group, on_closed=lambda _: None)
        self.consumers.append(consumer)

    def settle(self) -> None:
        """Settle some of what some consumer holds."""
        holders = [consumer for consumer in self.consumers if consumer.unsettled]
        if not holders:
            return
        consumer = self.rng.choice(holders)
        queue = consumer.queue
        assert isinstance(queue, LocalQueue)
        seqs = list(consumer.unsettled)
        chosen = self.rng.sample(seqs, self.rng.randrange(1, len(seqs) + 1))
        tokens = [self.history.token(consumer.unsettled[seq].message, consumer.group) for seq in chosen]
        kind = self.rng.choice(["ack", "ack", "nack", "reject"])
        for token in tokens:
            self.history.live.pop(token, None)
        if kind == "nack":
            done = self.answers.settled(f"nack in {queue.name}", lambda _error: None)
            consumer.nack(chosen, self.rng.choice([None, 0, 100]), "no", done)
            return
        if kind == "reject" and "dead" in {name.queue for name in self.names} and queue.options.dead_letter:
            consumer.reject(chosen, "bad")
            return
        self.doom(tokens)
        what = f"{kind} in {queue.name}"
        done = self.answers.settled(what, lambda error: self._settled(error, tokens))
        (consumer.ack if kind == "ack" else consumer.reject)(chosen, on_done=done)

    def doom(self, tokens: list[int], *, alone: bool = True) -> None:
        self.history.doomed.update(tokens)
        if alone:
            self.history.doomed_alone.update(tokens)

    def _settled(self, error: CurbstoneError | None, tokens: list[int]) -> None:
        if error is None:
            self.history.gone.update(tokens)

    def leave(self) -> None:
        if not self.consumers:
            return
        consumer = self.rng.choice(self.consumers)
        if self.rng.random() < 0.3:
            consumer.pause()
            return
        self.history.released(consumer)
        self.consumers.remove(consumer)
        consumer.close()

    def _is_leased(self, queue: LocalQueue, seq: int) -> bool:
        now_ms = self.host.now_ms()
        live = [(each, lease) for each, lease in self.leases if lease.expires_ms > now_ms]
        held = [lease for each, lease in live if each is queue and lease.token not in self.asked]
        return any(lease.delivery.message.seq == seq for lease in held)

    def transaction(self) -> None:
        transact(self)

    def options(self) -> None:
        """Change what a queue does with messages that fail."""
        names = [name for name in self.names if name.queue != "dead"]
        most = self.rng.choice([0, 3])
        changes: dict[str, object] = {"max_tries": most, "oldest_every": most, "in_flight": 2 * most}
        can_die = "dead" in {name.queue for name in self.names} and len(self.readers) == 1  # a dead letter has no group
        changes["dead_letter"] = "dead" if can_die else ""
        if not changes["dead_letter"]:
            changes["max_tries"] = 0
        self.directories.declare(self.rng.choice(names), changes)

    def number(self) -> None:
        """A numbered producer sends some, maybe again."""
        self.producers.step(self.any_queue(), self.max_size)

    def read(self) -> None:
        """A declared group looks, or acks up to somewhere."""
        if self.reader:
            self.host.settle()
            queue = self.any_queue()
            self.host.settle()
            self.reader.step(queue)

    def advance(self) -> None:
        for _ in range(self.rng.choice([1, 3, 30])):
            if self.rng.random() < 0.5:
                self.host.work()
            else:
                self.host.turn()

    def time(self) -> None:
        """Let time pass; now and then the wall clock jumps."""
        self.host.pass_time(self.rng.choice([1, 100, 2000]))
        if self.rng.random() < 0.1:
            self.host.wall_offset_ms += self.rng.choice([-3_600_000, 3_600_000, 315_360_000_000])

    def inject_fault(self) -> None:
        """The disk fails for a while, or fills up; see `tests.sim.disk_faults`."""
        if self.faults:
            inject_fault(self.rng, self.disk, self._busy, self._crash)

    def _busy(self) -> None:
        """Somebody publishes or settles, and things happen."""
        self.rng.choice([self.publish, self.publish, self.settle])()
        self.advance()

    # --- the end

    def drain(self) -> None:
        """Take everything out of all queues and judge."""
        self.directories.drain()
        self.durable.drain()
        self.overflow.drain()
        self.naming.drain()
        self.batching.drain()
        for consumer in self.consumers:
            for delivery in consumer.unsettled.values():
                self.history.live.pop(self.history.token(delivery.message, consumer.group), None)
            consumer.close()
        self.host.settle()
        self.host.pass_time(10_000)
        self.host.settle()
        for queue, lease in self.leases:
            self.history.live.pop(self.history.token(lease.delivery.message), None)
            give_back(self.host, queue, lease.token)
        self.leases.clear()
        self.host.settle()
        self._judge_reader()
        out = self._drain_queues()
        self._check()
        self.history.judge(self.drained)
        self.overflow.judge(self.drained)
        self.batching.judge(self.drained)
        for name, messages in out.items():
            self._judge_order(name, messages)

    def _judge_reader(self) -> None:
        """Judge the declared group; then it holds nothing any more."""
        for queue in self.broker.queues() if self.reader else []:
            assert self.reader is not None
            self.reader.judge(queue)
            self.host.settle()
        self._read_on()

    def _read_on(self) -> None:
        """Let the declared group hold nothing any more: it may keep a queue full that dead letters go to."""
        for queue in self.broker.queues() if self.reader else []:
            assert self.reader is not None
            if GROUP in queue.meta.groups:
                self.reader.ack(queue, queue.reading.next - 1)
        self.batching.finish()
        self.host.settle()
        self._check()

    def _drain_queues(self) -> dict[QueueName, list[Message]]:
        """Consume and ack everything, also what goes from queue to queue meanwhile."""
        out: dict[QueueName, list[Message]] = {}
        for name in self.names:  # a dead letter may bring its queue into being only now
            self.broker.ensure(name)
        for queue in self.batching.others():
            out[queue.name] = []
            for group in self.readers:
                drain_queue(self, queue, group, out[queue.name])
        see_drained(self.host, self.batching.others, self.readers, 12, self._read_on)
        self.directories.judge()
        return out

    def _judge_order(self, name: QueueName, messages: list[Message]) -> None:
        there = {self.history.token(message) for message in messages}
        expected = [token for token in self.ordered.get(name, []) if token in there]
        in_order = sorted(messages, key=lambda message: message.seq)
        self.producers.judge(str(name), in_order)
        self.naming.judge(str(name), in_order)
        by_seq = [self.history.token(message) for message in in_order]
        if [token for token in by_seq if token in set(expected)] != expected:
            raise Violation(f"{name}: out of order")


ACTIONS: dict[str, Callable[[Run], None]] = {
    "publish": Run.publish,
    "subscribe": Run.subscribe,
    "settle": Run.settle,
    "leave": Run.leave,
    "lease": take_or_settle,
    "transaction": Run.transaction,
    "options": Run.options,
    "purge": purge,
    "read": Run.read,
    "advance": Run.advance,
    "time": Run.time,
    "inject_fault": Run.inject_fault,
}
ALL_ACTIONS = {**ACTIONS, "number": Run.number} | {
    name: lambda run, action=action: action(run.directories) for name, action in OF_DIRECTORIES.items()
}
ALL_ACTIONS["overflow"] = lambda run: run.overflow.act()
ALL_ACTIONS |= {"name": lambda run: run.naming.act(), "fair": lambda run: run.fairness.act()}
ALL_ACTIONS["batch"] = lambda run: run.batching.act()
ALL_ACTIONS["undo"] = lambda run: run.undoing.act()
ALL_ACTIONS |= {"durable": lambda run: run.durable.act(), "share": lambda run: run.sharing.act()}
