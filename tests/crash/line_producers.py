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

from tests.crash.mortal import HANG_S, MortalServer
from tests.crash.mqks_peer import MqksPeer
from tests.crash.producers import ROOM, VALUE
from tests.crash.source import Line, Source

WINDOW = 100
CLOSE_S = 0.1


def produce_over_websocket(server: MortalServer, source: Source, rng: Random) -> None:
    """Publish with a metadata and a payload frame for each line, some unconfirmed at a time."""
    project, _, queue = source.queue.partition("/")
    sessions = 0
    while not source.is_done:
        life = server.life
        sessions += 1
        unanswered: deque[Line] = deque()
        host, port = life.http
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
                    source.sending(lines, f"websocket {life.number}.{sessions}")
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
                    source.give_back([line])
                    source.progress.wait_for_room(ROOM // 10)
        except (OSError, WebSocketException):
            source.give_back(unanswered)
            server.life_after(life.number)


def produce_over_mqks(server: MortalServer, source: Source, event: str, rng: Random) -> None:
    """Publish to an event that the queue is bound to, each line with `--confirm` and its value as the id."""
    sessions = 0
    while not source.is_done:
        life = server.life
        sessions += 1
        unanswered: dict[str, Line] = {}
        try:
            with MqksPeer(life.mqks, HANG_S) as peer:
                while not source.is_done:
                    room = WINDOW - len(unanswered)
                    lines = source.take(rng.randint(1, room)) if room else []
                    source.sending(lines, f"mqks {life.number}.{sessions}")
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
                    source.give_back(refused)
                    if refused:
                        source.progress.wait_for_room(ROOM // 10)
        except OSError:
            source.give_back(unanswered.values())
            server.life_after(life.number)
