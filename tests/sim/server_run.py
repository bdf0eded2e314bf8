"""One simulated life of a whole server: clients of all protocols, faults, crashes, restarts, and in the end a drain.

A run is its setup, which comes from the seed, and a list of steps. Each step names who does what and has dice of its
own, so that a list with some steps left out does the same with the rest (see `shrink`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

from curbstone.core import headers as blocks
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.write_queue import Pop
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions, SyncMode
from curbstone.core.wal.redo_format import RECORDS_AT
from tests.kit.simulated import Crash, SimDisk, SimHost
from tests.sim.client_http import HttpClient
from tests.sim.client_mqks import EVENT, MqksClient
from tests.sim.client_sockets import ConsumeClient, PublishClient
from tests.sim.client_stomp import StompClient
from tests.sim.drained import see_drained
from tests.sim.history import Violation
from tests.sim.server_client import Client
from tests.sim.server_history import DEAD, Copy, History, Received
from tests.sim.server_net import SimLoop
from tests.sim.server_parts import Server, listening, running, salts
from tests.sim.watched import watch, watch_nobody

CAP = 96 * 1024
REDO_BYTES = RECORDS_AT + 16 * 1024
SLOTS: dict[str, type[Client]] = {
    "stomp1": StompClient, "stomp2": StompClient, "stomp3": StompClient, "mqks1": MqksClient, "mqks2": MqksClient,
    "publisher1": PublishClient, "publisher2": PublishClient, "consumer1": ConsumeClient, "consumer2": ConsumeClient,
    "http1": HttpClient, "http2": HttpClient,
}  # fmt: skip
WORLD = {"advance": 12, "time": 3, "inject_fault": 2, "crash": 2, "restart": 1}


class Step(NamedTuple):
    """Who does what, with which dice."""

    actor: str
    act: str
    dice: int


def plan(seed: int, count: int) -> list[Step]:
    """Return the steps of a seed."""
    rng = Random(f"steps of {seed}")
    actors = rng.sample(sorted(SLOTS), rng.randrange(4, 9))
    choices = [("world", act, weight) for act, weight in WORLD.items()]
    for actor in actors:
        choices += [(actor, act, weight) for act, weight in SLOTS[actor].ACTS.items()]
    weights = [weight * rng.choice((1, 1, 2)) for _, _, weight in choices]
    return [Step(who, what, rng.getrandbits(32)) for who, what, _ in rng.choices(choices, weights, k=count)]


class _Drain:
    """Who takes everything in the end."""

    def __init__(self, queue: str, group: str) -> None:
        self.name = "the drain"
        self.queue = queue
        self.group = group
        self.last: dict[str, int] = {}
        self.holds = True


class ServerRun:
    """See the module's text."""

    def __init__(self, seed: int, *, faults: bool = True) -> None:
        self.seed = seed
        self.faults = faults
        self.rng = rng = Random(f"setup of {seed}")
        self.disk = SimDisk(rng)
        self.disk.caps = lambda directory: CAP if directory.startswith("queues/") else None
        self.history = History()
        self.queues = ["a", "b", DEAD][: rng.choice((2, 3, 3))]
        grouped = rng.random() < 0.3
        self.groups: list[tuple[str, ...]] = [(), ("g",), ("g", "h")] if grouped else [()]
        self.readers = ["", "g", "h"] if grouped else [""]
        if DEAD in self.queues and not grouped:  # a dead letter has no group
            self.history.dying.add("a")
        self.sync = SyncMode.parse(rng.choice(("always", "always", "always", "interval:50", "never")))
        # As in `run`: modes that confirm before the sync survive a kill only, and a failed sync hides from a kill.
        ends = (("power",), ("power",), ("kill",)) if faults else (("power",), ("kill",), ("power", "kill"))
        self.ends = rng.choice(ends) if self.sync.kind == "always" else ("kill",)
        self.max_size = rng.choice((40, 400, 2000))
        self.high = rng.choice((300, 5000, 1 << 20))
        self.narrow = rng.random() < 0.5
        self.can_expire = rng.random() < 0.5
        self.wall_ms = 1_700_000_000_000
        self.crashes = 0
        self.steps_done = 0
        self.trace: list[str] | None = None
        self._salts = Random(f"salts of {seed}")
        self.host = SimHost(rng, self.wall_ms)
        self.loop = SimLoop(self.host)
        self.clients: dict[str, Client] = {name: kind(self, name) for name, kind in SLOTS.items()}

    def note(self, text: str) -> None:
        """Add a line to the trace, where one is kept."""
        if self.trace is not None:
            self.trace.append(f"  {text}")

    # --- lives of the server

    def _begin(self) -> None:
        """Open the broker; again where a crash comes in the middle of recovery."""
        while True:
            self.host = SimHost(self.rng, self.wall_ms)
            try:
                defaults = QueueOptions(cap=CAP, max_message_size=CAP // 8)
                salt = salts(self._salts)
                self.broker = Broker.open(self.host, self.disk, defaults=defaults, sync=self.sync, salt=salt)
                self.broker.syncer.file_bytes = REDO_BYTES
                break
            except Crash:
                self._power_off()
        for queue in self.broker.queues():
            if queue.damaged:
                raise Violation(f"a crash alone left damage: {queue.damaged}")
        if damage := [*self.broker.kept_redo.texts, *self.broker.tx_log.damage]:
            raise Violation(f"a crash alone left damage: {damage}")
        self.loop = SimLoop(self.host)

    def _serve(self) -> None:
        """Let clients in. What is settled when it is handed out is noted at the engine: no client asks for it."""
        for queue in self.broker.queues():
            self._watch(queue)
        self.server = Server(self.broker, self.host, self.loop, narrow=self.narrow)
        with running(self.loop):
            self.server.start()

    def _watch(self, queue: LocalQueue) -> None:
        history = self.history

        def copies(group: str, deliveries: list[Delivery]) -> list[Copy]:
            tokens = [int(delivery.message.body.partition(b":")[0]) for delivery in deliveries]
            return [Copy(queue.name.queue, group, token) for token in tokens]

        def settled(settle_now: Callable[..., None], group: str, deliveries: list[Delivery], *reason: Any) -> None:
            history.doom(copies(group, deliveries))
            settle_now(group, deliveries, *reason)

        def returned(put_back: Callable[..., None], group: str, deliveries: list[Delivery]) -> None:
            history.put_back.update(copies(group, deliveries))
            put_back(group, deliveries)

        def popped(flush: Callable[[], None]) -> None:
            flush()
            batch = queue.writer.under_way
            for pop in batch.pops if batch is not None else []:
                history.popped.update(copies(pop.group, [pop.delivery]))

        def refused(failed: Callable[..., None], pops: list[Pop], error: CurbstoneError, *, is_undone: bool) -> None:
            failed(pops, error, is_undone=is_undone)
            for pop in pops:
                if not pop.is_in_doubt:
                    history.popped.difference_update(copies(pop.group, [pop.delivery]))

        watch(queue.acks, "settle_now", partial(partial, settled))
        watch(queue.acks, "put_back", partial(partial, returned))
        watch(queue.writer, "flush", partial(partial, popped))
        watch(queue.pops, "failed", partial(partial, refused))

    def _set_up(self) -> None:
        self._begin()
        for name in self.queues:
            changes: dict[str, object] = {"max_tries": 4, "dead_letter": DEAD} if name in self.history.dying else {}
            self.broker.declare(queue_name(name), changes, self._must)
            self.host.settle()
        for name in self.queues:
            for event in (EVENT + name, f"{EVENT}{name}.#"):  # the mask takes the event, too: one copy all the same
                self.broker.bind(event, queue_name(name), self._must)
            self.host.settle()
        self._serve()

    def _must(self, error: CurbstoneError | None) -> None:
        if error is not None:
            raise error

    def _power_off(self) -> None:
        self.crashes += 1
        end = self.rng.choice(self.ends)
        self.note(f"*** {end} ***")
        if end == "power":
            self.disk.crash()
        self._heal()
        self.wall_ms = self.host.now_ms() + self.rng.choice((1, 1000, 60_000))
        for asking in self._http_clients():
            asking.give_up()
        self._forget_clients()
        self.loop.abandon()

    def _http_clients(self) -> list[HttpClient]:
        return [client for client in self.clients.values() if isinstance(client, HttpClient)]

    def _forget_clients(self) -> None:
        for client in self.clients.values():
            if client.socket is not None:
                client.gone()
            if isinstance(client, HttpClient):
                client.forget_leases()
        self.history.crashed()

    def _heal(self) -> None:
        self.disk.crash_in = -1
        self.disk.eio_chance = 0
        self.disk.capacity = 1 << 60

    # --- steps

    def run(self, steps: list[Step]) -> History:
        """Do it all; raise Violation where a promise was not kept."""
        with listening() as found:
            try:
                self._set_up()
                for step in steps:
                    self._step(step)
                    self._check(found)
                self._end(found)
            except Exception as error:
                if found and error is not found[0]:
                    raise error from found[0]
                raise
            finally:
                self.loop.abandon()
                watch_nobody()
        return self.history

    def _check(self, found: list[BaseException]) -> None:
        if found:
            raise found[0]
        if self.broker.alarms.faults:
            raise self.broker.alarms.faults[0]
        if self.disk.over_cap:
            raise Violation(self.disk.over_cap[0])

    def _step(self, step: Step) -> None:
        self.rng.seed(step.dice)
        if self.trace is not None:
            self.trace.append(f"{step.actor} {step.act} {step.dice}")
        try:
            with running(self.loop):
                if step.actor == "world":
                    getattr(self, "_" + step.act)()
                else:
                    self.clients[step.actor].step(step.act)
                self._move()
        except Crash:
            self._power_off()
            self._begin()
            self._serve()

    def _move(self) -> None:
        rng = self.rng
        for client in self.clients.values():
            if client.socket is not None and rng.random() < 0.6:
                client.pump()
        for _ in range(rng.choice((0, 2, 4))):
            if not (self.host.turn() or self.host.work()):
                break

    def _advance(self) -> None:
        for _ in range(self.rng.choice((1, 5))):
            self._move()

    def _time(self) -> None:
        self.host.pass_time(self.rng.choice((1, 100, 2000, 20_000)))
        if self.rng.random() < 0.1:
            self.host.wall_offset_ms += self.rng.choice((-3_600_000, 3_600_000, 315_360_000_000))

    def _inject_fault(self) -> None:
        dice = self.rng.random()
        self._heal()
        if not self.faults:
            return
        if dice < 0.3:
            self.disk.eio_chance = self.rng.choice((0.05, 0.5, 1.0))
            self.note(f"syncs fail, {self.disk.eio_chance}")
        elif dice < 0.5:
            used = sum(len(inode.cache) for inode in self.disk.names.values())
            self.disk.capacity = used + self.rng.randrange(20_000)
            self.note("the disk is nearly full")
        if dice < 0.5:
            self._keep_busy()

    def _crash(self) -> None:
        """Stop at some call of the operating system that is still to come, or now."""
        if self.rng.random() < 0.7:
            self.disk.crash_in = self.rng.randrange(12)
            with suppress(Crash):
                for _ in range(20):
                    self._move()
        self._power_off()
        if self.rng.random() < 0.2:
            self.disk.crash_in = self.rng.randrange(30)
        self._begin()
        self.disk.crash_in = -1
        self._serve()

    def _restart(self) -> None:
        """Stop as on SIGTERM, and start again."""
        if self.rng.random() < 0.5:
            return
        self.note("*** stop ***")
        stopped: list[bool] = []
        self._heal()
        self._keep_busy()
        self.server.stop(lambda: stopped.append(True))
        for _ in range(300):
            self._move()
            self._flow()
            self.host.pass_time(100)
            if stopped:
                break
        else:
            raise Violation("the server does not stop")
        self._flow()
        for client in self.clients.values():
            if client.socket is not None and not client.socket.is_over:
                raise Violation(f"the server stopped, and {client.name} is still connected")
        self.wall_ms = self.host.now_ms() + 1
        # After a failed sync no start can know what a later power cut takes.
        if self.disk.hides_loss and "power" in self.ends:
            self.disk.crash()
        self._forget_clients()
        self.loop.abandon()
        self._begin()
        self._serve()

    def _keep_busy(self) -> None:
        """Let some wait for messages, and some be on their way, when a stop or trouble comes."""
        for client in self.clients.values():
            act = next((act for act in ("pop", "send", "publish") if act in client.ACTS), "")
            if act and self.rng.random() < 0.5:
                client.step(act)
        for _ in range(self.rng.randrange(8)):
            self._move()

    # --- the end

    def _flow(self) -> None:
        """Let all bytes move until none is left."""
        for _ in range(100):
            self.host.settle()
            if not any([client.flow() for client in self.clients.values()]):
                break

    def _end(self, found: list[BaseException]) -> None:
        self.rng.seed(self.seed)
        if self.trace is not None:
            self.trace.append("the end")
        self._heal()
        with running(self.loop):
            for _ in range(15):
                self._flow()
                self.host.pass_time(1000)
            self._flow()
            self._check(found)
            for client in self.clients.values():
                self._take_leave(client)
            self.host.settle()
            for _ in range(3):
                self.host.pass_time(10_000)  # leases run out
                self.host.settle()
            out = self._drain()
            self._check(found)
        self.history.judge([copy for copies in out.values() for _, copy in copies])
        for name, copies in out.items():
            self.history.judge_order(name, [copy.token for _, copy in sorted(copies) if not copy.group])

    def _take_leave(self, client: Client) -> None:
        """All is quiet: whatever was asked on a connection that is still there was answered."""
        if client.socket is None:
            return
        if client.pending and not client.is_leaving:
            raise Violation(f"{client.name} was never answered: {sorted(client.pending)}")
        if isinstance(client, StompClient) and not client.pending:
            client.imply()
        client.socket.die()
        client.gone()

    def _drain(self) -> dict[str, list[tuple[int, Copy]]]:
        """Take everything out of all queues and ack it."""
        out: dict[str, list[tuple[int, Copy]]] = {}
        for queue in self.broker.queues():
            out[queue.name.queue] = []
            for group in self.readers:
                self._drainer(queue, group, out[queue.name.queue])
        see_drained(self.host, self.broker.queues, self.readers, rounds=8)
        return out

    def _drainer(self, queue: LocalQueue, group: str, out: list[tuple[int, Copy]]) -> None:
        drain = _Drain(queue.name.queue, group)

        def deliver(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                message = delivery.message
                received = Received(message.body, _fields(message.headers), delivery.tries)
                copy = self.history.receive(drain, received)
                self.history.live.pop(copy, None)
                out.append((message.seq, copy))
            ack([delivery.message.seq for delivery in deliveries])

        def ack(seqs: list[int]) -> None:
            """Continue until it is taken: a queue that failed refuses settles for a while."""
            consumer.ack(seqs, on_done=lambda error: again(seqs) if error else None)

        def again(seqs: list[int]) -> None:
            self.host.call_later(1000, lambda: ack([seq for seq in seqs if seq in consumer.unsettled]))

        consumer = queue.subscribe(deliver, window=50, group=group, on_closed=lambda _: None)


def _fields(block: bytes) -> dict[str, str]:
    """Return the user headers in a block by the names they have in JSON."""
    lines = dict(reversed(blocks.decode(block)))
    lines.pop("x-http-charset", None)
    return {name if name.startswith("x-") else f"x-msg-x-{name}": value for name, value in lines.items()}
