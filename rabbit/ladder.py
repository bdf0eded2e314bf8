"""Delays: a ladder of queues, each of which holds a message twice as long as the one below.

The bits of a delay, in steps, are the first words of the routing key, the queue it is for is the rest. Where a bit is
set the message waits on that step, else it goes on to the next one. Pure.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from curbstone.rabbit.topology import LADDER_STEP_MS, LADDER_STEPS, NAME_BYTES_MAX

BITS_MAX = 8
"""A delay is rounded up to so many bits, so that no message climbs down more steps than that."""
STEPS_MAX = (1 << LADDER_STEPS) - 1
QUEUE_BYTES_MAX = NAME_BYTES_MAX - 2 * LADDER_STEPS
"""What a routing key has room for behind the bits, a dot after each."""


class Way(NamedTuple):
    """Where a delayed message goes."""

    step: int
    key: str


def way(delay_ms: int, queue: str) -> Way:
    """Return the way of a message that may come to `queue` after a delay, no sooner; longer ones take it again."""
    steps = max(1, -(-delay_ms // LADDER_STEP_MS))
    surplus = max(0, steps.bit_length() - BITS_MAX)
    steps = min(_rounded(steps, surplus), STEPS_MAX)
    bits = ".".join(format(steps, f"0{LADDER_STEPS}b"))
    return Way(steps.bit_length() - 1, f"{bits}.{_short(queue)}")


def _rounded(steps: int, surplus: int) -> int:
    return ((steps + (1 << surplus) - 1) >> surplus) << surplus


def pattern(step: int, bit: int) -> str:
    """Return the pattern of the routing keys that have this bit at this step."""
    return "*." * (LADDER_STEPS - 1 - step) + f"{bit}.#"


def end_pattern(queue: str) -> str:
    """Return the pattern of the routing keys that lead to a queue."""
    return f"#.{_short(queue)}"


def _short(queue: str) -> str:
    """Return what a queue is called behind the bits: its name, or a digest if that is too long."""
    name = queue.encode()
    return queue if len(name) <= QUEUE_BYTES_MAX else blake2b(name, digest_size=16).hexdigest()
