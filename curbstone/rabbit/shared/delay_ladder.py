"""Delays by a ladder of queues, each of which holds a message twice as long as the one below. Pure.

The delay, in units of the lowest step, is written in binary: its bits are the first words of the routing key, and the
destination queue is the rest. A message waits at a step if the bit of the step is set, and then moves to the next one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from curbstone.rabbit.shared.topology import LADDER_STEP_MS, LADDER_STEPS, NAME_BYTES_MAX

BITS_MAX = 8
"""A delay is rounded up to this many significant bits, which limits the steps on which a message waits."""
STEPS_MAX = (1 << LADDER_STEPS) - 1
QUEUE_BYTES_MAX = NAME_BYTES_MAX - 2 * LADDER_STEPS
"""The room in a routing key after the bits, each of which is followed by a dot."""


class Route(NamedTuple):
    """The step where a delayed message starts, and its routing key."""

    step: int
    key: str


def route(delay_ms: int, queue: str) -> Route:
    """Return the route of a message that reaches `queue` after a delay, no sooner.

    A delay longer than the whole ladder is repeated.
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
