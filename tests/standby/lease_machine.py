"""A simulated machine of those that share a lease: its directory, and the process on it, with the real rules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from curbstone.standby.barrier import StandbyBarrier
from curbstone.standby.frames import Decoder, InSync, Kind
from curbstone.standby.lag import Lag
from curbstone.standby.lease import (
    POLLS,
    Call,
    Candidate,
    Found,
    Holder,
    Lease,
    LeaseBarrier,
    NotFree,
    Replaced,
    Watch,
)
from curbstone.standby.stream import Cursor, Stream

if TYPE_CHECKING:
    from tests.standby.lease_world import World

TTL_MS = 15_000
PATIENCE_MS = 5_000
TICK_MS = 500
AGAIN_MS = 500
DRIFT = 0.06


class Machine:
    """Its process is a server, a standby, or one that is to become a server."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.rng = world.rng
        self.id = f"copy {number}"
        self._rate = 1 + self.rng.choice([-DRIFT, 0, DRIFT])
        self._offset_ms = self.rng.randrange(1_000_000)
        # What is in the directory.
        self.is_server = number == 0
        self.term = 1
        self.believed = ""
        self.items: list[int] = []
        self.is_complete = self.is_server
        self.in_sync = InSync.NO
        self.misses_some = False
        # Its troubles.
        self.is_paused = self.is_down = self.store_is_cut = self.net_is_cut = False
        self.run = 0
        self.start()

    def now_ms(self) -> int:
        return self._offset_ms + int(self.world.now_ms * self._rate)

    # --- processes

    def start(self) -> None:
        self.run += 1
        self.is_down = False
        self.waits_for: Call | None = None
        self.watch = Watch(self.now_ms)
        self.lag = Lag()
        self.holder: Holder | None = None
        self.serves = False
        self.looked_ms = self.tried_ms = -TTL_MS
        self.ticked_ms = 0
        self.source: Machine | None = None
        self.life = 0
        self.cursor: Cursor | None = None
        self.copied_ms = 0
        self.gives = False

    def end(self) -> None:
        """The process ends; what is under way to the store may still arrive there."""
        self.run += 1
        self.is_down, self.serves, self.holder, self.waits_for = True, False, None, None
        self.is_paused = False
        if self.source is not None:
            self.disconnect()
        self.world.counts["ends"] += 1

    @property
    def is_holding(self) -> bool:
        return self.holder is not None and self.holder.holds

    def mine(self) -> Lease:
        sync = (self.believed,) if self.believed and self.world.is_sync else ()
        return Lease(server="s", term=self.term, holder=self.id, name=self.id, url="", sync=sync, ttl_ms=TTL_MS)

    def ask(self, call: Call) -> None:
        self.waits_for = call
        self.world.store.ask(self, call)

    def answered(self, call: Call, result: Found | None | OSError) -> None:
        self.tried_ms = self.now_ms()
        try:
            if self.holder is not None:
                if isinstance(result, OSError):
                    self.holder.failed()
                    if not (self.serves or self.is_server):
                        self.holder = None  # a standby looks again
                else:
                    self.holder.answer(result)
                    self.tried_ms = -TTL_MS
                    if not self.is_server:
                        self.promote()
            elif not isinstance(result, OSError):
                self.watch.observe(result)
        except Replaced as error:
            self.replaced(error.lease)
        except OSError:
            assert self.holder is not None
            self.holder.failed()

    def replaced(self, lease: Lease) -> None:
        if self.serves and self.gives and lease.holder != self.id:
            self.is_server, self.believed, self.is_complete = False, "", True
            other = next(each for each in self.world.machines if each.id == lease.holder)
            if other.source is self:
                other.in_sync = InSync.HANDED_OVER
            self.world.counts["handed over"] += 1
        if self.serves or self.is_server and self.holder is None:
            self.end()
        self.holder = None

    # --- a server

    def begin_to_serve(self) -> None:
        world = self.world
        assert self.holder is not None
        self.serves = True
        self.life = world.lives = world.lives + 1
        self.stream = Stream(lambda: world.now_ms, kept_bytes=1 << 20)
        self.stream.activate()
        self.barrier = StandbyBarrier(
            self.stream, self.now_ms, lambda: None, patience_ms=PATIENCE_MS, syncs_always=True,
            is_alone=not self.believed, record_alone=self.record_alone, may_continue_alone=self.may_continue_alone,
        )  # fmt: skip
        self.confirm_barrier = LeaseBarrier(self.holder, self.barrier if world.is_sync else None)
        self.waiting: list[tuple[int, int]] = []
        self.confirms_for: Machine | None = None
        world.begins_to_serve(self)

    def record_alone(self, is_alone: bool) -> None:
        self.believed = "" if is_alone or self.confirms_for is None else self.confirms_for.id

    def may_continue_alone(self) -> bool:
        assert self.holder is not None
        self.holder.name_in_sync()
        return self.holder.names_no_standby

    def serve(self) -> None:
        turns = [self.refresh, self.work]
        self.rng.shuffle(turns)
        for turn in turns:
            if self.serves:
                turn()

    def refresh(self) -> None:
        holder = self.holder
        assert holder is not None
        if self.now_ms() - self.ticked_ms < TICK_MS:
            return
        self.ticked_ms = self.now_ms()
        if holder.is_expired:
            self.world.counts["ran out"] += 1
            self.end()
            return
        if self.world.is_sync:
            self.tick(holder)

    def work(self) -> None:
        """Write something, and confirm what may be."""
        if self.gives:
            return
        if self.rng.random() < 0.3:
            self.world.items += 1
            self.barrier.begin()
            self.stream.write("x", 0, [b"%d" % self.world.items])
            self.items.append(self.world.items)
            self.waiting.append((self.confirm_barrier.end(), self.world.items))
        while self.waiting and self.confirm_barrier.allows(self.waiting[0][0]):
            self.world.confirm(self, self.waiting.pop(0)[1])
        if self.rng.random() < 0.0005:
            self.give()

    def tick(self, holder: Holder) -> None:
        if not self.barrier.tick() and self.confirms_for is not None:
            self.confirms_for.disconnect()
        if self.barrier.is_in_sync:
            holder.name_in_sync(self.believed)

    def give(self) -> None:
        """Hand over to a standby that has everything."""
        attached = [each for each in self.world.machines if each.source is self and each.source_run == self.run]
        followers = [each for each in attached if each.is_complete and not each.is_paused]
        if followers and self.holder is not None and self.holder.holds:
            self.world.counts["handovers begun"] += 1
            self.gives = True  # and confirms nothing, while the standby receives everything
            followers[0].receive(1 << 20)
            self.holder.hand_over(followers[0].id, followers[0].id)

    def is_given_up(self) -> bool:
        assert self.holder is not None
        return self.gives and self.holder.holds

    # --- a standby

    def follow(self) -> None:
        if self.source is None:
            self.connect()
        elif self.source.run != self.source_run or not self.source.serves or self.net_is_cut or self.source.net_is_cut:
            self.disconnect()
        elif self.source.is_paused:
            return
        else:
            self.catch_up()

    def connect(self) -> None:
        servers = [
            each for each in self.world.machines if each.serves and each.term >= self.term and not each.is_paused
        ]
        if not servers or self.rng.random() < 0.9 or self.net_is_cut:
            return
        source = max(servers, key=lambda each: each.term)
        if source.net_is_cut:
            return
        barrier = source.barrier
        if self.world.is_sync:
            if barrier.may_be_in_sync and source.believed not in ("", self.id):
                return
            if any(each.source is source and each.source_run == source.run for each in self.world.machines):
                return  # confirms wait for one standby only
        lacks = not (self.world.is_sync and barrier.may_be_in_sync)
        resumed = source.stream.resume(self.position, lambda _: None) if self.life == source.life else None
        if resumed is None or not self.is_complete:
            self.is_complete, self.in_sync = False, InSync.NO
            self.copied_ms = self.world.now_ms + self.rng.choice([0, 500, 5000])
            self.items = list(source.items)
            self.cursor = source.stream.begin(lambda _: None)
        else:
            self.cursor = resumed
        if lacks:
            self.in_sync = InSync.NO
        self.life, self.term, self.believed, self.is_server = source.life, source.term, "", False
        self.position = self.cursor.position
        self.decoder = Decoder(self.position)
        self.source, self.source_run = source, source.run
        self.lag.begin()

    position = 0
    source_run = 0

    def disconnect(self) -> None:
        source = self.source
        self.source = None
        assert self.cursor is not None and source is not None
        source.stream.detach(self.cursor)
        if source.run == self.source_run and source.serves and source.confirms_for is self:
            source.confirms_for = None
            source.barrier.standby_lost()

    def catch_up(self) -> None:
        """Receive some of what the server has sent, and acknowledge it."""
        source = self.source
        assert source is not None and self.cursor is not None
        if self.rng.random() < 0.5:
            self.receive(self.rng.choice([1, 100, 1000]))
        if not self.is_complete and self.world.now_ms >= self.copied_ms and not self.cursor.pending_bytes:
            self.is_complete = True
        if self.rng.random() < 0.1:
            self.lag.replied(source.stream.end, self.now_ms())
        self.lag.reached(self.position if self.is_complete else 0)
        if self.is_complete and self.world.is_sync and self.rng.random() < 0.3:
            if source.confirms_for is None:
                source.confirms_for = self
                source.barrier.standby_attached()
            source.barrier.acknowledge(self.position)

    def receive(self, bytes_max: int) -> None:
        assert self.cursor is not None
        for frame in self.decoder.feed(b"".join(self.cursor.take(bytes_max))):
            self.position = frame.end
            if frame.kind is Kind.WRITE:
                self.items.append(int(frame.payload))
            elif frame.kind is Kind.STATE:
                self.in_sync = InSync(frame.flag)

    def consider(self) -> None:
        """Take the lease if that is allowed."""
        copy = Candidate(self.id, "s", self.term, self.is_complete, self.in_sync != InSync.NO, self.lag.current_ms)
        try:
            self.misses_some = bool(self.watch.possible_loss(copy, self.world.lag_ms))
        except NotFree:
            return
        assert self.watch.found is not None
        if self.source is not None:
            self.disconnect()
        self.holder = Holder(replace(self.mine(), term=self.term + 1), self.watch.found.version, self.now_ms)
        call = self.holder.call()
        assert call is not None
        self.ask(call)

    def promote(self) -> None:
        self.is_server, self.is_complete, self.believed, self.in_sync = True, False, "", InSync.NO
        self.term += 1
        self.world.counts["takes with a lag" if self.misses_some else "takes"] += 1
        self.world.takes_over(self)
        self.start()

    # --- all

    def step(self) -> None:
        if self.is_down or self.is_paused:
            return
        if self.holder is not None and self.is_server:
            if self.waits_for is None and self.now_ms() - self.tried_ms > AGAIN_MS:
                call = self.holder.call()
                if call is not None:
                    self.ask(call)
            if not self.serves and self.holder.holds:
                self.begin_to_serve()
            if self.serves:
                self.serve()
                if self.holder is not None and self.is_given_up():
                    self.gives = False
            return
        if self.holder is not None:
            return
        if self.waits_for is None and self.now_ms() - self.looked_ms >= TTL_MS // POLLS:
            self.looked_ms = self.now_ms()
            self.ask(Call())
            return
        if self.is_server:
            self.become()
        else:
            self.follow()
            if self.waits_for is None:
                self.consider()

    def become(self) -> None:
        """Become the server of a directory that is one, or follow the server that has replaced it."""
        if self.waits_for is not None or self.watch.found is None and self.world.store.found is not None:
            return
        try:
            lease = self.watch.lease_for(self.mine())
        except Replaced as error:
            if error.lease.term > self.term:
                self.is_server, self.is_complete = False, False
            return
        if lease is not None:
            found = self.watch.found
            self.holder = Holder(lease, found.version if found is not None else None, self.now_ms)
