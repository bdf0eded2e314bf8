"""CoilMQ with its dbm store, which does not sync. So the comparison is unfair, which the table notes.

It speaks STOMP 1.1. Messages are sent one at a time in both directions, because CoilMQ closes a connection whose frames
are split between two reads.
"""

import contextlib
import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.check import Checker
from bench.measure import Measurement, Target, checked, run
from bench.peer import PeerJob, Subject, free_port, started
from bench.stomp_load import Account, read_receipts, send_frames
from bench.window import send_window
from bench.wire import BenchError, Silence, Wire
from bench.workers import Outcome, Stopwatch
from bench.workloads import Plan

CONFIG = """\
[coilmq]
listen_addr = 127.0.0.1
listen_port = {port}
qstore.factory = coilmq.store.dbm.make_dbm
qstore.dbm.data_dir = {folder}
"""
MESSAGE = re.compile(rb"MESSAGE\n(?:[^\n\0]++\n)*?message-id:([^\n]++)\n(?:[^\n\0]++\n)*+\n([^\0]*+)\0")


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[list[Subject]]:
    address = ("127.0.0.1", free_port())
    config, data = folder / "coilmq.cfg", folder / "data"
    data.mkdir()
    config.write_text(CONFIG.format(port=address[1], folder=data))
    with started([program, "-c", str(config)], folder, address) as process:
        target = Target("CoilMQ dbm store", process, Account(address))

        def measure(size: int, plan: Plan) -> Iterator[Measurement]:
            queue = target.new_queue()
            job = PeerJob(address, queue, min(plan.count(1_000, size), 1_000), size, 1, plan.seconds)
            sent, timed = run(target, "send-1", size, 1, [partial(coilmq_send, job)])
            took = PeerJob(address, queue, timed[0].outcome.count, size, 1, plan.seconds)
            drained, _ = run(target, "drain", size, 1, [partial(coilmq_drain, took)])
            yield checked(sent, drained.tally)
            yield drained

        yield [Subject(target.name, measure, frozenset({"send-1", "drain"}), "does not sync")]


def connect(job: PeerJob) -> Wire:
    wire = Wire(job.address, silence_s=15)
    wire.send(f"CONNECT\naccept-version:1.1\nhost:{socket.getfqdn()}\n\n\0".encode())
    if not wire.receive_until(b"\0").lstrip().startswith(b"CONNECTED"):
        raise BenchError("CoilMQ: not CONNECTED")
    return wire


def coilmq_send(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    frames = send_frames(f"/queue/{job.queue}", 0, 0, job.count, job.size)
    wire = connect(job)

    def confirmed_now() -> int:
        return len(read_receipts(wire.receive_until(b"\0")))

    return send_window(wire, frames, job.count, 1, job.seconds, confirmed_now, stopwatch)


def coilmq_drain(job: PeerJob, stopwatch: Stopwatch) -> Outcome:
    checker = Checker(job.size, prepare=job.count)
    wire = connect(job)
    stopwatch.start()
    wire.send(b"SUBSCRIBE\nid:0\ndestination:/queue/%s\nack:client\n\n\0" % job.queue.encode())
    with contextlib.suppress(Silence):  # missing messages show in the tally
        while checker.received < job.count:
            found = MESSAGE.search(wire.receive_until(b"\0"))
            if not found:
                raise BenchError("CoilMQ: not a MESSAGE")
            checker.take([found[2]])
            wire.send(b"ACK\nsubscription:0\nmessage-id:%s\n\n\0" % found[1])
    stopwatch.stop()
    wire.close()
    return Outcome(checker.received, tally=checker.tally((job.count,)))
