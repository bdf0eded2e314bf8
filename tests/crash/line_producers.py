"""Producers over WebSocket and MQKS, as those in producers.py: they send until every line is confirmed.

Both protocols confirm one by one, and continue behind a message that was refused at the cap.
"""

from __future__ import annotations

import json
from collections import deque
from random import Random

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.crash.killable import HANG_S, KillableServer
from tests.crash.mqks_peer import MqksPeer
from tests.crash.producers import ROOM, VALUE
from tests.crash.source import Line, Source

WINDOW = 100
CLOSE_S = 0.1


def produce_over_websocket(server: KillableServer, source: Source, rng: Random) -> None:
    """Publish with a metadata and a payload frame for each line, some unconfirmed at a time."""
    project, _, queue = source.queue.partition("/")
    sessions = 0
    while not source.is_done:
        boot = server.boot
        sessions += 1
        unanswered: deque[Line] = deque()
        host, port = boot.http
        try:
            with connect(
                f"ws://{host}:{port}/v2/{project}/queues/{queue}/messages",
                subprotocols=[Subprotocol("publish")],
                compression=None,
                ping_interval=None,
                open_timeout=HANG_S,
                close_timeout=CLOSE_S,
                proxy=None,
            ) as socket:
                while not source.is_done:
                    lines = source.take(rng.randint(1, WINDOW - len(unanswered))) if len(unanswered) < WINDOW else []
                    source.sending(lines, f"websocket {boot.number}.{sessions}")
                    unanswered += lines
                    for line in lines:
                        socket.send(json.dumps({VALUE: line.value}))
                        socket.send(line.body)
                    if not unanswered:  # the last ones are with a transaction of another producer
                        source.progress.wait_for_room(1)
                        continue
                    answer = socket.recv(timeout=HANG_S)
                    line = unanswered.popleft()
                    if answer == "":
                        source.confirmed([line])
                        continue
                    said = json.loads(answer)
                    assert said["code"] == 507 and "too little room" in said["error"], said
                    source.refused([line])
                    source.resend([line])
                    source.progress.wait_for_room(ROOM // 10)
        except (OSError, WebSocketException):
            source.resend(unanswered)
            server.wait_for_boot(boot.number)


def produce_over_mqks(server: KillableServer, source: Source, event: str, rng: Random) -> None:
    """Publish to an event that the queue is bound to, each line with `--confirm` and its value as the id."""
    sessions = 0
    while not source.is_done:
        boot = server.boot
        sessions += 1
        unanswered: dict[str, Line] = {}
        try:
            with MqksPeer(boot.mqks, HANG_S) as peer:
                while not source.is_done:
                    room = WINDOW - len(unanswered)
                    lines = source.take(rng.randint(1, room)) if room else []
                    source.sending(lines, f"mqks {boot.number}.{sessions}")
                    unanswered |= {line.value: line for line in lines}
                    head = f" publish --confirm {event} ".encode()
                    peer.send(*[line.value.encode() + head + line.body for line in lines])
                    if not unanswered:
                        source.progress.wait_for_room(1)
                        continue
                    answers = peer.read()
                    source.confirmed([unanswered.pop(answer.request_id) for answer in answers if answer.is_ok])
                    refused = [unanswered.pop(answer.request_id) for answer in answers if not answer.is_ok]
                    source.refused(refused)
                    source.resend(refused)
                    if refused:
                        source.progress.wait_for_room(ROOM // 10)
        except OSError:
            source.resend(unanswered.values())
            server.wait_for_boot(boot.number)
