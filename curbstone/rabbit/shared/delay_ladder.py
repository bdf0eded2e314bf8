"""Delays by a ladder of queues, each of which holds a message twice as long as the one below. Pure.

The delay, in units of the lowest step, is written in binary: its bits are the first words of the routing key, and the
destination queue is the rest. If the bit of a step is set, the message waits there; otherwise it moves on to the next
one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from curbstone.rabbit.shared.topology import LADDER_STEP_MS, LADDER_STEPS, NAME_BYTES_MAX

BITS_MAX = 8
"""A delay is rounded up to so many significant bits, so that no message waits on more steps than that."""
STEPS_MAX = (1 << LADDER_STEPS) - 1
QUEUE_BYTES_MAX = NAME_BYTES_MAX - 2 * LADDER_STEPS
"""The room in a routing key after the bits, each of which is followed by a dot."""


class Route(NamedTuple):
    """The step where a delayed message starts, and its routing key."""

    step: int
    key: str


def route(delay_ms: int, queue: str) -> Route:
    """Return the route of a message that reaches `queue` after a delay, no sooner.

    A delay that is longer than the whole ladder is sent up the ladder again.
    """
    steps = max(1, -(-delay_ms // LADDER_STEP_MS))
    surplus = max(0, steps.bit_length() - BITS_MAX)
    steps = min(_rounded(steps, surplus), STEPS_MAX)
    bits = ".".join(format(steps, f"0{LADDER_STEPS}b"))
    return Route(steps.bit_length() - 1, f"{bits}.{_short(queue)}")


def _rounded(steps: int, surplus: int) -> int:
    return ((steps + (1 << surplus) - 1) >> surplus) << surplus


def pattern(step: int, bit: int) -> str:
    """Return the binding pattern for routing keys that have this bit at this step."""
    return "*." * (LADDER_STEPS - 1 - step) + f"{bit}.#"


def end_pattern(queue: str) -> str:
    """Return the binding pattern for routing keys that lead to a queue."""
    return f"#.{_short(queue)}"


def _short(queue: str) -> str:
    """Return the name of a queue in a routing key: its name, or a digest of it if it is too long."""
    name = queue.encode()
    return queue if len(name) <= QUEUE_BYTES_MAX else blake2b(name, digest_size=16).hexdigest()
