"""curl, with the very commands of Narconi's document; only the port is ours."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from tests.kit.server import ServerProcess

ENSURE = "curl -i -X PUT http://localhost:8080/v2/myproject/queues/myqueue"
PUBLISH = 'curl -i -X POST --data "Hello, world" http://localhost:8080/v2/myproject/queues/myqueue/messages '
CONSUME = "curl -i -X DELETE http://localhost:8080/v2/myproject/queues/myqueue/messages"
DELETE = "curl -i -X DELETE http://localhost:8080/v2/myproject/queues/myqueue"


class Reply:
    """What curl -i printed."""

    def __init__(self, output: bytes) -> None:
        head, _, self.body = output.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status_line.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def curl(server: ServerProcess, command: str) -> Reply:
    command = command.replace("http://localhost:8080", f"http://localhost:{server.http[1]}")
    words = shlex.split(command)
    done = subprocess.run([words[0], "-s", "--noproxy", "*", *words[1:]], capture_output=True, check=True, timeout=60)
    return Reply(done.stdout)


def test_documented_commands_work(server: ServerProcess) -> None:
    for _ in range(2):
        created = curl(server, ENSURE)
        assert (created.status, created.body) == (201, b"")
    published = curl(server, PUBLISH)
    assert (published.status, published.body) == (201, b"")
    got = curl(server, CONSUME)
    assert (got.status, got.body) == (200, b"Hello, world")
    assert got.headers["content-type"] == "application/x-www-form-urlencoded"
    assert got.headers["x-msg-redelivered"] == "false"
    assert re.fullmatch(r"\d{13}", got.headers["x-msg-timestamp"])
    assert got.headers["x-msg-id"] == published.headers["x-msg-id"]
    empty = curl(server, CONSUME)
    assert (empty.status, empty.body) == (204, b"")
    assert curl(server, DELETE).status == 204
    missing = curl(server, CONSUME)
    assert missing.status == 404
    assert b'"message":"no such queue: myproject/myqueue"' in missing.body


def test_metadata_and_types_round_trip_through_curl(server: ServerProcess) -> None:
    curl(server, ENSURE)
    headers = '-H "Content-Type: text/plain" -H "x-msg-x-name1: foo" -H "x-msg-x-name2: bar"'
    assert curl(server, f"{PUBLISH} {headers}").status == 201
    got = curl(server, CONSUME)
    assert got.headers["content-type"] == "text/plain"
    assert (got.headers["x-msg-x-name1"], got.headers["x-msg-x-name2"]) == ("foo", "bar")


def test_queue_has_its_websocket_url(server: ServerProcess) -> None:
    curl(server, ENSURE)
    found = curl(server, "curl -i -X OPTIONS http://localhost:8080/v2/myproject/queues/myqueue")
    assert found.status == 200
    assert found.headers["location"] == f"ws://localhost:{server.http[1]}/v2/myproject/queues/myqueue"


@pytest.mark.parametrize("how", ["-H 'Transfer-Encoding: chunked'", "-H 'Expect: 100-continue'", "--http1.0", ""])
def test_all_curl_upload_forms_work(server: ServerProcess, how: str) -> None:
    curl(server, ENSURE)
    body = "x" * 100_000
    words = shlex.split(f"curl -s --noproxy * -o /dev/null -w %{{http_code}} -X POST {how} --data-binary @-")
    url = f"{server.url}/v2/myproject/queues/myqueue/messages"
    done = subprocess.run([*words, url], input=body, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "201"
    assert curl(server, CONSUME).body == body.encode()


def test_event_stream_is_unbuffered(server: ServerProcess) -> None:
    """curl -N shows an event stream as it comes; it continues until curl is ended."""
    curl(server, ENSURE)
    curl(server, PUBLISH)
    url = f"{server.url}/v2/myproject/queues/myqueue/messages"
    words = ["curl", "-sN", "--noproxy", "*", "-H", "Accept: text/event-stream", url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        ack_id = next(line for line in lines if line.startswith("id: ")).removeprefix("id: ").strip()
        assert '"message":"Hello, world"' in next(lines)
        settled = curl(
            server,
            f'curl -i {url}/ack --data \'{{"ackIds":["{ack_id}"]}}\''.replace(server.url, "http://localhost:8080"),
        )
        assert settled.body == b'{"settled":1,"stale":[]}'
        process.terminate()
