"""Limits answers in memory: none is built while the client's user has reached its limit of unread output.

Without this, each answer would be built and then wait in memory until its client reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from curbstone.access.errors import Busy
from curbstone.gateway.http.client_disconnect import is_gone
from curbstone.gateway.http.long_poll import Held
from curbstone.gateway.http.problem import ClientGone
from curbstone.gateway.http.scope import AnyScope
from curbstone.gateway.limits import ANSWER_WAIT_S_MAX
from curbstone.net.budget import Account

OVER_BUDGET = "unread answers of this user take all the memory that it may use; read them first"


def account_of(scope: AnyScope) -> Account:
    """Return the account of the connection of a request."""
    account: Account = scope["slot"].account
    return account


async def wait_for_budget(scope: AnyScope, size: int = 0) -> None:
    """Wait until an answer of about `size` bytes may be built; raise Busy if that takes too long."""
    account = account_of(scope)
    budget: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def proceed() -> None:
        if not budget.done():
            budget.set_result(None)

    waiting = account.when_room(size, proceed)
    if waiting is None:
        return
    try:
        async with asyncio.timeout(ANSWER_WAIT_S_MAX):
            await budget
    except TimeoutError:
        raise Busy(OVER_BUDGET) from None
    finally:
        waiting.cancel()
    if is_gone(scope):
        raise ClientGone


def within_budget(scope: AnyScope, held: Held) -> Held:
    """Return what a waiting call needs all the time: `held`, and a budget for its answer."""
    account = account_of(scope)

    def check() -> None:
        held.check()
        if account.is_held:
            raise Busy(OVER_BUDGET)

    def watch(look: Callable[[], None]) -> Callable[[], None]:
        unwatch, unpause = held.watch(look), account.on_pause(look)

        def end() -> None:
            unwatch()
            unpause()

        return end

    return Held(check, watch)
