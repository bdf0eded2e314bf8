"""The functions that a cluster lacks, each with the text of its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from curbstone.core.errors import NoSuchGroup, NotSupported
from curbstone.core.headers import key_of
from curbstone.core.message import Message, flags_of
from curbstone.core.options import QueueOptions
from curbstone.core.orders import BATCHED, NAMED
from curbstone.core.positions import Backlog, GroupInfo
from curbstone.core.values import NOBODY, Done

READING = "Reading by position needs the local engine: a queue on a cluster has no positions."
STAGING = "Staged transactions need the local engine."
PEEKING = "Peeking into a queue needs the local engine: on a cluster it would count as a delivery."
KEYS = "Idempotency-Key needs the local engine: a cluster keeps no keys."
NUMBERS = "Numbered producers need the local engine: a cluster keeps no numbers."
ORDERING = "Ordering keys need the local engine: a cluster delivers messages of one key concurrently."
UNDOING = "Undo needs the local engine: a cluster does not keep settled messages."
REDRIVING_ONE = "Redriving one dead letter by its id needs the local engine: a cluster can only take the next one."
FILTERS = (
    "A filter on the binding of a queue needs the local engine: a cluster copies all messages to an event to it."
    " A topic subscription that is not durable can have one."
)
OLDEST_EVERY = "oldest_every needs the local engine: on a cluster RabbitMQ selects the next message."
FAIR = "key_limit, key_rate and fair need the local engine: RabbitMQ does not read the keys of messages."
KEY_COUNTS = "Counts by ordering key need the local engine: a cluster does not read the keys of messages."
LIMITS = "in_flight and rate need the local engine: several gateways deliver the messages of a cluster's queue."
NAMES = "Unique names, and messages that replace others, need the local engine: a cluster can't search its queues."
BATCHES = "Batches need the local engine: several gateways settle the messages of a cluster's queue."
EVENT_DELAY = (
    "A delay on a message for an event needs the local engine; on a cluster only messages for a queue can have one."
)


_LOCAL_OPTIONS = frozenset(
    ["burst", "fair", "idempotency_window", "in_flight", "key_burst", "key_limit", "key_rate", "oldest_every", "rate"]
)


def check_orders(messages: Sequence[Message]) -> None:
    """Raise NotSupported for a message with an ordering key, a unique name or a batch."""
    flags = flags_of(messages)
    if flags & NAMED:
        _refuse(NAMES)
    if flags & BATCHED:
        _refuse(BATCHES)
    if any([key_of(message.headers) for message in messages]):
        _refuse(ORDERING)


def check_options(options: QueueOptions) -> None:
    """Raise NotSupported for options that need the local engine."""
    if options.undo:
        _refuse(UNDOING)
    if options.idempotency_window != QueueOptions().idempotency_window:
        _refuse(KEYS)
    if options.oldest_every:
        _refuse(OLDEST_EVERY)
    if options.in_flight or options.rate or options.burst:
        _refuse(LIMITS)
    if options.passes_over or options.key_burst:
        _refuse(FAIR)


def check_filter(text: str, *, is_private: bool) -> None:
    """Raise NotSupported for the filter of a binding that needs the local engine."""
    if text and not is_private:
        _refuse(FILTERS)


def no_batches() -> NoReturn:
    """Raise NotSupported for a call about batches."""
    _refuse(BATCHES)


def registered(options: Mapping[str, object]) -> dict[str, object]:
    """Return these options as the registry has them.

    Options that a cluster lacks are left out, because gateways of earlier versions refuse unknown options.
    """
    return {name: value for name, value in options.items() if name not in _LOCAL_OPTIONS}


def _refuse(text: str) -> NoReturn:
    raise NotSupported(text)


class NoReading:
    @property
    def next(self) -> int:
        """Unsupported on a cluster."""
        _refuse(READING)

    @property
    def events_start(self) -> int:
        """Unsupported on a cluster."""
        _refuse(READING)

    @property
    def events_end(self) -> int:
        """Unsupported on a cluster."""
        _refuse(READING)

    def backlogs(self) -> list[Backlog]:
        """Return nothing: on a cluster, groups have no positions."""
        return []

    def infos(self) -> list[GroupInfo]:
        """Unsupported on a cluster."""
        _refuse(READING)

    def is_declared(self, name: str) -> bool:
        """Return nothing: on a cluster, groups have no positions."""
        return False

    def position(self, name: str) -> int:
        """Unsupported on a cluster."""
        raise NoSuchGroup(f"no such group: {name}")

    def _no(self, *_arguments: Any, **_named: Any) -> NoReturn:
        _refuse(READING)

    first = check_epoch = floor = info = declare = ack_to = find_time = wait_for = _no
    browse = stretch = events = traces = wait_for_events = _no


class NoStaging:
    bytes = 0
    bytes_max = 0

    def __len__(self) -> int:
        return 0

    def _no(self, *_arguments: Any, **_named: Any) -> NoReturn:
        _refuse(STAGING)

    upload = commit = status = _no

    def drop(self, project: str, identifier: str, on_done: Done, *, owner: str = NOBODY) -> None:
        """Unsupported on a cluster."""
        _refuse(STAGING)
