"""Breaks down the latency of a producer that waits for each confirm: `python -m bench.timeline`, as root, with `perf`.

The kernel records when each thread ran, was woken or blocked, and its system calls (`perf record`). From that, each
round trip is cut into steps, each on the thread that the client waits for: from its SEND to the event loop, to the
disk, and back with the RECEIPT. A step's time is split into running, runnable (woken, but not on a core yet) and
blocked. On a busy machine, `chrt --rr 5 python -m bench.timeline` excludes other programs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from bench.server import CAP, Server, curbstone_command
from bench.stomp_load import Account, send_frames
from bench.wire import BenchError

READS = {0, 45, 47}  # read, recvfrom, recvmsg
WRITES = {1, 20, 44, 46}  # write, writev, sendto, sendmsg
FILE_WRITES = {18, 296, 328}  # pwrite64, pwritev, pwritev2
SYNCS = {74, 75}  # fsync, fdatasync
EPOLL = {232, 281, 441}  # epoll_wait, epoll_pwait, epoll_pwait2
FUTEX = 202
RUNNING, RUNNABLE, BLOCKED = range(3)
WARM_UP = 300


class Call(NamedTuple):
    """A system call; times are nanoseconds."""

    begin: int
    end: int
    thread: int
    number: int
    result: int
    arguments: tuple[int, ...]


@dataclass
class Thread:
    """The changes of a thread between running, runnable and blocked."""

    times: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)

    def enter(self, time: int, state: int) -> None:
        if not self.states or self.states[-1] != state:
            self.times.append(time)
            self.states.append(state)

    def split(self, begin: int, end: int) -> tuple[int, int, int]:
        """Return the times that it was running, runnable and blocked between two times."""
        spent = [0, 0, 0]
        at = max(bisect_right(self.times, begin) - 1, 0)
        while at < len(self.times) and self.times[at] < end:
            until = self.times[at + 1] if at + 1 < len(self.times) else end
            spent[self.states[at]] += max(0, min(until, end) - max(self.times[at], begin))
            at += 1
        return spent[0], spent[1], spent[2]

    def blocks(self, begin: int, end: int) -> int:
        """Return how often it blocked between two times."""
        first, last = bisect_left(self.times, begin), bisect_left(self.times, end)
        return self.states[first:last].count(BLOCKED)


class Step(NamedTuple):
    name: str
    thread: int
    begin: int
    end: int


class Recording:
    """The output of `perf script`, by thread."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.threads: dict[int, Thread] = {}
        self.calls: list[Call] = []
        open_calls: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        for line in lines:
            head, _, text = line.partition(": ")
            thread, _, time_text = head.strip().partition(" ")
            event, _, text = text.strip().partition(": ")
            seconds, _, nanoseconds = time_text.strip().partition(".")
            time = int(seconds) * 10**9 + int(nanoseconds)
            if event.endswith("sys_enter"):
                number, _, arguments = text.removeprefix("NR ").partition(" (")
                values = tuple(int(word, 16) for word in arguments.rstrip(")\n ").split(", "))
                open_calls[int(thread)] = time, int(number), values
            elif event.endswith("sys_exit"):
                number, _, result = text.removeprefix("NR ").partition(" = ")
                begun = open_calls.pop(int(thread), None)
                if begun is not None and begun[1] == int(number):
                    self.calls.append(Call(begun[0], time, int(thread), int(number), int(result), begun[2]))
            elif event.endswith("sched_switch"):
                before, _, after = text.partition(" ==> ")
                fields = dict(word.split("=", 1) for word in before.split() if "=" in word)
                blocks = not fields["prev_state"].startswith("R")
                self._thread(int(fields["prev_pid"])).enter(time, BLOCKED if blocks else RUNNABLE)
                self._thread(int(after.partition("next_pid=")[2].split()[0])).enter(time, RUNNING)
            elif event.endswith("sched_waking"):
                woken = self._thread(int(text.partition(" pid=")[2].split()[0]))
                if not woken.states or woken.states[-1] == BLOCKED:
                    woken.enter(time, RUNNABLE)
        self.calls.sort()

    def _thread(self, number: int) -> Thread:
        return self.threads.setdefault(number, Thread())


