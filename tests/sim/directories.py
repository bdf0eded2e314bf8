"""What a simulated run does to queues' directories: deleted and made again, caps raised and lowered, other defaults.

It has dice of its own, so the rest of a seed's history does not depend on it. What is judged beside the history:
nothing that was in a queue when its deletion was confirmed returns; a lease of a deleted queue settles nothing in
the new one; a directory never holds more than the cap that is sure to be found there after a crash. Only where the
server was started with a smaller default it may, and then it comes down with what it holds.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.directories import GONE_SUFFIX
from curbstone.core.errors import Conflict, CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.values import Done, Outcome, Peeked
from tests.kit.simulated import Crash
from tests.sim.disk_faults import disk_recovers
from tests.sim.history import GROUP_STEP, GROUPS, Violation

if TYPE_CHECKING:
    from tests.sim.run import Run

KIB = 1024
CAP = 96 * KIB
CAPS = (64 * KIB, CAP, 128 * KIB, 192 * KIB)
ROOMY_CAPS = (256 * KIB, 512 * KIB, 768 * KIB, 1024 * KIB)
"""In these, segments are smaller when much of the cap is live. In the others, nearly all are of the least size."""
STEPS_MAX = 10_000

PAUSES = ("paused", "publish_paused")


class Directories:
    """The directories of one run; `focus` names the action it has most of."""

    def __init__(self, run: Run, seed: int, focus: str) -> None:
        self._run = run
        self._rng = Random(f"{seed} directories")
        self._focus = focus
        self._caps = ROOMY_CAPS if focus == "roomy" else CAPS
        self._remakes = self._rng.random() < 0.25 or focus == "remake"
        self._recaps = self._rng.random() < 0.25 or focus in ("recap", "roomy")
        self._restarts_smaller = self._rng.random() < 0.15 or focus == "fill"
        self._pauses = self._rng.random() < 0.25 or focus == "pause"
        self._default = self._caps[-1 if self._restarts_smaller else 1]
        self._paused: dict[tuple[str, str], bool] = {}
        """What was confirmed, by the queue's uid and the option."""
        self._pausing: dict[tuple[str, str], object] = {}
        """The latest change of each."""
        self._allowed: dict[str, int] = {}
        """What each directory may hold; those not named here, what the default says."""

    def weights(self) -> dict[str, int]:
        """Return how often each action comes, where it comes at all."""
        weights = {}
        if self._restarts_smaller:
            weights["fill"] = 2
        if self._focus == "roomy":
            weights["fill"] = 8
        if self._remakes and not self._run.reader:
            weights["remake"] = self._rng.choice([1, 2])
        if self._recaps:
            weights["recap"] = self._rng.choice([1, 3])
        if self._pauses:
            weights["pause"] = self._rng.choice([1, 3])
        if self._focus in weights:
            weights[self._focus] = 6
        return weights

    def defaults(self) -> QueueOptions:
        """Return the options that the server is started with."""
        if self._restarts_smaller and self._run.crashes:
            self._default = self._rng.choice(self._caps)
        return QueueOptions(cap=self._default, max_message_size=CAP // 8)

    def cap_of(self, directory: str) -> int | None:
        """Return how much a directory may hold. In one of a deleted queue nothing is written any more."""
        if not directory.startswith("queues/") or directory.endswith(GONE_SUFFIX):
            return None
        return self._allowed.get(directory, self._default)

    def starting(self) -> None:
        """The server is started: what it finds is not measured by the new default yet."""
        for directory in self._run.disk.dirs:
            if directory.startswith("queues/"):
                self._allowed.setdefault(directory, self._caps[-1 if self._restarts_smaller else 1])

    def started(self) -> None:
        """Take in which caps a start has found."""
        if self._run.broker.left:
            raise Violation(f"a crash alone left a queue unserved: {self._run.broker.left}")
        for queue in self._run.broker.queues():
            for option in PAUSES:
                is_so = getattr(queue.options, option)
                if is_so is not self._paused.get((queue.uid, option), is_so):
                    raise Violation(f"{option} of {queue.name} is not as was confirmed")
            cap, before = queue.options.cap, self._allowed.get(queue.log.directory, 0)
            # What was smaller needs room above the cap: to settle, and to copy a segment of the size it has.
            self._allowed[queue.log.directory] = cap if cap >= before else before + before // 4

    def forget(self) -> None:
        """What was confirmed may be lost."""
        self._paused.clear()

    # --- deleted and made again

    def remake(self) -> None:
        """Delete a queue, and maybe make it again at once, with publishes that do not wait."""
        run = self._run
        run.host.settle()
        queue = run.any_queue()
        run.host.settle()
        if queue.name.queue == "dead" and run.faults:  # what is on its way there goes with it, and can't be known
            return
        answers: list[list[Peeked] | CurbstoneError] = []
        queue.peek(100_000, answers.append)
        run.host.settle()
        if not answers or isinstance(answers[0], CurbstoneError):  # what is in it can't be known
            return
        tokens = [token for entry in answers[0] for token in run.history.tokens(entry.message)]
        run.doom(tokens)
        # What is taken, and nobody holds, is on its way to the dead letters, and may be among them after the deletion.
        leased = {run.history.token(lease.delivery.message) for owner, lease in run.leases if owner is queue}
        taken = {token for e in answers[0] if e.state == "wip" for token in run.history.tokens(e.message)}
        dying = taken - leased - set(run.history.live)
        # Of what is still under way in several queues, the part of this one goes with it.
        everything = [token + GROUP_STEP * group for token in run.history.bodies for group in range(len(GROUPS))]
        run.doom([token for token in everything if token not in run.history.confirmed])
        kept = [unit for unit in run.history.units if {*unit.publishes} <= run.history.confirmed]
        run.doom([token for unit in run.history.units if unit not in kept for token in unit.acks])
        run.history.units = kept
        self._release(queue)

        def deleted(outcome: bool | CurbstoneError) -> None:
            if outcome is True:
                run.history.gone.update(token for token in tokens if token not in dying)

        run.broker.delete(queue.name, deleted)
        for _ in range(self._rng.choice([0, 0, 1, 4])):  # its name goes from hand to hand
            run.broker.ensure(queue.name)
            run.broker.delete(queue.name, lambda _outcome: None)
        for _ in range(self._rng.choice([0, 1, 3])):
            run.publish_to(run.broker.ensure(queue.name))
        self._crash_soon()

    def _release(self, queue: LocalQueue) -> None:
        """Nobody holds anything of a queue any more; what was leased is tried on the one that comes after it."""
        run = self._run
        for consumer in [consumer for consumer in run.consumers if consumer.queue is queue]:
            run.history.released(consumer)
            run.consumers.remove(consumer)
        stale = [lease for owner, lease in run.leases if owner is queue]
        run.leases = [(owner, lease) for owner, lease in run.leases if owner is not queue]
        for lease in stale:
            run.history.live.pop(run.history.token(lease.delivery.message), None)

        def settled(_error: CurbstoneError | None, count: int, _stale: list[str]) -> None:
            if count:
                raise Violation(f"a lease of the deleted queue {queue.name} settled a message of the new one")

        def try_on_the_new() -> None:
            new = next((each for each in run.broker.queues() if each.name == queue.name), None)
            if new is not None and new is not queue and stale:
                new.settle_leases([lease.token for lease in stale], Outcome.ACK, settled)

        run.host.call_soon(lambda: run.host.call_soon(try_on_the_new))

    # --- caps

    def fill(self) -> None:
        queue = self._run.any_queue()
        for _ in range(8):
            self._run.publish_to(queue, 2000)

    def recap(self) -> None:
        queue = self._run.any_queue()
        with suppress(Conflict):
            self.declare(queue.name, {"cap": self._rng.choice(self._caps)})
            self._run.publish_to(queue)
            self._crash_soon()

    def declare(self, name: QueueName, changes: dict[str, object], reported: Done = lambda _error: None) -> None:
        """Change options. All of them are on disk then, so also a cap that could not be stored before."""
        broker = self._run.broker

        def declared(error: CurbstoneError | None) -> None:
            if error is None and queue in broker.queues():
                before = self._allowed.get(queue.log.directory, cap)
                # Once it was too large for a smaller default, it may lack room to copy its largest segment.
                self._allowed[queue.log.directory] = max(cap, before) if self._restarts_smaller else cap
            reported(error)

        broker.declare(name, changes, declared)
        queue = broker.get(name)
        cap = queue.options.cap

    # --- paused

    def pause(self) -> None:
        """Pause a queue, or let it continue; after a restart it is as was confirmed."""
        run = self._run
        queue = run.any_queue()
        option = self._rng.choice(PAUSES)
        key = queue.uid, option
        is_paused = not getattr(queue.options, option)
        self._paused.pop(key, None)
        change = self._pausing[key] = object()

        def declared(error: CurbstoneError | None) -> None:
            if error is None and self._pausing[key] is change:
                self._paused[key] = is_paused

        self.declare(queue.name, {option: is_paused}, declared)
        run.publish_to(queue)
        self._crash_soon()

    def drain(self) -> None:
        """The disk works again, every deletion comes to its end, and all queues deliver."""
        run = self._run
        disk_recovers(run.rng, run.disk)
        run.disk.crash_in = -1
        for _ in range(STEPS_MAX):
            run.host.settle()
            if not run.broker._directories.is_working:
                break
            run.host.pass_time(5)
        else:
            raise Violation("a deletion does not come to its end")
        for queue in run.broker.queues():
            self.declare(queue.name, dict.fromkeys(PAUSES, False))
        run.fairness.drain()

    def _crash_soon(self) -> None:
        """Stop, now and then, at one of the next calls of the operating system, or between two of the next jobs."""
        dice = self._rng.random()
        if dice < 0.2:
            self._run.disk.crash_in = self._rng.randrange(40)
        elif dice < 0.4:
            for _ in range(self._rng.randrange(12)):
                if not self._run.host.turn():
                    self._run.host.work()
            raise Crash

    def judge(self) -> None:
        """Everything was taken out: no directory is above its cap any more."""
        for queue in self._run.broker.queues():
            if queue.log.is_above_cap or queue.log.room.excess:
                raise Violation(f"{queue.name} is empty, and above its cap")


ACTIONS = {
    "remake": Directories.remake,
    "recap": Directories.recap,
    "fill": Directories.fill,
    "pause": Directories.pause,
}
