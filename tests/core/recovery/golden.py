"""Makes a golden data directory: one that an earlier version wrote, with all that it could write, up to a power cut.

It runs with that version's own engine, lab and simulated disk, and has the names of the version that is released next.
The directories of earlier versions were made by earlier versions of this file, which are in the history::

    PYTHONPATH=. python tests/core/recovery/golden.py tests/core/recovery/golden-0.5.0

This writes two files. The one that ends with `.tar.gz` has the directory. The one that ends with `.json` has what must
be found in it: what that version itself found when it started on a copy. `test_golden.py` compares.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import re
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

LAB = "tests.kit.lab"
KIB = 1024
HOUR_MS = 3_600_000
KEYS = [("keyed", "one", "content of one"), ("keyed", "three", "content of three"), ("wrapped", "old", "content")]
"""The idempotency keys: queue, key, and what was published under it."""
PRODUCERS = [("numbered", "first"), ("numbered", "second"), ("wrapped", "old")]
NAMES = ["taken", "taken, too"]
"""The unique names of messages in the queue `named`."""
STAGED = ["open", "done", "cut", "job@1", "job@2", "unknown"]
"""The ids of staged transactions."""


def main(target: str) -> None:
    lab = importlib.import_module(LAB).Lab(seed=14, cap=256 * KIB, max_message_size=64 * KIB)
    fill(lab)
    cut_staged(lab)
    cut_transactions(lab)
    Path(f"{target}.tar.gz").write_bytes(archive(lab.disk))
    lab.start(lab.host.wall_ms() + 1000)
    lab.pass_time(0)
    found = json.dumps({"wall_ms": lab.host.wall_ms(), **describe(lab)}, indent=1)
    inner = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")  # a line for each message is enough
    found = inner.sub(lambda match: f"[{' '.join(match[1].split())}]", found)
    Path(f"{target}.json").write_text(found + "\n")


# --- what is in it


def fill(lab: Any) -> None:
    """Use everything that leaves something in a queue's log."""
    tests = importlib.import_module(LAB)
    peer_of, message = tests.Peer, tests.message
    values = importlib.import_module("curbstone.core.values")

    dead, jobs = lab.queue("dead"), lab.queue("jobs", dead_letter="dead", max_tries=2)
    lab.publish(jobs, "rejected", "tried", "kept")
    peer = peer_of(lab, jobs, window=1)
    peer.reject(1, error="broken")
    peer.nack(2, delay_ms=0)
    peer.nack(2, delay_ms=0)
    peer.close()
    assert lab.bodies(dead) == [b"rejected", b"tried"]

    delayed = lab.queue("delayed")
    lab.publish(delayed, "later", delay_ms=HOUR_MS)
    lab.publish(delayed, "given back", "expires", ttl_ms=HOUR_MS)
    peer = peer_of(lab, delayed, window=1)
    peer.nack(2, delay_ms=HOUR_MS)
    peer.close()

    ordered = lab.queue("ordered")
    heads = [b"x-key:a\n", b"x-key:b\n", b"x-key:a\n", b"x-key:b\n"]
    lab.publish_messages(ordered, [message(f"{place}", headers=head) for place, head in enumerate(heads)])
    peer = peer_of(lab, ordered)  # it is never closed: it holds what it was given until the power cut
    peer.ack(peer.seqs[0])

    grouped = lab.queue("grouped", groups=["audit", "mail", "new"])
    lab.publish(grouped, *(f"event {place}" for place in range(6)))
    lab.publish(grouped, "for some", groups=("mail", "undeclared"))
    lab.answer(lambda done: grouped.reading.ack_to("audit", 3, done))
    peer = peer_of(lab, grouped, group="mail", window=3)
    peer.ack(2)
    lab.answer(lambda done: grouped.reading.declare("new", 5, None, done))

    purged = lab.queue("purged", groups=["reader"])
    lab.publish(purged, "gone", "gone, too")
    lab.purge(purged)
    lab.publish(purged, "after the purge")
    lab.answer(lambda done: lab.broker.bind("sold", purged.name, done))

    leased = lab.queue("leased")
    lab.publish(leased, "ran out", "held", "ready")
    lab.lease(leased, ms=1000)
    lab.pass_time(2000)
    lab.lease(leased, 2, ms=HOUR_MS)

    fill_policy(lab, message)
    fill_names(lab, message)
    fill_batches(lab, message)
    fill_memories(lab, values, message)
    with suppress(Exception):  # only versions that have it
        undone = lab.queue("undone", undo=3600)
        lab.publish(undone, "acked", "acked, and back", "popped, and back")
        lab.pop_all(undone)
        lab.answer(lambda done: undone.undo(values.UndoRequest(2), done))


