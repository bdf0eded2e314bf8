"""Sessions of consumers over MQKS and with HTTP leases; consumers.py has the others, and what a session is.

The values are in the bodies: MQKS shows no headers.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.crash.killable import HANG_S, Boot
from tests.crash.mqks_peer import Answer, MqksPeer

if TYPE_CHECKING:
    from tests.crash.consumers import Consumer, ConsumerRecord

WINDOW = 200
LEASES = 50
LEASE_S = 300
IDLE_S = 0.1
_CONSUMER = "c"


def value_in(body: bytes) -> str:
    """Return the value a tagged line begins with; what is corrupt gives a value nobody sent."""
    return body.partition(b" ")[0].decode("latin-1")


def mqks_session(consumer: Consumer, boot: Boot, record: ConsumerRecord) -> None:
    """Consume with manual acks, each confirmed; what is given back is rejected, as MQKS calls it."""
    numbers = count(1)
    with MqksPeer(boot.mqks, HANG_S) as peer:
        _, _, queue = consumer.queue.partition("/")
        peer.send(f"{_CONSUMER} consume --confirm {queue} --manual-ack --window={WINDOW}".encode())
        acks: dict[str, str] = {}
        while not consumer.done.is_set() or record.ids or record.unconfirmed:
            if record.is_tired:
                record.hang_up()
                return
            idle = False
            try:
                answers = peer.read(IDLE_S)
            except TimeoutError:
                answers, idle = [], True
            out = []
            confirmed = []
            for answer in answers:
                assert answer.is_ok, answer
                if answer.request_id in acks:
                    confirmed.append(acks.pop(answer.request_id))
                elif answer.request_id == _CONSUMER and answer.data:
                    handle = _take(record, answer)
                    if handle:
                        out.append(f"r{next(numbers)} reject {_CONSUMER} {handle}".encode())
            handles = record.to_settle(idle=idle)
            for handle in handles:
                request_id = f"a{next(numbers)}"
                acks[request_id] = record.ids[handle]
                out.append(f"{request_id} ack --confirm {_CONSUMER} {handle}".encode())
            record.settling(handles)
            record.settled(confirmed)
            consumer.progress.add(settled=len(confirmed))
            peer.send(*out)


def _take(record: ConsumerRecord, answer: Answer) -> str:
    """Record a delivery of a message that came over another protocol; return its handle if it is to be given back."""
    message_id, properties, body = answer.data.split(b" ", 2)
    facts = dict(pair.split(b"=", 1) for pair in properties.split(b","))
    tries = int(facts.get(b"retry", b"0"))
    handle = message_id.decode()
    return handle if record.take(handle, value_in(body), handle, body, tries) else ""


def lease_session(consumer: Consumer, boot: Boot, record: ConsumerRecord) -> None:
    """Take leases, settle and give back by HTTP calls; every answer is a confirmation."""
    calls = _Calls(consumer.queue, boot)
    try:
        while not consumer.done.is_set() or record.ids:
            if record.is_tired:
                held = list(record.ids)
                record.hang_up()
                calls.settle("nack", held)
                return
            leases = calls.post("lease", {"count": LEASES, "seconds": LEASE_S, "encoding": "base64"})["messages"]
            back = []
            for lease in leases:
                body = base64.b64decode(lease["message"])
                assert lease["redelivered"] == (lease["tries"] > 0)
                if record.take(lease["ackId"], value_in(body), lease["id"], body, lease["tries"]):
                    back.append(lease["ackId"])
            calls.settle("nack", back)
            handles = record.to_settle(idle=not leases)
            ids = [record.ids[handle] for handle in handles]
            record.settling(handles)
            calls.settle("ack", handles)
            record.settled(ids)
            consumer.progress.add(settled=len(ids))
            if not leases:
                threading.Event().wait(IDLE_S)
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        calls.close()


class _Calls:
    """The calls of one consumer, on a connection that is kept."""

    def __init__(self, queue: str, boot: Boot) -> None:
        project, _, name = queue.partition("/")
        self._path = f"/v2/{project}/queues/{name}/messages"
        self._connection = http.client.HTTPConnection(*boot.http, timeout=HANG_S)

    def close(self) -> None:
        self._connection.close()

    def post(self, what: str, fields: dict[str, object]) -> Any:
        self._connection.request("POST", f"{self._path}/{what}", json.dumps(fields).encode())
        reply = self._connection.getresponse()
        said = reply.read()
        assert reply.status == 200, (reply.status, said)
        return json.loads(said)

    def settle(self, what: str, handles: list[str]) -> None:
        if handles:
            assert self.post(what, {"ackIds": handles}) == {"settled": len(handles), "stale": []}
