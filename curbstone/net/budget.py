"""One memory budget for incomplete input and unread output of all connections.

Each connection has its own limit, but many connections together could still fill the memory with messages that are
never completed and responses that are never read. So the bytes of all connections of all protocols are counted, for the
server and for each user. The share of a user is a quarter; before a login, and where there are no users, it is that of
an address.

When a share is used up, only that user is affected. Its connections get no new deliveries, and no new pages are made
for it, until it has read a quarter of its share. Of its connections with unfinished input only the oldest is still
read, so that well-behaved clients that send at once finish one after the other. If that one stalls, or if the others
have begun more than half a share, the connection with the most unfinished input is refused. When the whole budget is
used up, the largest users are treated in the same way. A peer that reads nothing for a minute is disconnected. This
module does not handle sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from curbstone.net.limits import BUFFERED_BYTES_MAX, UNREAD_S_MAX

SHARES = 4
"""The share of a user is the budget divided by this."""
SMALL_BYTES = 16 * 1024
"""Unfinished input up to this size is not counted, so that ordinary reads have no overhead."""
STEP_BYTES = 64 * 1024
"""How much the connection that is still read must receive per second while others wait for it."""

CALM_BYTES, CALM_S = 16 * 1024 * 1024, 5
"""The smallest peak after which memory is given back, and after how many seconds below a quarter of the peak."""

SLOW_S = 5
"""How long the input that others wait for may stall before the largest is refused."""

REFUSED = "this user has too much unfinished input and unread output; send it again later"


class Holder(Protocol):
    """A connection."""

    def pause_output(self) -> None:
        """Stop deliveries."""

    def resume_output(self) -> None:
        """Resume deliveries."""

    def pause_input(self) -> None:
        """Stop reading."""

    def resume_input(self) -> None:
        """Resume reading."""

    def evict(self) -> None:
        """Drop the unfinished input, send the client the reason, and close the connection."""


class _NoHolder:
    """The holder before the protocol of a connection starts, and after it has ended."""

    def pause_output(self) -> None:
        """Do nothing."""

    resume_output = pause_input = resume_input = evict = pause_output


_NO_HOLDER = _NoHolder()


class Share:
    """The memory that the connections of one user hold together."""

    __slots__ = ("accounts", "bytes", "first", "first_bytes", "inputs", "is_held", "key", "slow_s", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.accounts: set[Account] = set()
        self.bytes = 0
        self.is_held = False
        """Whether it is used up: no new deliveries and pages, and only the first of `inputs` is read."""
        self.inputs: dict[Account, None] = {}
        """The connections with counted input, the oldest input first."""
        self.waiting: deque[Waiting] = deque()
        """The pages that wait for memory, in order."""
        self.first: Account | None = None
        self.first_bytes = 0
        """The first of `inputs` at the last check, and its bytes."""
        self.slow_s = 0
        """For how many checks it has received less than `STEP_BYTES`."""


class Waiting:
    """A page that waits for memory."""

    __slots__ = ("account", "proceed", "share", "size")

    def __init__(self, account: Account, size: int, proceed: Callable[[], None]) -> None:
        self.account = account
        self.share = account.share
        self.size = size
        self.proceed = proceed

    def cancel(self) -> None:
        if self in self.share.waiting:
            self.share.waiting.remove(self)


class Account:
    """The memory that one connection holds."""

    __slots__ = (
        "holder", "input", "is_paused", "output", "page", "share",
        "_budget", "_is_closed", "_is_complete", "_pausing", "_unread_since_s", "_unsent",
    )  # fmt: skip

    def __init__(self, budget: Budget, share: Share) -> None:
        self._budget = budget
        self.share = share
        share.accounts.add(self)
        self.holder: Holder = _NO_HOLDER
        self.input = 0
        self.output = 0
        self.page = 0
        """The bytes reserved for a page that is being made."""
        self.is_paused = False
        """Whether its input is paused."""
        self._is_complete = False
        self._is_closed = False
        """Whether the connection has ended; then only a page that is still being made is counted."""
        self._pausing: dict[Callable[[], None], None] = {}
        self._unsent = 0
        self._unread_since_s = 0.0

    @property
    def is_held(self) -> bool:
        """Whether no new deliveries and pages may be made for it."""
        return self.share.is_held

    def set_holder(self, holder: Holder) -> None:
        """Set the object that handles the connection; a WebSocket replaces the one of HTTP."""
        self.holder = holder
        if self.share.is_held:
            holder.pause_output()

    def hold_input(self, size: int, is_another: bool = False, *, is_complete: bool = False) -> None:
        """Set the number of bytes of unprocessed input. `is_another`: it is a new message, not more of the last one.

        `is_complete`: the input is being processed, so it is too late to refuse it.
        """
        if size <= SMALL_BYTES or self._is_closed:
            if self.input:
                self._budget.drop_input(self)
            return
        self._is_complete = is_complete
        share = self.share
        if is_another and self.input:
            del share.inputs[self]  # so that it is inserted again at the end: the dict is ordered by age
        share.inputs[self] = None
        more, self.input = size - self.input, size
        self._budget.add(share, more)
        if share.is_held:
            self._budget.read_first(share)
            self.pause_input(next(iter(share.inputs)) is not self)
            self._budget.bound(share)

    def hold_output(self, size: int) -> None:
        """Set the number of bytes of output that the socket has not accepted."""
        if size != self.output and not self._is_closed:
            more, self.output = size - self.output, size
            self._budget.add(self.share, more)

    def set_aside(self, size: int) -> None:
        """Reserve bytes for a page that is being made; 0 when it is written or dropped."""
        if self._is_closed:
            if self.page and not size:
                self._budget.end_page(self)
        elif size != self.page:
            more, self.page = size - self.page, size
            self._budget.add(self.share, more)

    def when_room(self, size: int, proceed: Callable[[], None]) -> Waiting | None:
        """Reserve bytes for a page and return None, or do so later and then call `proceed`, unless cancelled."""
        share = self.share
        if self._is_closed or (not share.waiting and self._budget.has_room(share, size)):
            self.set_aside(size)
            return None
        waiting = Waiting(self, size, proceed)
        share.waiting.append(waiting)
        return waiting

    def on_pause(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` whenever deliveries must stop; return a function that stops this."""
        self._pausing[fn] = None

        def end() -> None:
            self._pausing.pop(fn, None)

        return end

    def move_to(self, key: Hashable) -> None:
        """Count the connection towards another share."""
        if key != self.share.key:
            self._budget.move(self, key)

    def is_stuck(self, unsent: int, now_s: float) -> bool:
        """Set the number of bytes that the socket has not accepted; return whether the peer has stopped reading."""
        if unsent < self._unsent or not unsent or not self._unsent:
            self._unread_since_s = now_s
        self._unsent = unsent
        self.hold_output(unsent)
        if now_s - self._unread_since_s <= UNREAD_S_MAX:
            return False
        self._budget.unread += 1
        return True

    def close(self) -> None:
        self._is_closed = True
        self.holder = _NO_HOLDER
        self._pausing.clear()
        self._budget.close(self)

    # --- what the budget calls

    @property
    def is_refusable(self) -> bool:
        """Whether it has unfinished input that can still be refused."""
        return bool(self.input) and not self._is_complete

    def pause_output(self) -> None:
        """Stop deliveries."""
        self.holder.pause_output()
        for fn in list(self._pausing):
            fn()

    def pause_input(self, on: bool) -> None:
        """Stop reading, or continue."""
        if on != self.is_paused:
            self.is_paused = on
            if on:
                self.holder.pause_input()
            else:
                self.holder.resume_input()


