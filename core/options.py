"""The options of a queue, and the sync mode of a server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any
from zlib import crc32

from curbstone.core.errors import BadRequest
from curbstone.core.names import group_name, parse_queue_name

KIB = 1024
MIB = 1024 * KIB

CAP_BYTES_MIN = 64 * KIB
CAP_BYTES_MAX = 1 << 44
GROUPS_MAX = 32
SCHEMA_BYTES_MAX = 8 * KIB
SECONDS_MAX = 10 * 365 * 86400
IDEMPOTENCY_S_MAX = 7 * 86400
OLDEST_EVERY_MAX = 1000

REFUSE, DROP_OLDEST = OVERFLOWS = ("refuse", "drop-oldest")

_SIZE = re.compile(r"([0-9]{1,15})\s*([kmgt]i?)?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": KIB, "mi": MIB, "gi": 1024 * MIB, "ti": 1024 * 1024 * MIB}


def parse_size(text: str) -> int:
    """Return the bytes that "10MiB", "64k", "10 MB" or "1048576" stands for; raise BadRequest."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise BadRequest(f"bad size {text!r}: a whole number with an optional unit, as in 10MiB, 64KiB, 500MB")
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options of one queue. Durations are in seconds, sizes in bytes; 0 means none."""

    cap: int = 10 * MIB
    max_message_size: int = MIB
    ttl: float = 0
    max_tries: int = 0
    dead_letter: str = ""
    nack_delay: float = 0
    nack_delay_max: float = 0
    """If this is above `nack_delay`, the delay doubles with each try, up to this."""
    lease: float = 30
    groups: tuple[str, ...] = ()
    paused: bool = False
    """Whether nothing is delivered."""
    publish_paused: bool = False
    """Whether no messages are taken in."""
    overflow: str = REFUSE
    """What happens at the cap: new messages are refused, or the oldest that are not in flight are dropped for them."""
    unused: float | None = None
    """After how long without use the queue is deleted; None for never."""
    undo: float = 0
    """How long settled messages stay in the log, if there is room, so that they can be brought back."""
    idempotency_window: float = 300
    """How long an idempotency key is remembered."""
    oldest_every: int = 0
    """Each delivery with this number goes to the oldest message, whatever its priority; 0 for none."""
    in_flight: int = 0
    """The most messages of a group in flight; 0 for no limit."""
    rate: float = 0
    """The most deliveries of a group a second; 0 for no limit."""
    burst: int = 0
    """How many deliveries may exceed `rate` after a pause; 0 for those of a second, and at least one."""
    key_limit: int = 1
    """The most messages of a key in flight, in a group; 0 for no limit. 1 keeps order."""
    key_rate: float = 0
    """The most deliveries of a key a second, in a group; 0 for no limit."""
    key_burst: int = 0
    """How many deliveries of a key may exceed `key_rate` after a pause; 0 for those of a second, and at least one."""
    fair: bool = False
    """Whether the next message is one of the key with the fewest in flight."""
    schema: str = ""
    """The JSON Schema that bodies have to satisfy, as text; empty for none."""

    @property
    def drops_oldest(self) -> bool:
        """Whether the oldest messages give way to new ones at the cap."""
        return self.overflow == DROP_OLDEST

    @property
    def burst_or_default(self) -> int:
        return self.burst or max(ceil(self.rate), 1)

    @property
    def key_burst_or_default(self) -> int:
        return self.key_burst or max(ceil(self.key_rate), 1)

    @property
    def keys(self) -> tuple[int, float, int, bool]:
        """What matters for messages with a key: `key_limit`, `key_rate`, the burst, and `fair`."""
        return self.key_limit, self.key_rate, self.key_burst_or_default, self.fair

    @property
    def are_keys_in_order(self) -> bool:
        """Whether a message with a key waits until the one before is settled."""
        return self.key_limit == 1

    @property
    def uses_keys(self) -> bool:
        return self.fair or self.key_limit > 0 or self.key_rate > 0

    @property
    def passes_over(self) -> bool:
        """Whether messages may be delivered before older ones of other keys, other than by one at a time of a key."""
        return self.fair or self.key_limit != 1 or self.key_rate > 0

    @property
    def backs_off(self) -> bool:
        """Whether a requeued message waits longer the more often it was tried."""
        return self.nack_delay_max > self.nack_delay > 0

    def nack_delay_ms(self, tries: int, seq: int) -> int:
        """Return how long a requeued message has to wait; `tries` is the number of earlier deliveries.

        If the queue backs off, each delay is up to 15 % longer or shorter, so that messages that failed together do not
        return together. This depends only on the message and the try, so that a simulated run can be repeated.
        """
        if not self.backs_off:
            return int(self.nack_delay * 1000)
        delay_ms = min(self.nack_delay * 2.0 ** min(tries, 40), self.nack_delay_max) * 1000
        share = crc32(b"%d %d" % (seq, tries)) / 0xFFFFFFFF
        return max(round(delay_ms * (0.85 + 0.3 * share)), 1)

    def as_json(self) -> dict[str, object]:
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        plain["schema"] = json.loads(self.schema) if self.schema else None
        return plain

    def merged(self, changes: Mapping[str, object], project: str) -> QueueOptions:
        """Return these options with the JSON values of `changes` put in; raise BadRequest with the option's name."""
        checked = {}
        for name, value in changes.items():
            check = _CHECKS.get(name)
            if check is None:
                raise BadRequest(f"unknown option {name!r}; there are {', '.join(_CHECKS)}")
            checked[name] = check(name, value, project)
        return replace(self, **checked) if checked else self