def fill_policy(lab: Any, message: Callable[..., Any]) -> None:
    """Use priorities, the options that decide which message is next, and filters."""
    orders = importlib.import_module("curbstone.core.orders")
    ranked = lab.queue("ranked", oldest_every=3, in_flight=100, rate=1000.5, burst=7)
    levels = [orders.parse_priority(priority) for priority in "4049"]
    lab.publish_messages(ranked, [message("ranked", level=level) for level in levels])
    peer = importlib.import_module(LAB).Peer(lab, ranked, window=1)
    peer.nack(4, delay_ms=0)  # the one of priority 9: it was tried once
    peer.close()
    filtered = lab.queue("filtered").name
    lab.answer(
        lambda done: lab.broker.bind("weather", filtered, done, filter_text="temperature > 30 AND city LIKE 'B%'")
    )


def fill_names(lab: Any, message: Callable[..., Any]) -> None:
    """Use the options for keys, unique names, and messages that replace others."""
    limited = lab.queue("limited", key_limit=2, key_rate=3.5, key_burst=9, fair=True)
    heads = [b"x-key:a\n", b"x-key:a\n", b"x-key:a\n", b"x-key:b\n"]
    lab.publish_messages(limited, [message(f"{place}", headers=head) for place, head in enumerate(heads)])
    peer = importlib.import_module(LAB).Peer(lab, limited, window=10)  # it holds what it was given
    peer.nack(peer.seqs[-1], delay_ms=0)
    named = lab.queue("named")
    heads = [b"x-unique:free\n", *(f"x-unique:{name}\n".encode() for name in NAMES), b"x-replace:r\n"]
    for turn in range(2):
        for head in heads:
            lab.publish_messages(named, [message(f"turn {turn}", headers=head, named=True)])
        if not turn:
            assert lab.pop(named) == b"turn 0"


def fill_batches(lab: Any, message: Callable[..., Any]) -> None:
    """Use batches: one that has ended, and one of which a message was acked and another has expired in time."""
    batched = lab.queue("batched")

    def publish(batch: str, size: int, count: int, **orders: Any) -> None:
        head = f"x-batch:{batch}\nx-batch-size:{size}\nx-batch-to:reports\n".encode()
        messages = [message(f"{batch} {place}", headers=head, batched=True, **orders) for place in range(count)]
        lab.publish_messages(batched, messages)

    publish("whole", 1, 1)
    assert lab.pop(batched) == b"whole 0"
    publish("part", 5, 3)
    assert lab.pop(batched) == b"part 0"
    publish("part", 5, 1, ttl_ms=1)
    lab.pass_time(10)


def fill_memories(lab: Any, values: Any, message: Callable[..., Any]) -> None:
    """Publish with idempotency keys and numbers, also into a log that turns over."""
    keyed, numbered = lab.queue("keyed"), lab.queue("numbered")
    wrapped = lab.queue("wrapped", cap=64 * KIB, max_message_size=8 * KIB, groups=["slow", "reader"])

    def publish(queue: Any, messages: list[Any], **how: Any) -> None:
        error, _, _ = lab.answer(lambda done: queue.publish(messages, done, **how))
        assert error is None, error

    for (_, name, content), queue, count in zip(KEYS, (keyed, keyed, wrapped), (1, 3, 1), strict=True):
        key = values.IdempotencyKey(name, content.encode())
        publish(queue, [message(f"{name} {place}") for place in range(count)], key=key)
    if hasattr(values, "Numbered"):
        for (_, name), queue, count in zip(PRODUCERS, (numbered, numbered, wrapped), (2, 1, 1), strict=True):
            messages = [message(f"{name} {place}") for place in range(count)]
            publish(queue, messages, numbered=values.Numbered(values.producer_key("", name), 1, 0), atomic=True)
    lab.answer(lambda done: wrapped.reading.declare("slow", "earliest", True, done))
    lab.answer(lambda done: wrapped.reading.ack_to("reader", wrapped.reading.next - 1, done))
    first = wrapped.log.segments[0].number
    while wrapped.log.segments[0].number < first + 4:
        lab.publish(wrapped, b"x" * 4000)
        lab.pop_all(wrapped)
        lab.answer(lambda done: wrapped.reading.ack_to("reader", wrapped.reading.next - 1, done))
    lab.publish(wrapped, "last")


