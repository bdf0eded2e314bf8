"""Producers that send until every line is confirmed, whatever happens to the server.

What had no answer when a connection ended is sent again; at the cap they wait until something was settled.
"""

from __future__ import annotations

import base64
import http.client
import json
from random import Random

from tests.crash.mortal import HANG_S, MortalServer
from tests.crash.source import Line, Source
from tests.crash.stomp_peer import StompFrame, StompPeer, encode

VALUE = "x-msg-x-value"
"""The header that carries the value of an attempt; STOMP and HTTP call it the same."""
STOMP_WINDOW = 250
ROOM = 100
"""How many settles to wait for at the cap."""
BATCH_MAX = 40


def produce_over_stomp(server: MortalServer, source: Source, rng: Random) -> None:
    """Send with a receipt for each line, many at a time."""
    sessions = 0
    while not source.is_done:
        life = server.life
        sessions += 1
        unanswered: dict[str, Line] = {}
        try:
            with StompPeer(life.stomp, HANG_S) as peer:
                is_full = _stomp_session(peer, source, f"stomp {life.number}.{sessions}", unanswered, rng)
        except OSError:
            source.give_back(unanswered.values())
            server.life_after(life.number)
            continue
        source.give_back(unanswered.values())
        if is_full:
            source.progress.wait_for_room(ROOM)


def _stomp_session(peer: StompPeer, source: Source, name: str, unanswered: dict[str, Line], rng: Random) -> bool:
    """Send until all is done or the queue is at its cap, which it returns; `unanswered` is kept up to date."""
    while True:
        room = STOMP_WINDOW - len(unanswered)
        lines = source.take(rng.randint(1, room)) if room else []
        if not lines and not unanswered:
            return False
        source.sending(lines, name)
        unanswered |= {line.value: line for line in lines}
        if lines:
            destination = f"/queue/{source.queue}"
            frames = [
                encode("SEND", {"destination": destination, "receipt": line.value, VALUE: line.value}, line.text)
                for line in lines
            ]
            peer.send(b"".join(frames))
        if _stomp_answers(peer.read(), source, unanswered):
            return True


def _stomp_answers(frames: list[StompFrame], source: Source, unanswered: dict[str, Line]) -> bool:
    """Take RECEIPTs and, at the cap, the ERROR; return whether it came."""
    source.confirmed([unanswered.pop(frame.headers["receipt-id"]) for frame in frames if frame.command == "RECEIPT"])
    for frame in frames:
        if frame.command != "RECEIPT":
            assert frame.command == "ERROR", frame
            assert "is at its cap" in frame.headers["message"], frame
            refused = unanswered[frame.headers["receipt-id"]]
            source.refused([refused])
            return True
    return False


def produce_over_http(server: MortalServer, source: Source, rng: Random, name: str) -> None:
    """POST line by line on a connection that is kept, and now and then a batch."""
    sessions = 0
    while not source.is_done:
        life = server.life
        sessions += 1
        connection = http.client.HTTPConnection(*life.http, timeout=HANG_S)
        try:
            while not source.is_done:
                lines = source.take(rng.randint(2, BATCH_MAX) if rng.random() < 0.05 else 1)
                if not lines:  # the last ones are with other producers, who may have to give them back
                    source.progress.wait_for_room(1)
                    continue
                source.sending(lines, f"{name} {life.number}.{sessions}", lines[0].value if len(lines) > 1 else "")
                try:
                    status = _post(connection, source.queue, lines)
                except (OSError, http.client.HTTPException):
                    source.give_back(lines)
                    raise
                if status == 201:
                    source.confirmed(lines)
                else:
                    source.refused(lines)
                    source.give_back(lines)
                    source.progress.wait_for_room(ROOM)
        except (OSError, http.client.HTTPException):
            server.life_after(life.number)
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
            {VALUE: line.value, "encoding": "base64", "message": base64.b64encode(line.text).decode()} for line in lines
        ]
        connection.request("POST", f"{path}/batch", json.dumps(batch).encode())
    reply = connection.getresponse()
    said = reply.read()
    assert reply.status in (201, 507), (reply.status, said)
    if reply.status == 507:
        assert b"is at its cap" in said
        assert reply.headers["retry-after"]
    return reply.status