def is_valid(name: str, value: object) -> bool:
    """Return whether this version has such an option, and the option may have this value."""
    try:
        QueueOptions().merged({name: value}, "default")
    except BadRequest:
        return False
    return True


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _size(least: int, most: int) -> Callable[[str, object, str], int]:
    def check(name: str, value: object, _project: str) -> int:
        number = parse_size(value) if isinstance(value, str) else value
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise BadRequest(f"bad option {name}: {value!r} is not a size from {least} to {most} bytes")
        return number

    return check


def _count(name: str, value: object, _project: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000:
        raise BadRequest(f"bad option {name}: {value!r} is not a whole number from 0 to 1000000")
    return value


def _oldest_every(name: str, value: object, _project: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not (value == 0 or 2 <= value <= OLDEST_EVERY_MAX):
        raise BadRequest(f"bad option {name}: {value!r} is not 0 or a whole number from 2 to {OLDEST_EVERY_MAX}")
    return value


def _rate(name: str, value: object, _project: str) -> float:
    """Buckets are filled by whole numbers in each ms, so a rate has three decimals."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1_000_000:
        raise BadRequest(f"bad option {name}: {value!r} is not a number of deliveries a second from 0 to 1000000")
    if round(value, 3) != value:
        raise BadRequest(f"bad option {name}: {value!r} has more than three decimals")
    return value


def _seconds(least: float, most: float = SECONDS_MAX) -> Callable[[str, object, str], float]:
    def check(name: str, value: object, _project: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise BadRequest(f"bad option {name}: {value!r} is not a number of seconds from {least} to {most}")
        return value

    return check


def _unused(name: str, value: object, project: str) -> float | None:
    return None if value is None else _seconds(0)(name, value, project)


def _flag(name: str, value: object, _project: str) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"bad option {name}: {value!r} is not true or false")
    return value


def _overflow(name: str, value: object, _project: str) -> str:
    if not isinstance(value, str) or value not in OVERFLOWS:
        raise BadRequest(f"bad option {name}: {value!r} is not {REFUSE} or {DROP_OLDEST}")
    return value


def _dead_letter(name: str, value: object, project: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"bad option {name}: {value!r} is not a queue name")
    return str(parse_queue_name(value, project)) if value else ""


def _groups(name: str, value: object, _project: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise BadRequest(f"bad option {name}: {value!r} is not a list of group names")
    if len(value) > GROUPS_MAX:
        raise BadRequest(f"bad option {name}: more than {GROUPS_MAX} groups")
    return tuple(dict.fromkeys(group_name(item) for item in value))


def _schema(name: str, value: object, _project: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise BadRequest(f"bad option {name}: it is a JSON Schema, an object, or null")
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise BadRequest(f"bad option {name}: it is no JSON") from None
    if len(text) > SCHEMA_BYTES_MAX:
        raise BadRequest(f"bad option {name}: it has more than {SCHEMA_BYTES_MAX} bytes")
    return text


_CHECKS: dict[str, Callable[[str, object, str], Any]] = {
    "cap": _size(CAP_BYTES_MIN, CAP_BYTES_MAX),
    "max_message_size": _size(1, 1 << 30),
    "ttl": _seconds(0),
    "max_tries": _count,
    "dead_letter": _dead_letter,
    "nack_delay": _seconds(0),
    "nack_delay_max": _seconds(0),
    "lease": _seconds(0.001),
    "groups": _groups,
    "paused": _flag,
    "publish_paused": _flag,
    "overflow": _overflow,
    "unused": _unused,
    "undo": _seconds(0),
    "idempotency_window": _seconds(1, IDEMPOTENCY_S_MAX),
    "oldest_every": _oldest_every,
    "in_flight": _count,
    "rate": _rate,
    "burst": _count,
    "key_limit": _count,
    "key_rate": _rate,
    "key_burst": _count,
    "fair": _flag,
    "schema": _schema,
}


@dataclass(frozen=True, slots=True)
class SyncMode:
    """When a commit is made durable: before it is confirmed, at an interval, or whenever the system does it."""

    kind: str = "always"
    interval_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> SyncMode:
        """Return the mode of "always", "interval:100" (milliseconds) or "never"; raise BadRequest."""
        kind, colon, number = text.partition(":")
        if kind in ("always", "never") and not colon:
            return cls(kind)
        if kind == "interval" and number.isascii() and number.isdigit() and 1 <= int(number) <= 60_000:
            return cls(kind, int(number))
        raise BadRequest(f"bad sync mode {text!r}: always, interval:MS (1 to 60000) or never")

    def __str__(self) -> str:
        return f"{self.kind}:{self.interval_ms}" if self.kind == "interval" else self.kind
