"""Every call of every protocol, with every right but the one it needs: refused alike, and nothing has changed.

And with no right but the one it needs: not refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from curbstone.core.positions import LATEST
from tests.kit.contract import operations
from tests.kit.guarded_server import RIGHTS, GuardedServer, guarded_server

Q = "/v2/shop/queues/q"
T = "/v2/shop/transactions/t"
LINE = b'{"queue":"q","message":"m"}\n'

HTTP: list[tuple[str, str, str, dict[str, object]]] = [
    # operation, the right it needs, method and path, options
    ("publishMessage", "send", f"POST {Q}/messages", {"content": b"m"}),
    ("publishBatch", "send", f"POST {Q}/messages/batch", {"json": [{"message": "m"}]}),
    ("addMqMessage", "send", "POST /mq/q/messages", {"content": b"m"}),
    ("stagePart", "send", f"PUT {T}/parts/a", {"content": LINE, "headers": {"content-type": "application/x-ndjson"}}),
    ("popMessage", "receive", f"DELETE {Q}/messages", {}),
    ("leaseMessages", "receive", f"POST {Q}/messages/lease", {"json": {"seconds": 0.001}}),
    ("ackLeases", "receive", f"POST {Q}/messages/ack", {"json": {"ackIds": ["x"]}}),
    ("nackLeases", "receive", f"POST {Q}/messages/nack", {"json": {"ackIds": ["x"]}}),
    ("settleLeases", "receive", f"POST {Q}/messages/settle", {"json": {"ack": ["x"]}}),
    ("extendLeases", "receive", f"POST {Q}/messages/extend", {"json": {"ackIds": ["x"]}}),
    ("ackGroup", "receive", f"POST {Q}/groups/g/ack", {"json": {"upTo": 0}}),
    ("fetchMqMessage", "receive", "GET /mq/q/messages", {}),
    ("deleteMqMessage", "receive", "DELETE /mq/q/messages/x", {}),
    ("cancelMessage", "receive", f"DELETE {Q}/messages/x", {}),
    ("confirmPop", "receive", f"DELETE {Q}/leases/x", {}),
    ("getMessage", "peek", f"GET {Q}/messages/x", {}),
    ("requestAnswer", "send", f"POST {Q}/request?wait=0.01", {"content": b"m"}),
    ("getMessageHistory", "peek", f"GET {Q}/messages/x/history", {}),
    ("explainQueue", "peek", f"GET {Q}/explain", {}),
    ("listKeys", "peek", f"GET {Q}/keys", {}),
    ("listBatches", "peek", f"GET {Q}/batches", {}),
    ("getBatch", "peek", f"GET {Q}/batches/x", {}),
    ("dropBatch", "manage", f"DELETE {Q}/batches/x", {}),
    ("searchMessages", "peek", f"GET {Q}/search?text=a", {}),
    ("getProducer", "send", f"GET {Q}/producers/x", {}),
    ("peekMessages", "peek", f"GET {Q}/messages", {}),
    ("getQueue", "peek", f"GET {Q}", {}),
    ("getOffsets", "peek", f"GET {Q}/offsets", {}),
    ("getManyOffsets", "peek", "POST /v2/shop/offsets", {"json": {"queues": {"q": 0}}}),
    ("ackGroups", "receive", "POST /v2/shop/acks", {"json": {"group": "g", "queues": {"q": {"upTo": 0}}}}),
    ("browseMessages", "peek", f"GET {Q}/browse", {}),
    ("readJournal", "peek", f"GET {Q}/journal", {}),
    ("listGroups", "peek", f"GET {Q}/groups", {}),
    ("getGroup", "peek", f"GET {Q}/groups/g", {}),
    ("ensureQueue", "manage", f"PUT {Q}", {"json": {"ttl": 5}}),
    ("createMqQueue", "manage", "PUT /mq/q", {}),
    ("purgeQueue", "manage", f"POST {Q}/purge", {}),
    ("undoSettled", "manage", f"POST {Q}/undo", {}),
    ("pauseQueue", "manage", f"POST {Q}/pause", {}),
    ("resumeQueue", "manage", f"POST {Q}/resume", {}),
    ("redriveQueue", "manage", f"POST {Q}/redrive", {"json": {}}),
    ("declareGroup", "manage", f"PUT {Q}/groups/h", {"json": {"start": LATEST}}),
    ("removeGroup", "manage", f"DELETE {Q}/groups/h", {}),
    ("deleteMqQueue", "manage", "DELETE /mq/gone", {}),
    ("deleteQueue", "manage", "DELETE /v2/shop/queues/gone", {}),
]
EVENT = "/v2/shop/events/e"
HTTP += [
    ("publishEvent", "send", f"POST {EVENT}/messages", {"content": b"m"}),
    ("publishEventBatch", "send", f"POST {EVENT}/messages/batch", {"json": [{"message": "m"}]}),
]
ANY = [("discoverSocket", f"OPTIONS {Q}"), ("lookAtMqQueue", "GET /mq/q")]

SEND, SUB = "SEND\ndestination:/queue/{}\nreceipt:r\n\nm", "SUBSCRIBE\nid:0\ndestination:{}\nreceipt:r\n\n"
STOMP = [
    ("send", [SEND.format("q")]),
    ("send", [SEND.format("shop/q")]),
    ("send", ["SEND\ndestination:/topic/e\nreceipt:r\n\nm"]),
    ("receive", [SUB.format("/queue/q")]),
    ("receive", [SUB.format("/topic/e")]),
    ("peek", [SUB.format("/queue/q/count")]),
    (
        "send",
        ["BEGIN\ntransaction:t\n\n", "SEND\ntransaction:t\ndestination:q\n\nm", "COMMIT\ntransaction:t\nreceipt:r\n\n"],
    ),
]
MQKS = [
    ("send", "r publish --confirm e m"),
    ("receive", "r consume --confirm q"),
    ("manage", "r rebind --confirm q --remove nothing"),
    ("manage", "r delete_queue --confirm gone"),
    ("metrics", "r _eval len(state.queues)"),
]


ON_SERVER = ("admin", "replicate")


def users() -> str:
    topics = {"send", "receive"}
    found = '[users.root]\nhome = "shop"\ngrants = ["admin server"]\n[users.nothing]\nhome = "shop"\n'
    for right in (*RIGHTS, "metrics"):
        for name, rights in ((f"only-{right}", {right}), (f"no-{right}", {*RIGHTS, "metrics"} - {right})):
            grants = [f"{each} shop/*" for each in sorted(rights - {"metrics"})]
            grants += [f"{each} topic:shop/*" for each in sorted(rights & topics)]
            grants += ["metrics server"] if "metrics" in rights else []
            found += f'[users.{name}]\nhome = "shop"\ngrants = {grants}\n'.replace("'", '"')
    return found


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded_server(tmp_path_factory.mktemp("matrix"), users()) as opened:
        assert opened.call("root", "PUT", Q, json={"groups": ["g"]}).status_code == 201
        assert opened.call("root", "POST", f"{Q}/messages", content=b"first").status_code == 201
        yield opened


def state(it: GuardedServer) -> list[object]:
    """Return what there is: queues, their options, how many messages each has and has had, and bindings."""
    queues = it.call("root", "GET", "/v2/shop/queues").json()["queues"]
    found: list[object] = [it.call("root", "GET", "/v2/shop/events").json()]
    for queue in queues:
        offsets = it.call("root", "GET", f"/v2/shop/queues/{queue['name']}/offsets").json()
        held = queue["rdy"] + queue["wip"] + queue["delayed"]
        found.append(
            (queue["name"], queue["options"], sorted(queue["groups"]), held, offsets["epoch"], offsets["next"])
        )
    return found


@pytest.mark.parametrize(("name", "right", "call", "options"), HTTP, ids=[row[0] for row in HTTP])
def test_http(name: str, right: str, call: str, options: dict[str, object], it: GuardedServer) -> None:
    before = state(it)
    method, path = call.split()
    nobody = it.call("", method, path, **options)
    assert nobody.status_code == 401 and nobody.headers["www-authenticate"] == "Bearer"
    for user in ("nothing", f"no-{right}"):
        reply = it.call(user, method, path, **options)
        assert reply.status_code == 403, reply.text
        assert f"no right to {right} on " in reply.json()["detail"]
    assert state(it) == before
    done = (404,) if "/x" in path and not path.startswith("/mq") else (200, 201, 202, 204)
    assert it.call(f"only-{right}", method, path, **options).status_code in done


def test_every_queue_operation_is_in_the_matrix() -> None:
    rights = {name: right for name, right, _, _ in HTTP} | {name: "any" for name, _ in ANY}
    for _, _, operation in operations():
        name, right = operation["operationId"], operation["x-right"]
        assert right == rights.get(name, right), name
        assert name in rights or right in ("none", "own", "login", *ON_SERVER) or name in ("bindQueue", "unbindQueue")


def test_calls_without_a_queue_follow_the_contract(it: GuardedServer) -> None:
    def status(user: str, method: str, path: str) -> int:
        """Return how a call is answered that says nothing; only its login and right matter."""
        path = re.sub(r"\{[a-z]+\}", "x", path)
        headers = {"authorization": f"Bearer {it.secrets[user]}"} if user else {}
        with it.http.stream(method, path, headers=headers) as reply:
            return reply.status_code

    seen = set()
    for path, verb, operation in operations():
        right = operation["x-right"]
        if right in ("none", "own", "login", *ON_SERVER):
            is_document = path.startswith(
                ("/docs", "/openapi", "/asyncapi")
            )  # open to all on this machine's own listeners
            reported = status("", verb, path)
            assert (reported == 401) == (right != "none" and not is_document) or path.endswith(("/session", "/auth")), (
                path
            )
            if right != "none" and verb != "DELETE":
                assert (status("nothing", verb, path) == 403) == (right in ON_SERVER), path
            seen.add(right)
    assert seen == {"none", "own", "login", *ON_SERVER}


@pytest.mark.parametrize(("name", "call"), ANY)
def test_http_with_any_right(name: str, call: str, it: GuardedServer) -> None:
    method, path = call.split()
    assert it.call("nothing", method, path).status_code == 403
    for right in RIGHTS:
        assert it.call(f"only-{right}", method, path).status_code in (200, 204)


def test_event_stream_requires_receive(it: GuardedServer) -> None:
    headers = {"accept": "text/event-stream"}
    assert it.call("", "GET", f"{Q}/messages", headers=headers).status_code == 401
    assert it.call("no-receive", "GET", f"{Q}/messages", headers=headers).status_code == 403
    with it.http.stream(
        "GET", f"{Q}/messages", headers=headers | {"authorization": f"Bearer {it.secrets['only-receive']}"}
    ) as reply:
        assert reply.status_code == 200


@pytest.mark.parametrize(("protocol", "right"), [("publish", "send"), ("consume", "receive")])
def test_websockets(protocol: str, right: str, it: GuardedServer) -> None:
    path = f"{Q}/messages"
    assert it.websocket("", protocol, path) == 401
    assert it.websocket(f"no-{right}", protocol, path) == 403
    assert it.websocket(f"only-{right}", protocol, path) == 101


@pytest.mark.parametrize(("command", "right"), [("subscribe", "receive"), ("publish", "send")])
def test_multi_queue_websocket(command: str, right: str, it: GuardedServer) -> None:
    """Whoever is logged in may open it; what is done over it needs its right, queue by queue."""
    before = state(it)
    assert it.websocket("", "queues", "/v2/shop/queues") == 401
    host, port = it.server.http
    answers = []
    for user in ("nothing", f"no-{right}", f"only-{right}"):
        ticket = it.call(user, "POST", "/v2/tickets", json={"way": "queues"}).json()["ticket"]
        url = f"ws://{host}:{port}/v2/shop/queues?ticket={ticket}"
        with connect(url, subprotocols=[Subprotocol("queues")], proxy=None, compression=None) as socket:
            socket.send(json.dumps({command: "q", **({"message": "m"} if command == "publish" else {"ack": True})}))
            answers.append(json.loads(socket.recv(timeout=60)))
        if user != f"only-{right}":
            assert state(it) == before
    refused = {"code": 403, "error": f"no right to {right} on queue shop/q", command: "q"}
    assert answers[:2] == [refused, refused]
    assert answers[2][{"subscribe": "subscribed", "publish": "published"}[command]] == "q"


def test_multi_queue_ticket_opens_only_the_multi_queue_socket(it: GuardedServer) -> None:
    assert it.call("only-send", "POST", "/v2/tickets", json={"way": "queues", "queue": "q"}).status_code == 400
    ticket = it.call("only-receive", "POST", "/v2/tickets", json={"way": "queues"}).json()["ticket"]
    assert it.websocket("", "consume", f"{Q}/messages", f"?ticket={ticket}") == 401
    assert it.websocket("", "queues", "/v2/shop/queues", f"?ticket={ticket}") == 401, "it is used up"


@pytest.mark.parametrize(("right", "frames"), STOMP, ids=[f"{row[1][0][:40]!r}" for row in STOMP])
def test_stomp(right: str, frames: list[str], it: GuardedServer) -> None:
    before = state(it)
    assert it.stomp("", *frames) == ["ERROR a login is needed"]
    for user in ("nothing", f"no-{right}"):
        connected, error = it.stomp(user, *frames)
        assert connected == "CONNECTED"
        assert error.startswith(f"ERROR no right to {right} on "), error
    assert state(it) == before
    assert "RECEIPT" in it.stomp(f"only-{right}", *frames)


def test_stomp_needs_no_right_for_private_queues(it: GuardedServer) -> None:
    own = [SUB.format("/temp-queue/mine"), "SEND\ndestination:/temp-queue/mine\nreceipt:s\n\nm"]
    found = it.stomp("nothing", *own)
    assert found.count("RECEIPT") == 3 and "ERROR" not in " ".join(found)


@pytest.mark.parametrize(("right", "line"), MQKS)
def test_mqks(right: str, line: str, it: GuardedServer) -> None:
    before = state(it)
    assert [answer.split()[:2] for answer in it.mqks("", line)] == [["r", "error"]]
    for user in ("nothing", f"no-{right}"):
        login, *answers = it.mqks(user, line)
        assert login == f"login ok {user}"
        assert [answer.split()[:2] for answer in answers] == [["r", "error"]], answers
    assert state(it) == before
    answers = it.mqks(f"only-{right}", line)[1:]
    assert answers and answers[0].startswith("r ok"), answers


def test_mqks_refuses_everything_before_login(it: GuardedServer) -> None:
    assert [answer.split()[1] for answer in it.mqks("", "a ping x", "b auth cbs_0123456789_wrong")] == ["error"] * 2
    assert it.mqks("nothing", "a ping x")[1:] == ["a ok x"]


def test_first_use_creates_a_queue_only_with_manage(it: GuardedServer) -> None:
    assert it.stomp("only-send", SEND.format("fresh"))[1].startswith("ERROR no such queue")
    assert [answer.split()[1] for answer in it.mqks("only-receive", "r consume --confirm fresh")[1:]] == ["error"]
    assert it.call("root", "GET", "/v2/shop/queues/fresh").status_code == 404


def test_lists_and_metrics_show_only_visible_queues(it: GuardedServer) -> None:
    def listed(user: str) -> set[str]:
        return {queue["name"] for queue in it.call(user, "GET", "/v2/shop/queues").json()["queues"]}

    assert listed("nothing") == listed("only-send") == set() and "q" in listed("only-peek")
    assert it.call("", "GET", "/v2/shop/queues").status_code == 401
    for user, queues, server in (("nothing", False, False), ("only-peek", True, False), ("only-metrics", False, True)):
        text = it.call(user, "GET", "/metrics").text
        assert ('queue="q"' in text) is queues
        assert ("process_cpu_seconds_total" in text) is server
        assert ("curbstone_logins_total" in text) is server


def test_health_needs_no_login_and_shows_reasons_only_with_metrics(it: GuardedServer) -> None:
    for path in ("/healthz", "/readyz", "/console"):
        assert it.call("", "GET", path).status_code == 200
    assert it.call("", "HEAD", "/healthz").status_code == 200


def test_private_project_is_unreachable_by_path(it: GuardedServer) -> None:
    for project in ("~private", "%7Eprivate"):
        assert it.call("root", "GET", f"/v2/{project}/queues").status_code == 400


def test_staged_transaction_commit_requires_its_owner_and_send(it: GuardedServer) -> None:
    kind = {"content-type": "application/x-ndjson"}
    staged = it.call("only-send", "PUT", f"{T}2/parts/a", content=LINE, headers=kind)
    assert staged.status_code == 200
    for user in ("no-send", "root"):
        assert it.call(user, "GET", f"{T}2").status_code == 404
        assert it.call(user, "POST", f"{T}2/commit", json={}).status_code == 404
    assert it.call("only-send", "POST", f"{T}2/commit", json={}).json()["messages"] == 1
