"""`_eval`: the statistics that MQKS clients ask for, found by the exact expressions that they send.

In MQKS this action evaluated any Python on the server. Here an expression is a key of a table; nothing is executed. A
list of such expressions in brackets, and a leading `--worker=0`, are also accepted. A request computes each figure
once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from curbstone.mqks.errors import RequestError

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.mqks.registry import Registry

_WORKER = re.compile(r"--worker=([0-9]{1,6}) +")
_SPACES = re.compile(r"\s+")

PARTS_MAX = 100
"""The most expressions in one list."""
CODE_BYTES_MAX = 16 * 1024

Figure = Callable[["Registry"], int]


def answer(code: str, registry: Registry) -> str:
    """Return the value of an expression; raise RequestError for one that is not in the table."""
    if len(code) > CODE_BYTES_MAX:
        raise RequestError(f"an _eval has at most {CODE_BYTES_MAX} bytes")
    worker = _WORKER.match(code)
    if worker is not None:
        if int(worker[1]):
            raise RequestError("--worker must be 0, the only worker")
        code = code[worker.end() :]
    code = _SPACES.sub("", code).replace(".itervalues()", ".values()")
    if code.startswith("[") and code.endswith("]") and code not in _FIGURES:
        parts = _parts(code[1:-1])
        if len(parts) > PARTS_MAX:
            raise RequestError(f"an _eval has at most {PARTS_MAX} expressions")
        figures = {part: _figure(part) for part in parts}
        values = {part: str(figure(registry)) for part, figure in figures.items()}
        return f"[{', '.join([values[part] for part in parts])}]"
    return str(_figure(code)(registry))


def _figure(expression: str) -> Figure:
    figure = _FIGURES.get(expression)
    if figure is None:
        raise RequestError(f"unsupported _eval expression; supported: {', '.join(_FIGURES)}")
    return figure


def _parts(text: str) -> list[str]:
    """Split a text at the commas outside of brackets."""
    parts: list[str] = []
    depth = 0
    for piece in text.split(","):
        if depth:
            parts[-1] += "," + piece
        else:
            parts.append(piece)
        depth += piece.count("(") + piece.count("[") - piece.count(")") - piece.count("]")
    return [part for part in parts if part]


def _queues(registry: Registry) -> Sequence[Queue]:
    return registry.engine.queues()


def _events(registry: Registry) -> int:
    return registry.engine.events_bound


def _queues_bound(registry: Registry) -> int:
    return sum([bool(registry.engine.bindings(queue.name)) for queue in _queues(registry)])


def _queued(registry: Registry) -> int:
    return registry.engine.broker.past.published + sum([queue.stats.published for queue in _queues(registry)])


def _consumed(registry: Registry) -> int:
    return registry.engine.broker.past.delivered + sum([queue.stats.delivered for queue in _queues(registry)])


def _in_queues(registry: Registry) -> int:
    return sum([counts.rdy + counts.delayed for counts in [queue.counts() for queue in _queues(registry)]])


def _waiting_ack(registry: Registry) -> int:
    return sum([queue.counts().wip for queue in _queues(registry)])


def _clients_of_consumers(registry: Registry) -> int:
    consumers = [consumer for queue in _queues(registry) for consumer in registry.consumers_of(queue.name)]
    return len({id(consumer.owner) for consumer in consumers})


_FIGURES: dict[str, Figure] = {
    "WORKERS": lambda _: 1,
    "state.published": lambda registry: registry.traffic.published,
    "state.queued": _queued,
    "state.consumed": _consumed,
    "len(state.queues)": lambda registry: len(_queues(registry)),
    "len([uforuinstate.queues_used.values()ifu.is_set()])": lambda registry: registry.queues_used,
    "len(state.queues_to_delete_when_unused)": lambda registry: registry.unused_count,
    "state.commands_put": lambda _: 0,
    "state.commands_got": lambda _: 0,
    "sum(c.qsize()forcinstate.commands_to_workers.values())": lambda _: 0,
    "sum(q.qsize()forqinstate.queues.values())": _in_queues,
    "sum(len(ms)formsinstate.messages_by_consumer_ids.values())": _waiting_ack,
    "sum(q.qsize()forqinstate.responses_by_clients.values())": lambda _: 0,
    "len(state.queues_by_events)": _events,
    "len(state.events_by_queues)": _queues_bound,
    "len(state.queues_by_consumer_ids)": lambda registry: registry.consumers_count,
    "sum(len(cs)forcsinstate.consumers_by_queues.values())": lambda registry: registry.consumers_count,
    "len(state.consumer_ids_by_clients)": _clients_of_consumers,
    "len(set(state.clients_by_consumer_ids.values()))": _clients_of_consumers,
    "len(state.socks_by_clients)": lambda registry: len(registry.sessions),
}
