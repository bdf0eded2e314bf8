"""The application as a whole: what every request goes through."""

from __future__ import annotations

import re

import pytest
from starlette.routing import Route

from tests.kit.gateway import MESSAGES, QUEUE, Running

pytestmark = pytest.mark.anyio

LISTED = {"origin": "https://app.example"}


@pytest.mark.parametrize(
    ("verb", "path", "headers", "status", "may_be_read"),
    [
        ("POST", MESSAGES, LISTED, 201, True),
        ("POST", MESSAGES, {"origin": "https://evil.example"}, 403, False),
        ("POST", MESSAGES, {"host": "evil.example", **LISTED}, 421, False),
        ("OPTIONS", MESSAGES, {**LISTED, "access-control-request-method": "POST"}, 204, True),
        ("OPTIONS", "/nothing", {**LISTED, "access-control-request-method": "POST"}, 204, True),
        ("POST", "/v2/p1/queues/a%2Fb/messages", LISTED, 400, True),
        ("POST", "/v2/p1/queues/none/messages", LISTED, 404, True),
        ("POST", "/nothing", LISTED, 404, True),
        ("PUT", MESSAGES, LISTED, 405, True),
        ("PATCH", QUEUE, LISTED, 405, True),
    ],
)
async def test_pages_of_listed_origins_can_read_every_answer_except_that_to_a_wrong_host(
    gateway: Running, verb: str, path: str, headers: dict[str, str], status: int, may_be_read: bool
) -> None:
    reply = await gateway.http.request(verb, path, headers=headers, content=b"x" if verb == "POST" else b"")
    assert reply.status_code == status
    assert ("access-control-allow-origin" in reply.headers) is may_be_read


@pytest.mark.parametrize("path", [QUEUE, MESSAGES, "/v2", "/healthz", "/metrics", "/v2/p1/events"])
async def test_trailing_slash_is_404(gateway: Running, path: str) -> None:
    reply = await gateway.http.get(path + "/")
    assert (reply.status_code, reply.json()["detail"]) == (404, f"there is nothing at '{path}/'")


async def test_options_and_405_list_the_methods_of_each_path(gateway: Running) -> None:
    for route in gateway.server.app.gateway.routes:
        assert isinstance(route, Route)
        path = re.sub(r"\{\w+\}", "x", route.path).replace("/v2/x/queues/x", QUEUE)
        asked, refused = await gateway.http.options(path), await gateway.http.request("PATCH", path)
        assert refused.status_code == 405, path
        assert set(asked.headers["allow"].split(", ")) == set(refused.headers["allow"].split(", ")), path
        assert refused.json()["detail"] == "PATCH is not allowed here"


async def test_internal_error_is_a_problem_that_refers_to_the_log(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("curbstone.gateway.resources.queues.queues.info_of", fails)
    reply = await gateway.http.get(QUEUE)
    assert (reply.status_code, reply.headers["content-type"]) == (500, "application/problem+json")
    assert "its log has more" in reply.json()["detail"]
    assert [record.getMessage() for record in caplog.records] == [f"GET '{QUEUE}' failed"]
