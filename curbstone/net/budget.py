"""One budget for the memory that clients make the server hold: input that is not complete, and output that is not read.

Each connection has its own limit, but many connections together could still fill the memory with messages whose last
byte never arrives, and with responses that are never read. So the bytes of all connections of all protocols are added
up, for the server and for each user. A user's connections may hold a quarter; before a login, and where there are no
users, those of one address may.

When a user's share is used up, only that user notices. Its connections get no new deliveries, and no new pages are
made for it, until it has read a quarter of what it holds. Of its connections with unfinished input only the one that
began first is still read, so that honest clients which all sent at once finish one after the other. If that one
stalls too, or if the others have begun more than half a share, the connection with the most unfinished input is
refused. When the whole budget is used up, the users that hold the most are treated in the same way. A peer that reads
nothing for a minute is cut off. This module does not handle sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from curbstone.net.limits import BUFFERED_BYTES_MAX, UNREAD_S_MAX

SHARES = 4
"""A user may hold the budget divided by this."""
SMALL_BYTES = 16 * 1024
"""Unfinished input up to this size is not counted, so that the end of an ordinary read costs nothing."""
STEP_BYTES = 64 * 1024
"""How much the connection that is still read must receive in a second while others wait for it."""

CALM_BYTES, CALM_S = 16 * 1024 * 1024, 5
"""From which peak on memory is given back, and after how many seconds at less than a quarter of it."""

SLOW_S = 5
"""How long the input that others wait for may stand still before the largest is refused."""

REFUSED = "this user has too much unfinished input and unread output; send it again later"


class Holder(Protocol):
    """A connection."""

    def pause_output(self) -> None:
        """Ask for no more deliveries."""

    def resume_output(self) -> None:
        """Continue after `pause_output`."""

    def pause_input(self) -> None:
        """Stop reading."""

    def resume_input(self) -> None:
        """Continue after `pause_input`."""

    def evict(self) -> None:
        """Drop the unfinished input, send the client the reason, and end the connection."""


class _NoHolder:
    """The holder of a connection before its protocol begins, and after it has ended."""

    def pause_output(self) -> None:
        """Do nothing."""

    resume_output = pause_input = resume_input = evict = pause_output


_NO_HOLDER = _NoHolder()


class Share:
    """What the connections of one user hold together."""

    __slots__ = ("accounts", "bytes", "first", "first_bytes", "inputs", "is_held", "key", "slow_s", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.accounts: set[Account] = set()
        self.bytes = 0
        self.is_held = False
        """Whether it is used up: no new deliveries and pages, and only the first of `inputs` is read."""
        self.inputs: dict[Account, None] = {}
        """The connections with counted input, in the order in which they began it."""
        self.waiting: deque[Waiting] = deque()
        """The pages that wait for room, in order."""
        self.first: Account | None = None
        self.first_bytes = 0
        """The first of `inputs` at the last check, and its bytes."""
        self.slow_s = 0
        """For how many checks it has received less than it should."""


class Waiting:
    """A page that waits for room."""

    __slots__ = ("account", "go_on", "share", "size")

    def __init__(self, account: Account, size: int, go_on: Callable[[], None]) -> None:
        self.account = account
        self.share = account.share
        self.size = size
        self.go_on = go_on

    def cancel(self) -> None:
        """Wait no longer."""
        if self in self.share.waiting:
            self.share.waiting.remove(self)


class Account:
    """What one connection holds."""

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
        """The bytes set aside for a page that is being made."""
        self.is_paused = False
        """Whether its input is paused."""
        self._is_complete = False
        self._is_closed = False
        """Whether the connection has ended. Of what it held, only a page that is still being made counts."""
        self._pausing: dict[Callable[[], None], None] = {}
        self._unsent = 0
        self._unread_since_s = 0.0

    @property
    def is_held(self) -> bool:
        """Whether no new deliveries and pages may be made for it."""
        return self.share.is_held

    def set_holder(self, holder: Holder) -> None:
        """Set the connection, or the one that takes over from it."""
        self.holder = holder
        if self.share.is_held:
            holder.pause_output()

    def hold_input(self, size: int, is_another: bool = False, *, is_complete: bool = False) -> None:
        """Note how many bytes of input it holds that are not dealt with, and whether they are others than before.

        `is_complete`: they are being dealt with, so it is too late to refuse them.
        """
        if size <= SMALL_BYTES or self._is_closed:
            if self.input:
                self._budget.drop_input(self)
            return
        self._is_complete = is_complete
        share = self.share
        if is_another and self.input:
            del share.inputs[self]  # so that it is inserted again at the end: the dict is in the order of age
        share.inputs[self] = None
        more, self.input = size - self.input, size
        self._budget.add(share, more)
        if share.is_held:
            self._budget.read_first(share)
            self.pause_input(next(iter(share.inputs)) is not self)
            self._budget.bound(share)

    def hold_output(self, size: int) -> None:
        """Note how many bytes of its output the socket has not taken."""
        if size != self.output and not self._is_closed:
            more, self.output = size - self.output, size
            self._budget.add(self.share, more)

    def set_aside(self, size: int) -> None:
        """Set bytes aside for a page that is being made; 0 when it is written or not needed any more."""
        if self._is_closed:
            if self.page and not size:
                self._budget.end_page(self)
        elif size != self.page:
            more, self.page = size - self.page, size
            self._budget.add(self.share, more)

    def when_room(self, size: int, go_on: Callable[[], None]) -> Waiting | None:
        """Set bytes aside for a page and return None; or call `go_on` when this is done, later, unless cancelled."""
        share = self.share
        if self._is_closed or (not share.waiting and self._budget.has_room(share, size)):
            self.set_aside(size)
            return None
        waiting = Waiting(self, size, go_on)
        share.waiting.append(waiting)
        return waiting

    def on_pause(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` whenever deliveries must stop; return a function that ends this."""
        self._pausing[fn] = None

        def end() -> None:
            self._pausing.pop(fn, None)

        return end

    def move_to(self, key: Hashable) -> None:
        """Count it towards another share from now on."""
        if key != self.share.key:
            self._budget.move(self, key)

    def is_stuck(self, unsent: int, now_s: float) -> bool:
        """Note how much the socket has not taken now; return whether its peer has read nothing for too long."""
        if unsent < self._unsent or not unsent or not self._unsent:
            self._unread_since_s = now_s
        self._unsent = unsent
        self.hold_output(unsent)
        if now_s - self._unread_since_s <= UNREAD_S_MAX:
            return False
        self._budget.unread += 1
        return True

    def close(self) -> None:
        """The connection has ended."""
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
        """`largest`: what a user can hold in any case, which must be as much as its largest message."""
        self.bytes_max = max(bytes_max, SHARES * largest)
        self.share_max = self.bytes_max // SHARES
        self.bytes = 0
        self.refused = 0
        """How many connections were refused because of their unfinished input."""
        self.unread = 0
        """How many connections were cut off because their peer read nothing."""
        self.on_held: Callable[[Hashable], None] = lambda _key: None
        """Called with the key of a share that is used up."""
        self.on_calm: Callable[[], None] = lambda: None
        """Called when much was held, and little has been for a while, so that the memory can be given back."""
        self._shares: dict[Hashable, Share] = {}
        self._peak = 0
        self._calm_s = 0

    def account(self, key: Hashable = "") -> Account:
        """Return the account of a new connection."""
        return Account(self, self._share(key))

    @property
    def users_held(self) -> int:
        """How many shares are used up now."""
        return sum(share.is_held for share in self._shares.values())

    def has_room(self, share: Share, size: int) -> bool:
        """Return whether a page of this size can be made. The only page of a user may have any size."""
        if share.is_held:
            return False
        fits = share.bytes + size <= self.share_max and self.bytes + size <= self.bytes_max
        return fits or not share.bytes

    def check(self) -> None:
        """See whether the connections that others wait for continue; called each second."""
        self._check_calm()
        for share in [share for share in self._shares.values() if share.is_held or share.waiting]:
            self._release(share)
            first = next(iter(share.inputs), None)
            waits = any(account.is_paused for account in share.inputs)
            is_slow = waits and first is share.first and _input_of(first) < share.first_bytes + STEP_BYTES
            share.slow_s = share.slow_s + 1 if is_slow else 0
            # On a busy machine an honest client, too, may send nothing for a second or two.
            if share.slow_s >= SLOW_S:
                self._refuse_largest(share)
                share.slow_s = 0
                first = next(iter(share.inputs), None)
            share.first, share.first_bytes = first, _input_of(first)

    # --- what accounts call

    def add(self, share: Share, more: int) -> None:
        """Count bytes, or give them back if `more` is negative."""
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
        """The input of a connection was dealt with, or dropped."""
        share = account.share
        share.inputs.pop(account, None)
        size, account.input = account.input, 0
        account.pause_input(False)
        self.read_first(share)
        self.add(share, -size)

    def bound(self, share: Share) -> None:
        """Refuse the largest input at once if what other connections have just begun is far above the share."""
        if share.bytes > self.share_max * 3 // 2 or self.bytes > self.bytes_max * 5 // 4:
            self._refuse_largest(share)

    def read_first(self, share: Share) -> None:
        """Read the connection whose unfinished input is the oldest; it may have been paused until now."""
        if first := next(iter(share.inputs), None):
            first.pause_input(False)

    def move(self, account: Account, key: Hashable) -> None:
        """Count a connection towards another share."""
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
        """Forget a connection that has ended."""
        share = account.share
        share.inputs.pop(account, None)
        share.waiting = deque(each for each in share.waiting if each.account is not account)
        size = account.input + account.output
        account.input = account.output = 0
        if account.page:  # still being made: it takes memory until its request has ended
            self.read_first(share)
            self.add(share, -size)
        else:
            self._leave(account, size)

    def end_page(self, account: Account) -> None:
        """Forget a closed connection: the page that was being made for it is gone."""
        size, account.page = account.page, 0
        self._leave(account, size)

    # --- inside

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
        """Continue with a share if it holds so little that this will not be over at once."""
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
            waiting.go_on()

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
