"""The worst input of every operation of the contract; see `test_turns`.

A case is called with the world and with the name of a queue of its own, which holds 10,000 messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson

from tests.faults.many_batches import AT_ONCE, batches
from tests.faults.test_many_queues import LARGE
from tests.kit.guarded_server import GuardedServer, RawConnection

JUNK = orjson.dumps({"queues": [1] * 249_000, "x": "y" * 7_000_000})
"""The most values that a body may have, and nearly the most bytes."""
LINES = {"properties": {"lines": {"items": {"required": ["sku", "count", "price"]}}}}
CONSTS = {"items": {"anyOf": [{"const": number} for number in range(550)]}}
PATTERNS = {"allOf": [{"pattern": f"[^{number}]{{1,40}}"} for number in range(200)]}
IDS = [f"{number:032x}" for number in range(200_000)]
DEEP = "[" * 100 + "]" * 100
MESSAGES = orjson.dumps([{"message": "x"}] * AT_ONCE)


class World:
    """A server with 1,000 queues, of which one holds 90,000 messages."""

    def __init__(self, guarded: GuardedServer) -> None:
        self.guarded = guarded
        self.queues = "/v2/w/queues"
        self.large = f"/v2/default/queues/{LARGE.queue}"

    def call(self, method: str, path: str, expected: int = 0, **options: Any) -> httpx.Response:
        """Call as the admin; the status may be any, unless one is expected."""
        reply = self.guarded.call("admin", method, path, **options)
        assert reply.status_code < 500 or reply.status_code in (503, 507), (reply.status_code, reply.text)
        assert not expected or reply.status_code == expected, (reply.status_code, reply.text)
        return reply

    def prepare(self) -> None:
        """Make what several operations look at."""
        for number in range(200):
            self.call("PUT", f"/v2/default/events/many/queues/q{number}")

    def ready(self, name: str) -> str:
        """Return the path of a queue of one case."""
        queue = f"{self.queues}/{name}"
        assert self.call("PUT", queue, json={}).is_success
        self.call("POST", f"{queue}/messages/batch", 201, content=MESSAGES, headers=JSON)
        return queue

    def lease(self, queue: str, count: int = 10) -> list[str]:
        ids: list[str] = []
        for _ in range(count):
            reply = self.call("POST", f"{queue}/messages/lease", 200, json={"count": 1000, "seconds": 600})
            ids += [each["ackId"] for each in reply.json()["messages"]]
        return ids

    def junk(self, method: str, path: str) -> None:
        self.call(method, path, content=JUNK, headers=JSON)


JSON = {"content-type": "application/json"}
Case = Callable[[World, str], object]
WITHOUT_QUEUE: set[Case] = set()
"""The cases that do not use a queue of their own."""


def on_paths(case: Case, *paths: str) -> Case:
    """Return the case; without {q} in its paths it gets no queue."""
    if not any("{q}" in path for path in paths):
        WITHOUT_QUEUE.add(case)
    return case


def get(path: str, **params: Any) -> Case:
    """Return a case that gets a path; {q} stands for its queue, {large} for the large one."""

    def case(world: World, queue: str) -> None:
        world.call("GET", path.format(q=queue, large=world.large), params=params)

    return on_paths(case, path)


def send(method: str, path: str, *bodies: bytes, kind: str = "application/json", **headers: str) -> Case:
    """Return a case that sends bodies to a path."""

    def case(world: World, queue: str) -> None:
        for body in bodies:
            fields = {"content-type": kind, **headers}
            world.call(method, path.format(q=queue, large=world.large), content=body, headers=fields)

    return on_paths(case, path)


def several(*cases: Case) -> Case:
    def case(world: World, queue: str) -> None:
        for each in cases:
            each(world, queue)

    return case


def publish(world: World, queue: str) -> None:
    world.call("POST", f"{queue}/messages", content=b"x" * (1 << 20))
    for schema, body in (
        (LINES, b'{"lines":[' + b",".join([b"{}"] * 250_000) + b"]}"),
        (CONSTS, b"[" + b",".join([b"549"] * 200_000) + b"]"),
        (CONSTS, b"[" + b",".join([b"549"] * 30) + b"]"),
        (PATTERNS, b'"' + b"a" * 1_000_000 + b'"'),
    ):
        world.call("PUT", queue, json={"schema": schema})
        world.call("POST", f"{queue}/messages", content=body)
    world.call("PUT", queue, json={"schema": CONSTS})
    batch = [{"message": "[" + ",".join(["549"] * 25) + "]"}] * 100
    world.call("POST", f"{queue}/messages/batch", 201, json=batch)


def settle(path: str, **more: Any) -> Case:
    """Return a case that settles 10,000 leases, and as many unknown ones as a body may have."""

    def case(world: World, queue: str) -> None:
        ids = world.lease(queue)
        name = "ack" if path == "settle" else "ackIds"
        world.call("POST", f"{queue}/messages/{path}", content=orjson.dumps({name: IDS, **more}), headers=JSON)
        world.call("POST", f"{queue}/messages/{path}", 200, json={name: ids, **more})
        world.junk("POST", f"{queue}/messages/{path}")

    return case


def undo(world: World, queue: str) -> None:
    world.call("POST", f"{queue}/purge", 200, json={})
    world.call("POST", f"{queue}/undo", json={"limit": 10_000, "within": 3600})
    world.junk("POST", f"{queue}/undo")


def redrive(world: World, queue: str) -> None:
    world.call("PUT", "/v2/w/queues/home", json={"dead_letter": "w/" + queue.rpartition("/")[2]})
    world.call("POST", "/v2/w/queues/home/messages/batch", 201, content=MESSAGES, headers=JSON)
    ids = world.lease("/v2/w/queues/home")
    world.call("POST", "/v2/w/queues/home/messages/nack", 200, json={"ackIds": ids, "reject": True})
    world.call("POST", f"{queue}/redrive", 200, json={})


def stage(world: World, queue: str, part: int = 1) -> None:
    line = orjson.dumps({"queue": queue.rpartition("/")[2], "message": "x"}) + b"\n"
    path = f"/v2/w/transactions/{queue.rpartition('/')[2]}/parts/{part}"
    headers = {"content-type": "application/x-ndjson"}
    world.call("PUT", path, content=line * 100_000, headers=headers)


def commit(world: World, queue: str) -> None:
    stage(world, queue)
    world.call("POST", f"/v2/w/transactions/{queue.rpartition('/')[2]}/commit", json={"parts": 1})
    world.junk("POST", f"/v2/w/transactions/{queue.rpartition('/')[2]}/commit")


def explain(world: World, queue: str) -> None:
    world.lease(queue)
    world.call("GET", f"{queue}/explain", 200)
    world.call("GET", f"{world.large}/explain", 200)


def groups(world: World, queue: str) -> None:
    for number in range(32):
        world.call("PUT", f"{queue}/groups/g{number}", json={"start": "earliest"})
    world.call("GET", f"{queue}/groups", 200)
    world.call("GET", f"{queue}/groups/g1", 200)
    world.call("POST", f"{queue}/groups/g2/ack", json={"upTo": 9000})
    world.call("DELETE", f"{queue}/groups/g3")


def many_offsets(world: World, queue: str) -> None:
    names = [f"q{number}" for number in range(1000)]
    world.call("POST", "/v2/default/offsets", json={"queues": names})
    world.call(
        "POST", "/v2/default/acks", json={"group": "g", "queues": [{"queue": name, "upTo": 1} for name in names]}
    )
    world.junk("POST", "/v2/default/offsets")
    world.junk("POST", "/v2/default/acks")


def figures(world: World, path: str) -> None:
    for _ in range(3):
        world.call("GET", path, 200)


def tokens(world: World, queue: str) -> None:
    for _ in range(50):
        world.call("POST", "/v2/tokens", json={"seconds": 600, "label": "x" * 100})
    world.call("GET", "/v2/tokens", 200)


def with_group(method: str, path: str, **options: Any) -> Case:
    """Return a case about one declared group."""

    def case(world: World, queue: str) -> None:
        world.call("PUT", f"{queue}/groups/g", json={"start": "earliest"})
        world.call(method, path.format(q=queue), **options)

    return case


def history(world: World, queue: str) -> None:
    message = world.call("GET", f"{world.large}/messages", 200, params={"limit": 1}).json()["messages"][0]["id"]
    world.call("GET", f"{world.large}/messages/{message}/history", 200)


def one(method: str, end: str = "") -> Case:
    """Return a case about one message by its id."""

    def case(world: World, queue: str) -> None:
        message = world.call("GET", f"{queue}/messages", 200, params={"limit": 1}).json()["messages"][0]["id"]
        world.call(method, f"{queue}/messages/{message}{end}")

    return case


def backup(world: World, queue: str) -> None:
    files = {f"queues/{number:012x}/{number:016x}.seg": [0, 1, "x" * 40] for number in range(60_000)}
    world.call("POST", "/v2/backup", content=orjson.dumps({"had": files}), headers=JSON)
    world.call("POST", "/v2/backup")


def followed(world: World, queue: str) -> None:
    """Two get a copy of everything, which is all there and is not read; then a busy queue."""
    lines = [RawConnection(world.guarded.server.http) for _ in range(2)]
    for line in lines:
        line.send(
            "POST /v2/standby/stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
            f"Authorization: Bearer {world.guarded.secrets['admin']}\r\n\r\n"
        )
        line.read_until(b"200 OK")
    send("POST", f"{queue}/messages/batch", MESSAGES)(world, queue)
    for line in lines:
        line.socket.close()


def event(path: str, body: bytes) -> Case:
    return send("POST", path, body)


WILD = " OR ".join([f"h LIKE '%{'a_' * 180}b%'"] * 4)
LIKES = " OR ".join([f"h LIKE '%{letter}%b%'" for letter in "cdefghijk"])
DEAR = f"{WILD} OR {LIKES}"
"""A filter that costs about as much as any may."""
LONG = "a" * 4095 + "c"


def bind(world: World, queue: str) -> None:
    """Bind to a mask, and many queues with filters that cost much, or are long."""
    world.call("PUT", "/v2/default/events/a.b.%23.c/queues/q1", 201)
    longest = " AND ".join([f"a{number} IN ({','.join(['1'] * 4)})" for number in range(60)])
    for number in range(100):
        body = {"filter": DEAR if number % 10 else longest}
        world.call("PUT", f"/v2/default/events/filtered/queues/q{number}", 201, json=body)


def to_filters(world: World, queue: str) -> None:
    """One message for filters that cost much; it passes none."""
    bind(world, queue)
    world.call("POST", "/v2/default/events/filtered/messages", 201, content=b"x", headers={"x-msg-x-h": LONG})


def batch_to_filters(world: World, queue: str) -> None:
    """As many messages as the filters of two queues may look at in one batch, and too many."""
    for number in range(2):
        world.call("PUT", f"/v2/default/events/dear/queues/q{number}", 201, json={"filter": DEAR})
    messages = [{"message": "x", "x-msg-x-h": LONG}] * 1000
    path = "/v2/default/events/dear/messages/batch"
    world.call("POST", path, 400, json=messages)
    world.call("POST", path, 201, json=messages[:8])


def look_with_filter(path: str) -> Case:
    """Return a case that looks for what passes a filter that costs much, and one that costs little."""

    def case(world: World, queue: str) -> None:
        for wanted in (DEAR, "a = 'b'"):
            world.call("GET", path.format(large=world.large), 200, params={"filter": wanted, "limit": 100})

    return case


CASES: dict[str, Case] = {
    "listProjects": get("/v2", limit=100_000),
    "listQueues": get("/v2/default/queues", limit=100_000),
    "ensureQueue": several(
        send("PUT", "{q}", orjson.dumps({"schema": PATTERNS}), orjson.dumps({"groups": [f"g{n}" for n in range(32)]})),
        send("PUT", "{q}", JUNK),
    ),
    "getQueue": get("{large}"),
    "deleteQueue": send("DELETE", "{q}", b""),
    "discoverSocket": send("OPTIONS", "{q}", b""),
    "publishMessage": publish,
    "popMessage": send("DELETE", "{large}/messages", b""),
    "peekMessages": several(get("{large}/messages", limit=1000), look_with_filter("{large}/messages")),
    "publishBatch": several(
        send("POST", "{q}/messages/batch", MESSAGES, orjson.dumps([{"message": "x" * 800}] * AT_ONCE), JUNK),
        send("POST", "{q}/messages/batch", orjson.dumps([{"message": "x", "headers": {"a": "b"}}] * AT_ONCE)),
    ),
    "leaseMessages": several(lambda world, queue: world.lease(queue), send("POST", "{q}/messages/lease", JUNK)),
    "ackLeases": settle("ack"),
    "nackLeases": settle("nack", delay=1),
    "settleLeases": settle("settle"),
    "extendLeases": settle("extend", seconds=100),
    "getMessage": one("GET"),
    "cancelMessage": one("DELETE"),
    "getMessageHistory": history,
    "requestAnswer": send("POST", "{q}/request?wait=0.1", b"x" * (1 << 20), kind="text/plain"),
    "answerRequest": send("POST", "/v2/replies/x", b"x" * (1 << 20), kind="text/plain"),
    "confirmPop": send("DELETE", "{q}/leases/x", b""),
    "getProducer": get("{q}/producers/p"),
    "explainQueue": explain,
    "searchMessages": several(
        get("{large}/search", text="none of them"), get("{large}/search", text="x"), look_with_filter("{large}/search")
    ),
    "pauseQueue": send("POST", "{q}/pause", b"{}", JUNK),
    "resumeQueue": send("POST", "{q}/resume", b"{}", JUNK),
    "purgeQueue": several(send("POST", "{q}/purge", b"{}"), send("POST", "{q}/purge", JUNK)),
    "undoSettled": undo,
    "redriveQueue": redrive,
    "listEvents": get("/v2/default/events"),
    "bindQueue": bind,
    "unbindQueue": send("DELETE", "/v2/default/events/a.b.%23.c/queues/q1", b""),
    "publishEvent": several(event("/v2/default/events/many/messages", b"x" * 100_000), to_filters),
    "publishEventBatch": several(
        event("/v2/default/events/many/messages/batch", orjson.dumps([{"message": "x"}] * 500)),
        event("/v2/default/events/many/messages/batch", MESSAGES),
        event("/v2/default/events/many/messages/batch", orjson.dumps([{"message": "x" * 800}] * 400)),
        batch_to_filters,
    ),
    "getTransaction": get("/v2/w/transactions/x"),
    "dropTransaction": several(stage, send("DELETE", "/v2/w/transactions/dropTransaction", b"")),
    "stagePart": stage,
    "commitTransaction": commit,
    "listGroups": groups,
    **dict.fromkeys(("listBatches", "getBatch", "dropBatch"), batches),
    "declareGroup": with_group("PUT", "{q}/groups/h", json={"start": "earliest"}),
    "getGroup": with_group("GET", "{q}/groups/g"),
    "removeGroup": with_group("DELETE", "{q}/groups/g"),
    "ackGroup": with_group("POST", "{q}/groups/g/ack", json={"upTo": 9000}),
    "getOffsets": get("{large}/offsets", timestamp=1),
    "getManyOffsets": many_offsets,
    "ackGroups": many_offsets,
    "browseMessages": several(get("{large}/browse", max_bytes=16 << 20), look_with_filter("{large}/browse")),
    "readJournal": get("{large}/journal", max_bytes=16 << 20),
    "lookAtMqQueue": get("/mq/large"),
    "createMqQueue": send("PUT", "/mq/worst", b""),
    "deleteMqQueue": send("DELETE", "/mq/worst", b""),
    "addMqMessage": send("POST", "/mq/large/messages", b"x" * (1 << 20), kind="text/plain"),
    "fetchMqMessage": get("/mq/large/messages"),
    "deleteMqMessage": send("DELETE", "/mq/large/messages/x", b""),
    "getHealth": get("/healthz"),
    "getReadiness": get("/readyz"),
    "getMetrics": lambda world, _queue: figures(world, "/metrics"),
    "getStats": lambda world, _queue: figures(world, "/v2/stats?limit=1000&order=messages_per_second"),
    "getStatsHistory": several(
        get("/v2/stats/history", span="day"),
        get("/v2/stats/history", queue=",".join(f"q{each}" for each in range(100))),
    ),
    "openSession": send("POST", "/v2/session", b"{}", JUNK),
    "getSession": get("/v2/session"),
    "closeSession": send("DELETE", "/v2/session", b""),
    "openMqSession": send("POST", "/mq/auth", b""),
    "makeTicket": send("POST", "/v2/tickets", JUNK, b"{}"),
    "listTokens": tokens,
    "makeToken": send("POST", "/v2/tokens", JUNK, orjson.dumps({"seconds": 60})),
    "revokeTokensOf": send("DELETE", "/v2/tokens?user=nobody", b""),
    "revokeToken": send("DELETE", "/v2/tokens/x", b""),
    "listConnections": get("/v2/connections"),
    "endConnection": send("DELETE", "/v2/connections/999999", b""),
    "readAudit": get("/v2/audit"),
    "reload": send("POST", "/v2/reload", b""),
    "backup": backup,
    "getStandby": get("/v2/standby"),
    "followServer": followed,
    "switchOver": send("POST", "/v2/standby/switchover", b""),
    "acknowledgeStream": send("POST", "/v2/standby/stream/acks", b'{"key": "ab"}'),
    "compareCopy": send("POST", "/v2/standby/stream/digests", b'{"key": "ab", "path": "a", "digests": ""}'),
    "getOpenapiYaml": get("/openapi.yaml"),
    "getOpenapiJson": get("/openapi.json"),
    "getAsyncapiYaml": get("/asyncapi.yaml"),
    "getDocs": get("/docs"),
    "getDocsFile": get("/docs/x"),
    "getProblems": get("/docs/problems"),
    "getFront": get("/"),
    "getIcon": get("/favicon.ico"),
    "getConsole": get("/console"),
    "getConsoleFile": get("/console/x"),
}
