"""Producers that send until every line is confirmed, whatever happens to the server.

What had no answer when a connection ended is sent again; at the cap they wait until something was settled.
"""

from __future__ import annotations

import base64
import http.client
import json
from random import Random

from tests.crash.killable import HANG_S, KillableServer
from tests.crash.source import Line, Source
from tests.crash.stomp_peer import StompFrame, StompPeer, encode

VALUE = "x-msg-x-value"
"""The header that carries the value of an attempt; STOMP and HTTP call it the same."""
STOMP_WINDOW = 250
ROOM = 100
"""How many settles to wait for at the cap."""
BATCH_MAX = 40


Unanswered = dict[str, list[tuple[Source, Line]]]
"""Receipt to what it will confirm, and whose it is."""


def produce_over_stomp(server: KillableServer, source: Source, other: Source, rng: Random) -> None:
    """Send with a receipt for each line, many at a time; now and then a transaction, also with lines of `other`."""
    sessions = 0
    while not source.is_done:
        boot = server.boot
        sessions += 1
        unanswered: Unanswered = {}
        is_full = False
        try:
            with StompPeer(boot.stomp, HANG_S) as peer:
                is_full = _stomp_session(peer, source, other, f"stomp {boot.number}.{sessions}", unanswered, rng)
        except OSError:
            _resend(unanswered)
            server.wait_for_boot(boot.number)
            continue
        _resend(unanswered)
        if is_full:
            source.progress.wait_for_room(ROOM)


def _resend(unanswered: Unanswered) -> None:
    """Have what was sent and not answered sent again, in its order."""
    parts = [part for group in unanswered.values() for part in group]
    for source in {source for source, _ in parts}:
        source.resend(line for owner, line in parts if owner is source)


def _stomp_session(
    peer: StompPeer, source: Source, other: Source, name: str, unanswered: Unanswered, rng: Random
) -> bool:
    """Send until all is done or the queue is at its cap, which it returns; `unanswered` is kept up to date."""
    while True:
        room = STOMP_WINDOW - sum(map(len, unanswered.values()))
        lines = source.take(rng.randint(1, room)) if room > 0 else []
        if not lines and not unanswered:
            return False
        if rng.random() < 0.05 and lines:
            more = other.take(rng.randint(0, 3))
            data = _transaction(
                [(source, line) for line in lines[:20]] + [(other, line) for line in more], name, unanswered
            )
            source.resend(lines[20:])
        else:
            source.sending(lines, name)
            unanswered |= {line.value: [(source, line)] for line in lines}
            data = b"".join(_send(source, line, {"receipt": line.value}) for line in lines)
        if data:
            peer.send(data)
        if _stomp_answers(peer.read(), unanswered):
            return True


def _send(source: Source, line: Line, more: dict[str, str]) -> bytes:
    return encode("SEND", {"destination": f"/queue/{source.queue}", VALUE: line.value} | more, line.body)


def _transaction(parts: list[tuple[Source, Line]], name: str, unanswered: Unanswered) -> bytes:
    """Return the frames of a transaction, recorded as about to be sent: all of it must be there, or nothing."""
    unit = f"transaction {parts[0][1].value}"
    inside = {"transaction": unit}
    for source, line in parts:
        source.sending([line], name, unit)
    unanswered[unit] = parts
    sends = [_send(source, line, inside) for source, line in parts]
    return b"".join([encode("BEGIN", inside), *sends, encode("COMMIT", inside | {"receipt": unit})])


def _stomp_answers(frames: list[StompFrame], unanswered: Unanswered) -> bool:
    """Take RECEIPTs and, at the cap, the ERROR; return whether it came."""
    for frame in frames:
        parts = unanswered[frame.headers["receipt-id"]]
        if frame.command != "RECEIPT":
            assert frame.command == "ERROR", frame
            assert "too little room" in frame.headers["message"], frame
            for source, line in parts:
                source.refused([line])
            return True
        del unanswered[frame.headers["receipt-id"]]
        for source in {source: None for source, _ in parts}:
            source.confirmed([line for owner, line in parts if owner is source])
    return False


def produce_over_http(server: KillableServer, source: Source, rng: Random, name: str) -> None:
    """POST line by line on a connection that is kept, and now and then a batch."""
    sessions = 0
    while not source.is_done:
        boot = server.boot
        sessions += 1
        connection = http.client.HTTPConnection(*boot.http, timeout=HANG_S)
        try:
            while not source.is_done:
                lines = source.take(rng.randint(2, BATCH_MAX) if rng.random() < 0.05 else 1)
                if not lines:  # the last ones are with other producers, who may have to give them back
                    connection.close()  # the server ends one that is idle for long, and that is no crash
                    source.progress.wait_for_room(1)
                    continue
                source.sending(lines, f"{name} {boot.number}.{sessions}", lines[0].value if len(lines) > 1 else "")
                try:
                    status = _post(connection, source.queue, lines)
                except (OSError, http.client.HTTPException):
                    source.resend(lines)
                    raise
                if status == 201:
                    source.confirmed(lines)
                else:
                    source.refused(lines)
                    source.resend(lines)
                    source.progress.wait_for_room(ROOM)
        except (OSError, http.client.HTTPException):
            server.wait_for_boot(boot.number)
        finally:
            connection.close()


def _post(connection: http.client.HTTPConnection, queue: str, lines: list[Line]) -> int:
    """Publish lines; return 201, or 507 at the cap."""
    project, _, name = queue.partition("/")
    path = f"/v2/{project}/queues/{name}/messages"
    if len(lines) == 1:
        connection.request("POST", path, lines[0].text, {VALUE: lines[0].value})
    else:
        batch = [
            {VALUE: line.value, "encoding": "base64", "message": base64.b64encode(line.body).decode()} for line in lines
        ]
        connection.request("POST", f"{path}/batch", json.dumps(batch).encode())
    reply = connection.getresponse()
    said = reply.read()
    assert reply.status in (201, 507), (reply.status, said)
    if reply.status == 507:
        assert b"too little room" in said
        assert reply.headers["retry-after"]
    return reply.status
