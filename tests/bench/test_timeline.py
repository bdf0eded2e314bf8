"""The timeline of a round trip, from what `perf script` prints."""

from bench.timeline import Recording, Trips, table

CLIENT, LOOP, DISK = 10, 20, 21
FUTEX, EPOLL, READ, WRITE, SENDTO, RECVFROM, PWRITEV, FDATASYNC = 202, 281, 0, 1, 44, 45, 328, 75


class Script:
    """Writes the lines of a recording; times are microseconds."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, us: int, thread: int, event: str) -> None:
        self.lines.append(f" {thread} {us // 1_000_000}.{us % 1_000_000:06}000: {event}\n")

    def call(self, begin: int, end: int, thread: int, number: int, result: int) -> None:
        self.add(begin, thread, f"raw_syscalls:sys_enter: NR {number} (5, 7f00, 64, 0, 0, 0)")
        self.add(end, thread, f"raw_syscalls:sys_exit: NR {number} = {result}")

    def switch(self, us: int, before: int, state: str, after: int) -> None:
        of = f"prev_comm=a b prev_pid={before} prev_prio=120 prev_state={state}"
        self.add(us, before, f"sched:sched_switch: {of} ==> next_comm=c next_pid={after} next_prio=120")

    def waking(self, us: int, by: int, thread: int) -> None:
        self.add(us, by, f"sched:sched_waking: comm=x pid={thread} prio=120 target_cpu=001")

    def sorted(self) -> list[str]:
        return sorted(self.lines, key=lambda line: float(line.split()[1].rstrip(":")))


def round_trip(script: Script, at: int) -> None:
    """Add a round trip of a hundred microseconds."""
    script.call(at, at + 4, CLIENT, SENDTO, 150)
    script.waking(at + 2, CLIENT, LOOP)
    script.switch(at + 6, 0, "R", LOOP)  # runnable for 4
    script.call(at + 8, at + 9, LOOP, READ, 150)
    script.call(at + 30, at + 31, LOOP, FUTEX, 1)
    script.waking(at + 30, LOOP, DISK)
    script.switch(at + 35, 0, "R", DISK)
    script.call(at + 36, at + 70, LOOP, EPOLL, 1)
    script.switch(at + 37, LOOP, "S", 0)
    script.call(at + 38, at + 40, DISK, PWRITEV, 200)
    script.call(at + 41, at + 60, DISK, FDATASYNC, 0)
    script.switch(at + 43, DISK, "D", 0)
    script.waking(at + 55, 0, DISK)
    script.switch(at + 58, 0, "R", DISK)
    script.call(at + 62, at + 63, DISK, WRITE, 8)
    script.waking(at + 62, DISK, LOOP)
    script.switch(at + 65, DISK, "S", LOOP)
    script.call(at + 80, at + 84, LOOP, WRITE, 30)
    script.call(at + 5, at + 90, CLIENT, RECVFROM, 30)
    script.call(at + 92, at + 99, LOOP, EPOLL, 0)
    script.switch(at + 93, LOOP, "S", 0)


def test_timeline_steps_are_split_by_thread_activity() -> None:
    script = Script()
    script.switch(1, 0, "R", CLIENT)
    script.switch(1, 0, "R", LOOP)
    script.switch(2, LOOP, "S", 0)
    script.switch(1, 0, "R", DISK)
    script.switch(2, DISK, "S", 0)
    for number in range(5):
        round_trip(script, 100 + 100 * number)
    script.call(600, 601, CLIENT, SENDTO, 150)
    trips = Trips(Recording(iter(script.sorted())), CLIENT, LOOP)
    assert len(trips.trips) == 5
    spans = [(step.name, step.thread, (step.end - step.begin) // 1000) for step in trips.trips[0]]
    assert spans == [
        ("the SEND reaches the event loop", LOOP, 8),
        ("the loop reads it and makes the batch", LOOP, 22),
        ("the disk thread wakes up and begins", DISK, 8),
        ("the file is written", DISK, 3),
        ("the sync", DISK, 19),
        ("the disk thread signals the loop", DISK, 2),
        ("the loop wakes up", LOOP, 8),
        ("the RECEIPT is encoded and sent", LOOP, 10),
        ("the RECEIPT reaches the client", CLIENT, 10),
        ("the client prepares its next SEND", CLIENT, 10),
    ]
    lines = table(trips, {CLIENT: "client", LOOP: "loop"}).splitlines()
    assert lines[0] == "5 of 5 round trips; from SEND to SEND 100 µs at the median"
    assert "| the SEND reaches the event loop | loop | 8 | 2 | 4 | 2 |" in lines
    assert "| the sync | disk | 19 | 4 | 3 | 12 |" in lines
    assert any(line.startswith("| disk 21 |") and line.endswith("| 2.00 | 3.0 |") for line in lines)


def test_round_trip_with_another_sync_is_excluded() -> None:
    script = Script()
    for number in range(2):
        round_trip(script, 100 + 100 * number)
    script.call(270, 271, LOOP, FDATASYNC, 0)
    script.call(300, 301, CLIENT, SENDTO, 150)
    assert len(Trips(Recording(iter(script.sorted())), CLIENT, LOOP).trips) == 1
