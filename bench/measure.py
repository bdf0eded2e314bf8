"""One run of client roles against a target, and its figures."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from bench import mqks_load, syncs
from bench.check import Tally
from bench.server import Control, Process, Usage
from bench.stats import Percentiles
from bench.stomp_load import Account
from bench.wire import Address
from bench.workers import Role, Timed, run_roles


@dataclass(frozen=True, slots=True)
class Measurement:
    workload: str
    size: int
    count: int
    seconds: float
    batch: int
    """The most messages that one sync can make durable in this workload: the number that may be in flight."""
    confirms: Percentiles | None
    deliveries: Percentiles | None
    server_cpu_us: float
    """Per message, as are the next four."""
    client_cpu_us: float
    """Of the busiest client process."""
    syncs: float | None
    disk_bytes: float | None
    """Per byte of the bodies."""
    server_cpu_share: float
    """Of one core."""
    client_cpu_share: float
    """The share of one core that the busiest client process used. At 1 the generator is the bottleneck."""
    other_cpu_share: float
    """The share of the machine used by other processes: the noise."""
    peak_rss: int
    tally: Tally

    @property
    def per_s(self) -> float:
        return self.count / self.seconds


class Target:
    """A running server and how to reach it."""

    def __init__(
        self,
        name: str,
        process: Process,
        account: Account,
        http: Address | None = None,
        mqks: Address | None = None,
    ) -> None:
        self.name = name
        self.process = process
        self.account = account
        self.http = http
        self.mqks = mqks
        self.control = Control(http) if http else None
        self.trace_in: Path | None = None
        """If set, strace counts the syncs of each run; its files are in this folder."""
        self._numbers = itertools.count(1)

    def new_queue(self) -> str:
        """Return the name of a new queue, which is created if the target requires it."""
        name = self.name_of_queue()
        self.declare(name)
        return name

    def name_of_queue(self) -> str:
        """Return an unused name."""
        return f"bench-{next(self._numbers)}"

    def declare(self, queue: str) -> None:
        if self.control:
            self.control.declare(f"default/{queue}")

    @property
    def binds(self) -> bool:
        """Whether queues can be bound to an event."""
        return bool(self.mqks)

    def bind(self, event: str, queues: Sequence[str]) -> str:
        """Bind the queues to the event, creating missing ones. Return the event's STOMP destination."""
        assert self.mqks
        mqks_load.bind(self.mqks, event, queues)
        return f"/topic/{event}"

    def left_in(self, queue: str) -> int:
        return self.control.waiting(f"default/{queue}") if self.control else 0

    def delete_queue(self, queue: str) -> None:
        if self.control:
            self.control.delete(f"default/{queue}")

    def usage(self) -> Usage:
        return self.process.usage(self.control.syncs() if self.control else None)


def run(
    target: Target, workload: str, size: int, batch: int, roles: Sequence[Role], *, time_limit_s: float = 120
) -> tuple[Measurement, list[Timed]]:
    """Run all roles concurrently. The rate is the last role's count divided by the time until all roles are done."""
    before: list[Usage] = []

    def on_start() -> None:
        target.process.forget_peak()
        before.append(target.usage())

    with syncs.traced(target.process.pid, target.trace_in) if target.trace_in else nullcontext() as traced:
        timed = run_roles(roles, time_limit_s=time_limit_s, on_start=on_start)
        after = target.usage()
    measured = _measurement(target, workload, size, batch, timed, before[0], after)
    if traced:
        measured = dataclasses.replace(measured, syncs=traced.total / max(1, measured.count))
    return measured, timed


def _measurement(
    target: Target, workload: str, size: int, batch: int, timed: Sequence[Timed], before: Usage, after: Usage
) -> Measurement:
    seconds = (max(one.ended_ns for one in timed) - min(one.started_ns for one in timed)) / 1e9
    outcomes = [one.outcome for one in timed]
    count = outcomes[-1].count
    server_s = after.cpu_s - before.cpu_s
    clients_s = sum(one.cpu_ns for one in timed) / 1e9
    busiest_s = max(one.cpu_ns for one in timed) / 1e9
    other_s = max(0.0, after.machine_s - before.machine_s - server_s - clients_s)
    written = None
    if before.disk_bytes is not None and after.disk_bytes is not None:
        written = after.disk_bytes - before.disk_bytes
    per_message_us = 1e6 / max(1, count)
    counted = None if before.syncs is None or after.syncs is None else (after.syncs - before.syncs) / max(1, count)
    return Measurement(
        workload=workload,
        size=size,
        count=count,
        seconds=seconds,
        batch=batch,
        confirms=next((one.confirms for one in outcomes if one.confirms), None),
        deliveries=next((one.deliveries for one in outcomes if one.deliveries), None),
        server_cpu_us=server_s * per_message_us,
        client_cpu_us=busiest_s * per_message_us,
        syncs=counted,
        disk_bytes=None if written is None else written / max(1, count * size),
        server_cpu_share=server_s / seconds,
        client_cpu_share=busiest_s / seconds,
        other_cpu_share=min(1.0, other_s / seconds / (os.cpu_count() or 1)),
        peak_rss=target.process.peak_rss(),
        tally=sum((one.tally for one in outcomes if one.tally), Tally()),
    )


def checked(sent: Measurement, tally: Tally) -> Measurement:
    """Return the measurement of a send with the findings of the drain of its queue."""
    return dataclasses.replace(sent, tally=tally)