class Budget:
    """The budget of the process; see the module's docstring."""

    def __init__(self, bytes_max: int = BUFFERED_BYTES_MAX, largest: int = 0) -> None:
        """`largest`: the size of the largest message, which a share must be able to hold."""
        self.bytes_max = max(bytes_max, SHARES * largest)
        self.share_max = self.bytes_max // SHARES
        self.bytes = 0
        self.refused = 0
        """The number of connections refused because of their unfinished input."""
        self.unread = 0
        """The number of connections aborted because their peer did not read."""
        self.on_held: Callable[[Hashable], None] = lambda _key: None
        """Called with the key of a share that is used up."""
        self.on_calm: Callable[[], None] = lambda: None
        """Called some time after a peak, so that freed memory can be given back to the system."""
        self._shares: dict[Hashable, Share] = {}
        self._peak = 0
        self._calm_s = 0

    def account(self, key: Hashable = "") -> Account:
        """Return the account for a new connection."""
        return Account(self, self._share(key))

    @property
    def users_held(self) -> int:
        """The number of shares that are used up."""
        return sum(share.is_held for share in self._shares.values())

    def has_room(self, share: Share, size: int) -> bool:
        """Return whether a page of this size can be made. If a user holds nothing else, it may have any size."""
        if share.is_held:
            return False
        fits = share.bytes + size <= self.share_max and self.bytes + size <= self.bytes_max
        return fits or not share.bytes

    def check(self) -> None:
        """Check that the connections that others wait for make progress; called each second."""
        self._check_calm()
        for share in [share for share in self._shares.values() if share.is_held or share.waiting]:
            self._release(share)
            first = next(iter(share.inputs), None)
            waits = any(account.is_paused for account in share.inputs)
            is_slow = waits and first is share.first and _input_of(first) < share.first_bytes + STEP_BYTES
            share.slow_s = share.slow_s + 1 if is_slow else 0
            # On a busy machine even a well-behaved client may send nothing for a second or two.
            if share.slow_s >= SLOW_S:
                self._refuse_largest(share)
                share.slow_s = 0
                first = next(iter(share.inputs), None)
            share.first, share.first_bytes = first, _input_of(first)

    # --- what accounts call

    def add(self, share: Share, more: int) -> None:
        """Count bytes, or release them if `more` is negative."""
        share.bytes += more
        self.bytes += more
        if more > 0:
            if share.bytes > self.share_max:
                self._hold(share)
            if self.bytes > self.bytes_max:
                self._hold_largest()
        elif share.is_held or share.waiting:
            self._release(share)

    def drop_input(self, account: Account) -> None:
        """Release the input of a connection, which was processed or dropped."""
        share = account.share
        share.inputs.pop(account, None)
        size, account.input = account.input, 0
        account.pause_input(False)
        self.read_first(share)
        self.add(share, -size)

    def bound(self, share: Share) -> None:
        """Refuse the largest input at once if other connections have begun far more than the share allows."""
        if share.bytes > self.share_max * 3 // 2 or self.bytes > self.bytes_max * 5 // 4:
            self._refuse_largest(share)

    def read_first(self, share: Share) -> None:
        """Resume the connection with the oldest unfinished input."""
        if first := next(iter(share.inputs), None):
            first.pause_input(False)

    def move(self, account: Account, key: Hashable) -> None:
        size = account.input + account.output + account.page
        before = account.share
        has_input = before.inputs.pop(account, 0) is None
        was_held = before.is_held
        self._leave(account, size)
        account.share = share = self._share(key)
        share.accounts.add(account)
        account.pause_input(False)
        if has_input:
            share.inputs[account] = None
        self.add(share, size)
        if share.is_held and has_input:
            account.pause_input(next(iter(share.inputs)) is not account)
        if share.is_held and not was_held:
            account.pause_output()
        elif was_held and not share.is_held:
            account.holder.resume_output()

    def close(self, account: Account) -> None:
        share = account.share
        share.inputs.pop(account, None)
        share.waiting = deque(each for each in share.waiting if each.account is not account)
        size = account.input + account.output
        account.input = account.output = 0
        if account.page:  # it is still being made, and takes memory until its request has ended
            self.read_first(share)
            self.add(share, -size)
        else:
            self._leave(account, size)

    def end_page(self, account: Account) -> None:
        """Remove a closed connection, whose last page is dropped."""
        size, account.page = account.page, 0
        self._leave(account, size)

    # --- internal

    def _check_calm(self) -> None:
        self._peak = max(self._peak, self.bytes)
        if self._peak < CALM_BYTES or self.bytes > self._peak // 4:
            self._calm_s = 0
            return
        self._calm_s += 1
        if self._calm_s >= CALM_S:
            self._peak = self.bytes
            self._calm_s = 0
            self.on_calm()

    def _share(self, key: Hashable) -> Share:
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = Share(key)
        return share

    def _leave(self, account: Account, size: int) -> None:
        share = account.share
        share.accounts.discard(account)
        self.read_first(share)
        self.add(share, -size)
        if not share.accounts and self._shares.get(share.key) is share:
            del self._shares[share.key]

    def _hold(self, share: Share) -> None:
        if share.is_held:
            return
        share.is_held = True
        self.on_held(share.key)
        for account in list(share.accounts):
            account.pause_output()
        for account in list(share.inputs)[1:]:
            account.pause_input(True)

    def _hold_largest(self) -> None:
        free = [share for share in self._shares.values() if not share.is_held]
        if free:
            self._hold(max(free, key=lambda share: share.bytes))

    def _release(self, share: Share) -> None:
        """Resume a share once it is a quarter below its limit, so that it is not paused again at once."""
        if share.is_held:
            if share.bytes > (self.share_max * 3 // 4 if self.bytes <= self.bytes_max else 0):
                return
            share.is_held = False
            for account in list(share.accounts):
                account.pause_input(False)
                account.holder.resume_output()
        while share.waiting and self.has_room(share, share.waiting[0].size):
            waiting = share.waiting.popleft()
            waiting.account.set_aside(waiting.size)
            waiting.proceed()

    def _refuse_largest(self, share: Share) -> None:
        refusable = [account for account in share.inputs if account.is_refusable]
        if refusable:
            largest = max(refusable, key=lambda account: account.input)
            self.refused += 1
            holder = largest.holder
            self.drop_input(largest)
            holder.evict()


def _input_of(account: Account | None) -> int:
    return account.input if account is not None else 0