class Trips:
    """The round trips of a recording, each as a sequence of steps."""

    def __init__(self, recording: Recording, client: int, loop: int) -> None:
        self.recording = recording
        self._client, self._loop = client, loop
        calls = recording.calls
        sends = [n for n, call in enumerate(calls) if call.thread == client and call.number in WRITES]
        self.trips = [
            steps
            for first, last in zip(sends, sends[1:], strict=False)
            if (steps := self._steps(calls[first:last], calls[last].begin)) is not None
        ]

    def _steps(self, calls: Sequence[Call], end: int) -> list[Step] | None:
        """Return the steps of one round trip, or None for an unusual one: a new segment, another sync."""
        server = [call for call in calls if call.thread != self._client]
        syncs = [call for call in server if call.number in SYNCS]
        writes = [call for call in server if call.number in FILE_WRITES]
        received = [call for call in calls if call.thread == self._client and call.number in READS]
        if len(syncs) != 1 or len(writes) != 1 or not received:
            return None
        (sync,), (write,) = syncs, writes
        reads = [
            c for c in server if c.thread == self._loop and c.number in READS and c.result > 8 and c.end < write.begin
        ]
        answers = [c for c in server if c.number in WRITES and c.begin >= sync.end and c.result > 8]
        if not reads or not answers:
            return None
        read, answer, disk = reads[0], answers[0], sync.thread
        marks = [("the SEND reaches the event loop", self._loop, read.begin)]
        if disk != self._loop:
            wakes = [
                c for c in server
                if c.thread == self._loop and c.number == FUTEX and read.end <= c.begin < write.begin
            ]  # fmt: skip
            if not wakes:
                return None
            marks += [
                ("the loop reads it and makes the batch", self._loop, wakes[0].begin),
                ("the disk thread wakes up and begins", disk, write.begin),
            ]
        else:
            marks.append(("the loop reads it and makes the batch", self._loop, write.begin))
        marks += [("the file is written", disk, sync.begin), ("the sync", disk, sync.end)]
        if answer.thread != disk:
            signals = [c for c in server if c.thread == disk and c.number in WRITES and c.begin >= sync.end]
            woken = [c for c in server if c.thread == self._loop and c.number in EPOLL and c.end > sync.end]
            if not signals or not woken:
                return None
            woken_at = max(signals[0].begin, woken[0].end)
            marks += [
                ("the disk thread signals the loop", disk, signals[0].begin),
                ("the loop wakes up", self._loop, min(woken_at, answer.begin)),
            ]
        marks += [
            ("the RECEIPT is encoded and sent", answer.thread, answer.begin),
            ("the RECEIPT reaches the client", self._client, received[-1].end),
            ("the client prepares its next SEND", self._client, end),
        ]
        steps, begin = [], calls[0].begin
        for name, thread, until in marks:
            if until < begin:
                return None
            steps.append(Step(name, thread, begin, until))
            begin = until
        return steps