def cut_staged(lab: Any) -> None:
    """Stage transactions, and stop one when its marker and a part of its messages are on disk."""
    staging = importlib.import_module("tests.core.staging.lab")
    bulk = lab.queue("bulk")
    contents = {"bulk": [b"open"]}
    staging.stage(lab, "open", "p0", contents)
    staging.stage(lab, "open", "p1", contents)
    for identifier in ("done", "job@1", "job@2"):
        with suppress(Exception):  # the first release has no series
            staging.stage(lab, identifier, "p", {"bulk": [identifier.encode()]})
            assert staging.commit(lab, identifier)[0] is None
    staging.stage(lab, "cut", "p0", {"bulk": [b"cut %d:" % place + bytes(300) for place in range(40)]})
    vars(importlib.import_module("curbstone.core.staging.apply"))["WINDOW_BYTES"] = 4000
    before = bulk.counts().rdy
    lab.broker.staging.commit("default", "cut", None, lambda *_: None)
    step_until(lab, lambda: bulk.counts().rdy > before)
    while lab.host.turn():
        pass
    lab.host.jobs.clear()  # the rest is never read, nor written
    assert before < bulk.counts().rdy < before + 40


def cut_transactions(lab: Any) -> None:
    """Stop a transaction between its two parts and another while its record is written, then cut the power."""
    tests = importlib.import_module(LAB)
    one, other = lab.queue("one"), lab.queue("other")
    lab.publish(other, "settled by the transaction", "never acked")
    peer = tests.Peer(lab, other)
    lab.pass_time(2000)
    queues = [lab.queue(name) for name in ("delayed", "grouped", "jobs")]
    for queue in queues:  # in one turn, so where commits share a sync these do, and are in the redo file alone
        queue.publish([tests.message("in the last second")], lambda *_: None)
    lab.settle()

    cut = lab.broker.transaction()
    cut.publish(one, tests.message("here"))
    cut.publish(other, tests.message("and there"))
    cut.ack(peer.consumer, [1])
    cut.commit(lambda _error: None)
    peer.consumer.ack([2])  # its commit never ends, so the second part is never begun
    while lab.host.turn():
        pass
    held = [job for job in lab.host.jobs if is_commit_of(job[0], other)]
    assert len(held) == 1
    lab.host.jobs.remove(held[0])
    lab.settle()
    assert (lab.bodies(one), other.counts().rdy) == ([b"here"], 0)

    torn = lab.broker.transaction()
    for name in ("keyed", "leased"):
        torn.publish(lab.queue(name), tests.message(b"torn" * 500))
    torn.commit(lambda _error: None)
    while lab.host.turn():
        pass
    ((job, _),) = lab.host.jobs
    lab.host.jobs.clear()
    lab.disk.sync_fails = stop
    with suppress(Stop):
        job()
    del lab.disk.sync_fails
    journal = lab.disk.names["journal"]
    ((offset, data),) = journal.pending
    journal.durable[offset:] = data[: len(data) // 2]
    journal.pending.clear()
    lab.disk.crash()


class Stop(BaseException):
    """The machine stops here."""


def stop() -> bool:
    raise Stop


def is_commit_of(job: Any, queue: Any) -> bool:
    """Return whether a job is a commit of this queue."""
    segment = getattr(getattr(job, "__self__", None), "segment", None)
    return segment is not None and segment.path.startswith(queue.log.directory)


def step_until(lab: Any, is_reached: Callable[[], bool]) -> None:
    """Go on, one job at a time."""
    while not is_reached():
        if not lab.host.turn():
            assert lab.host.work()


# --- what is found


def describe(lab: Any) -> dict[str, Any]:
    """Return everything that must be found in the directory."""
    values = importlib.import_module("curbstone.core.values")
    found: dict[str, Any] = {"queues": {}, "keys": [], "producers": [], "staged": {}}
    for queue in sorted(lab.broker.queues(), key=lambda queue: str(queue.name)):
        groups = {}
        for info in [*queue.reading.infos(), None]:
            name = info.group if info is not None else ""
            (peeked,) = lab.answer(lambda done, queue=queue, name=name: queue.peek(1000, done, group=name))
            groups[name] = {
                "position": [*info[2:6], *info[6:9]] if info is not None else [],
                "messages": [
                    [each.message.seq, text(each.message), each.tries, each.state, each.due_ms, each.message.expires_ms]
                    for each in peeked
                ],
            }
        events = sorted(lab.broker.bindings(queue.name))
        found["queues"][str(queue.name)] = {"id": queue.uid, "next": queue.reading.next, "events": events, **groups}
        found["queues"][str(queue.name)] |= policy_of(queue)
    by_name = {str(queue.name).rpartition("/")[2]: queue for queue in lab.broker.queues()}
    for name, key, content in KEYS:
        queue, idempotency = by_name[name], values.IdempotencyKey(key, content.encode())
        message = importlib.import_module("curbstone.core.message").Message(b"a repeat that must not be stored")
        answer = lab.answer(lambda done, q=queue, m=message, k=idempotency: q.publish([m], done, key=k))
        found["keys"].append([name, key, content, *answer[:2]])
    if hasattr(values, "Numbered"):
        for name, producer in PRODUCERS:
            last = by_name[name].last_number(values.producer_key("", producer))
            if last is not None:
                found["producers"].append([name, producer, *last[:2]])
    if "named" in by_name:
        found["names"] = names_in(lab, by_name["named"])
    for identifier in STAGED:
        try:
            status = lab.broker.staging.status("default", identifier)
        except Exception:  # there is none, or no version has such ids yet
            found["staged"][identifier] = None
        else:
            found["staged"][identifier] = [status.state.value, status.parts, status.messages]
    return found


def names_in(lab: Any, queue: Any) -> list[int]:
    """Return the seqs of the messages that have the names: publish each again, which must store nothing."""
    found = []
    for name in NAMES:
        head = f"x-unique:{name}\n".encode()
        message = importlib.import_module(LAB).message("a repeat that must not be stored", headers=head, named=True)
        lab.publish_messages(queue, [message])
        found.append(message.seq if message.is_duplicate else 0)
    return found


def policy_of(queue: Any) -> dict[str, Any]:
    """Return what decides which message is next, the filters, and the open batches, of a queue that has any."""
    names = ("burst", "fair", "in_flight", "key_burst", "key_limit", "key_rate", "oldest_every", "rate")
    usual = type(queue.options)()
    given = [name for name in names if getattr(queue.options, name) != getattr(usual, name)]
    options = {name: getattr(queue.options, name) for name in given}
    found = {"options": options, "by_priority": {str(key): n for key, n in queue.by_priority().items()}}
    found["filters"] = {event: text for event, text in queue.meta.bindings.items() if text}
    tallies = [batch.tally for batch in queue.batches()]
    found["batches"] = {tally.id: [tally.size, tally.to, tally.stored, *tally.ended] for tally in tallies}
    return {name: value for name, value in found.items() if value}


def text(message: Any) -> str:
    """Return the headers and the body of a message, long ones as their beginning, length and checksum."""
    whole = message.headers + message.body
    return whole.decode() if len(whole) < 200 else f"{whole[:10].decode()} {len(whole)} {crc32(whole)}"


def archive(disk: Any) -> bytes:
    """Return what is durable on a simulated disk."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        for path in sorted(disk.dirs - {""}):
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.DIRTYPE
            packed.addfile(entry)
        for path, inode in sorted(disk.names.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(inode.durable)
            packed.addfile(entry, io.BytesIO(bytes(inode.durable)))
    return gzip.compress(buffer.getvalue(), mtime=0)


if __name__ == "__main__":
    main(sys.argv[1])
