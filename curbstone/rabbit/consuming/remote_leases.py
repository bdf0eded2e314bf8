"""Leases of other gateways. Any gateway accepts a call to settle a lease, and forwards it to the lease's gateway.

A token begins with the address of its gateway. A gateway that is gone has no leases, because the broker has requeued
its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.values import Outcome, Stale, WasThere
from curbstone.rabbit.shared.gateway_rpc import GatewayRpc
from curbstone.rabbit.shared.ids import time_of

if TYPE_CHECKING:
    from curbstone.rabbit.engine import Engine
    from curbstone.rabbit.queue import Queue

CLOCKS_APART_MS_MAX = 60_000
ANY_MS_MAX = 500
"""How long to wait for an answer when any gateway may hold the message."""

Settled = Callable[[CurbstoneError | None, int, list[str]], None]


class _Shares(NamedTuple):
    """Tokens by the number of their gateway, which is called once, even if tokens name several of its starts."""

    mine: list[str]
    others: dict[int, list[str]]
    nobodys: list[str]


def _shares(rpc: GatewayRpc, tokens: list[str]) -> _Shares:
    shares = _Shares([], {}, [])
    for token in tokens:
        address = token.partition(".")[0]
        number = rpc.number_of(address)
        if rpc.is_mine(address):
            shares.mine.append(token)
        elif number is None:
            shares.nobodys.append(token)
        else:
            shares.others.setdefault(number, []).append(token)
    return shares


def settle(
    queue: Queue, tokens: list[str], outcome: Outcome, on_done: Settled, delay_ms: int | None, error: str, owner: str
) -> None:
    rpc = queue.engine.rpc
    mine, others, nobodys = _shares(rpc, tokens)
    left = len(others) + 1
    settled = 0
    stale = list(nobodys)
    first: CurbstoneError | None = None

    def done(failed: CurbstoneError | None, count: int, gone: list[str]) -> None:
        nonlocal left, settled, first
        left -= 1
        settled += count
        stale.extend(gone)
        first = first or failed
        if not left:
            on_done(first, settled, stale)

    call = {
        "do": "settle",
        "uid": queue.uid,
        "outcome": outcome.value,
        "delay_ms": delay_ms,
        "error": error,
        "owner": owner,
    }
    for number, some in others.items():

        def answered(answer: dict[str, Any] | None, some: list[str] = some) -> None:
            if answer is None or answer.get("gone"):
                done(None, 0, some)
            else:
                text = answer["error"]
                done(Unavailable(text) if text else None, answer["settled"], answer["stale"])

        rpc.call(number, {**call, "tokens": some}, answered)
    queue.leasing.settle(mine, outcome, done, delay_ms, error, owner)


def extend(queue: Queue, tokens: list[str], duration_ms: int, on_done: Stale, owner: str) -> None:
    rpc = queue.engine.rpc
    mine, others, nobodys = _shares(rpc, tokens)
    left = len(others) + 1
    stale = list(nobodys)

    def done(gone: list[str]) -> None:
        nonlocal left
        left -= 1
        stale.extend(gone)
        if not left:
            on_done(None, stale)

    call = {"do": "extend", "uid": queue.uid, "duration_ms": duration_ms, "owner": owner}
    for number, some in others.items():

        def answered(answer: dict[str, Any] | None, some: list[str] = some) -> None:
            done(some if answer is None or answer.get("gone") else answer["stale"])

        rpc.call(number, {**call, "tokens": some}, answered)
    gone = queue.leasing.extend(mine, duration_ms, owner)
    queue.engine.host.call_soon(lambda: done(gone))


def settle_seq(queue: Queue, seq: int, on_done: WasThere, owner: str) -> None:
    engine = queue.engine
    settled = queue.leasing.settle_seq(seq, owner)
    if settled is not None or not _may_be_there(queue, seq):
        engine.host.call_soon(partial(on_done, None, bool(settled)))
        return

    def deleted(error: CurbstoneError | None) -> None:
        on_done(error, error is None)

    def answered(answer: dict[str, Any] | None) -> None:
        if answer is None:
            engine.propose({"do": "deleted", "uid": queue.uid, "seq": seq}, deleted)
        else:
            on_done(None, bool(answer["settled"]))

    engine.rpc.call_all({"do": "settle_seq", "uid": queue.uid, "seq": seq, "owner": owner}, ANY_MS_MAX, answered)


def _may_be_there(queue: Queue, seq: int) -> bool:
    """Return whether a message with this number may be in the queue."""
    is_of_the_past = time_of(seq) <= queue.engine.host.wall_ms() + CLOCKS_APART_MS_MAX
    return is_of_the_past and seq > queue.purged and seq not in queue.definition.deleted


def answer(engine: Engine, what: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Carry out a call of another gateway. `reply` takes the answer."""
    queue = engine.by_uid(what.get("uid", ""))
    match what["do"]:
        case "settle" if queue is not None:

            def settled(error: CurbstoneError | None, count: int, stale: list[str]) -> None:
                reply({"error": str(error) if error else "", "settled": count, "stale": stale})

            outcome = Outcome(what["outcome"])
            queue.leasing.settle(what["tokens"], outcome, settled, what["delay_ms"], what["error"], what["owner"])
        case "extend" if queue is not None:
            reply({"stale": queue.leasing.extend(what["tokens"], what["duration_ms"], what["owner"])})
        case "settle_seq" if queue is not None:
            was_mine = queue.leasing.settle_seq(what["seq"], what["owner"])
            if was_mine is not None:
                reply({"settled": was_mine})
        case "unsettled":
            engine.unsettled.receive(what["from"], what["counts"])
        case "used":
            engine.idle_deletion.receive(what["uids"])
        case "carried out":
            engine.journal.carried_out(what["number"])
            reply({})
        case "full":
            engine.journal.mark_full(what["uid"])
        case _:
            reply({"gone": True})