def table(trips: Trips, names: dict[int, str]) -> str:
    """Return two tables in Markdown: the steps, and the activity of each thread in a round trip."""
    usual = max({tuple(s.name for s in trip) for trip in trips.trips}, key=lambda n: _count(trips, n))
    chosen = [trip for trip in trips.trips if tuple(s.name for s in trip) == usual]
    threads = trips.recording.threads
    lines = [
        f"{len(chosen)} of {len(trips.trips)} round trips; from SEND to SEND "
        f"{_us([trip[-1].end - trip[0].begin for trip in chosen])} µs at the median",
        "",
        "| step | thread | µs | running | runnable | blocked |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for steps in zip(*chosen, strict=True):
        splits = [threads[step.thread].split(step.begin, step.end) for step in steps]
        took = [step.end - step.begin for step in steps]
        parts = " | ".join(f"{_mean(split[state] for split in splits):.0f}" for state in (RUNNING, RUNNABLE, BLOCKED))
        lines.append(f"| {steps[0].name} | {names.get(steps[0].thread, 'disk')} | {_us(took)} | {parts} |")
    lines += [
        "",
        "| thread | running | runnable | blocked | times blocked | system calls |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    begins = [trip[0].begin for trip in chosen]
    ends = [trip[-1].end for trip in chosen]
    busy = {step.thread for trip in chosen for step in trip}
    for number in sorted(busy, key=lambda n: list(names).index(n) if n in names else len(names)):
        thread = threads[number]
        calls = [call for call in trips.recording.calls if call.thread == number]
        spans = list(zip(begins, ends, strict=True))
        splits = [thread.split(*span) for span in spans]
        parts = " | ".join(f"{_mean(split[state] for split in splits):.0f}" for state in (RUNNING, RUNNABLE, BLOCKED))
        starts = [call.begin for call in calls]
        made = mean([bisect_left(starts, end) - bisect_left(starts, begin) for begin, end in spans])
        lines.append(
            f"| {names.get(number, f'disk {number}')} | {parts} | "
            f"{mean([thread.blocks(*span) for span in spans]):.2f} | {made:.1f} |"
        )
    return "\n".join(lines)


def _count(trips: Trips, names: tuple[str, ...]) -> int:
    return sum(tuple(step.name for step in trip) == names for trip in trips.trips)


def _us(times: Sequence[int]) -> str:
    return f"{median(times) / 1000:.0f}"


def _mean(times: Iterator[int]) -> float:
    """Return the mean in µs of the middle four fifths, which excludes round trips delayed by other programs."""
    ordered = sorted(times)
    cut = len(ordered) // 10
    return mean(ordered[cut : len(ordered) - cut]) / 1000


class Recorder:
    """`perf record` of the given threads."""

    def __init__(self, threads: Sequence[int], file: Path) -> None:
        if shutil.which("perf") is None:
            raise BenchError("perf is not installed (Debian's package linux-perf)")
        self._file = file
        command_read, self._command = os.pipe()
        self._answer, answer_write = os.pipe()
        of = " || ".join
        its = of(f"common_pid == {n}" for n in threads)
        switches = of(f"prev_pid == {n} || next_pid == {n}" for n in threads)
        wakings = of(f"pid == {n}" for n in threads)
        events = [
            *("-e", "raw_syscalls:sys_enter", "--filter", its, "-e", "raw_syscalls:sys_exit", "--filter", its),
            *("-e", "sched:sched_switch", "--filter", switches, "-e", "sched:sched_waking", "--filter", wakings),
        ]
        control = f"--control=fd:{command_read},{answer_write}"
        self._perf = subprocess.Popen(
            ["perf", "record", "-q", "-a", "-m", "16M", "--delay=-1", control, "-o", str(file), *events],
            pass_fds=(command_read, answer_write),
        )
        os.close(command_read)
        os.close(answer_write)
        self._ask(b"enable\n")

    def _ask(self, text: bytes) -> None:
        os.write(self._command, text)
        if not os.read(self._answer, 16):
            raise BenchError("perf record ended; it needs root, and a kernel with tracepoints")

    def finish(self) -> Recording:
        """End the recording, and return it."""
        self._ask(b"disable\n")
        self._perf.send_signal(signal.SIGINT)
        self._perf.wait(60)
        command = ["perf", "script", "-i", str(self._file), "--ns", "-F", "tid,time,event,trace"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
            assert script.stdout
            return Recording(iter(script.stdout))


def record(server: Server, folder: Path, count: int, size: int) -> Trips:
    """Record `count` round trips of one producer."""
    wire = Account(server.stomp).connect()
    frames = memoryview(send_frames("/queue/timeline", 0, 0, WARM_UP + count, size))
    length = len(frames) // (WARM_UP + count)

    def trip(n: int) -> None:
        wire.send(frames[n * length : (n + 1) * length])
        wire.receive_until(b"\0\n")

    for n in range(WARM_UP):
        trip(n)
    client = os.getpid()
    recorder = Recorder([client, *map(int, os.listdir(f"/proc/{server.pid}/task"))], folder / "perf.data")
    for n in range(WARM_UP, WARM_UP + count):
        trip(n)
    recording = recorder.finish()
    wire.close()
    return Trips(recording, client, server.pid)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.timeline", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="round trips to record (default: %(default)s)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body (default: %(default)s)")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: the temporary one)")
    parser.add_argument("--program", help="the curbstone command of another build")
    parser.add_argument("serve", nargs="*", help="after --: more arguments for curbstone serve")
    known = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="curbstone-timeline-", dir=known.dir) as name:
        folder = Path(name)
        command = curbstone_command(folder / "data", CAP, known.serve, program=known.program)
        server = Server(command, folder / "log", folder)
        try:
            trips = record(server, folder, known.count, known.size)
            print(table(trips, {os.getpid(): "client", server.pid: "loop"}))
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"bench.timeline: {error}", file=sys.stderr)
        sys.exit(1)
