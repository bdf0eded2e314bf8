"""From a run that fails to a short one that fails alike: steps are left out as long as it still does."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.server_run import ServerRun, Step

RUNS_MAX = 300
TRACE_LINES = 80


def failure_of(seed: int, steps: list[Step], *, faults: bool) -> Exception | None:
    """Return how a run ends that should end well, None where it does."""
    try:
        ServerRun(seed, faults=faults).run(steps)
    except Exception as error:
        return error
    return None


def shrink(steps: list[Step], fails: Callable[[list[Step]], bool], runs_max: int = RUNS_MAX) -> list[Step]:
    """Return a part of the steps that still `fails`, with as few of them as so many runs can find.

    Delta debugging: leave out halves, quarters and so on, and begin again with larger pieces once one could go.
    """
    pieces = 2
    while runs_max > 0 and len(steps) > 1:
        size = -(-len(steps) // pieces)
        for at in range(0, len(steps), size):
            runs_max -= 1
            shorter = steps[:at] + steps[at + size :]
            if shorter and fails(shorter):
                steps = shorter
                pieces = max(pieces - 1, 2)
                break
            if runs_max <= 0:
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(steps))
    return steps


def explain(seed: int, steps: list[Step], *, faults: bool) -> str:
    """Return the shortest run found that fails like this one, step by step, for people to read."""
    error = failure_of(seed, steps, faults=faults)
    if error is None:
        return "(the same steps do not fail again)"
    alike = type(error)
    steps = shrink(steps, lambda shorter: type(failure_of(seed, shorter, faults=faults)) is alike)
    run = ServerRun(seed, faults=faults)
    run.trace = []
    try:
        run.run(steps)
    except Exception as again:
        run.trace.append(f"{type(again).__name__}: {again}")
    return f"{len(steps)} steps are enough:\n" + "\n".join(line[:300] for line in run.trace[-TRACE_LINES:])
