"""The application as a whole: what every request goes through, and that the short way to hot paths is only shorter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import Route

from curbstone.core.options import QueueOptions
from curbstone.gateway.http.hot_paths import HotPaths
from curbstone.gateway.settings import GatewaySettings
from tests.gateway.running import MESSAGES, QUEUE, Running, running

pytestmark = pytest.mark.anyio

LISTED = {"origin": "https://app.example"}
REQUESTS = {
    "a good one": ("POST", MESSAGES, {}),
    "a good one of a listed page": ("POST", MESSAGES, LISTED),
    "one of a page that is not listed": ("POST", MESSAGES, {"origin": "https://evil.example"}),
    "one for another host": ("POST", MESSAGES, {"host": "evil.example"}),
    "one for another host, of a listed page": ("POST", MESSAGES, {"host": "evil.example", **LISTED}),
    "a slash in a name": ("POST", "/v2/p1/queues/a%2Fb/messages", LISTED),
    "a queue that is not there": ("POST", "/v2/p1/queues/none/messages", LISTED),
    "a name that is none": ("POST", "/v2/p1/queues/a%20b/messages", {}),
    "a wrong verb": ("PUT", MESSAGES, LISTED),
    "HEAD": ("HEAD", MESSAGES, {}),
    "OPTIONS": ("OPTIONS", MESSAGES, {}),
    "a preflight": ("OPTIONS", MESSAGES, {**LISTED, "access-control-request-method": "POST"}),
    "a trailing slash": ("POST", MESSAGES + "/", {}),
    "a bad body": ("POST", MESSAGES + "/lease", {}),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_short_way_to_a_hot_path_answers_as_the_long_one_does(tmp_path: Path, name: str) -> None:
    verb, path, headers = REQUESTS[name]
    settings = GatewaySettings(cors_origins=("https://app.example",))
    answers = []
    async with running(tmp_path / "data", settings, QueueOptions()) as it:
        for hot in (it.server._app._hot, HotPaths([])):
            it.server._app._hot = hot
            reply = await it.http.request(verb, path, headers=headers, content=b"x" if verb == "POST" else b"")
            fields = {key: value for key, value in reply.headers.items() if key not in ("date", "x-msg-id")}
            answers.append((reply.status_code, fields, reply.content))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("path", [QUEUE, MESSAGES, "/v2", "/healthz", "/metrics", "/v2/p1/events"])
async def test_a_trailing_slash_leads_nowhere_and_to_no_other_path(gateway: Running, path: str) -> None:
    reply = await gateway.http.get(path + "/")
    assert (reply.status_code, reply.json()["detail"]) == (404, f"there is nothing at '{path}/'")


async def test_each_path_names_its_verbs_when_it_is_asked_and_when_the_verb_is_wrong(gateway: Running) -> None:
    for route in gateway.server._app.routes:
        assert isinstance(route, Route)
        path = re.sub(r"\{\w+\}", "x", route.path).replace("/v2/x/queues/x", QUEUE)
        asked, refused = await gateway.http.options(path), await gateway.http.request("PATCH", path)
        assert refused.status_code == 405, path
        assert set(asked.headers["allow"].split(", ")) == set(refused.headers["allow"].split(", ")), path
        assert refused.json()["detail"] == "PATCH is not allowed here"


async def test_an_error_of_the_server_is_a_problem_that_says_where_to_look(
    gateway: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("curbstone.gateway.resources.queues.info_of", fails)
    reply = await gateway.http.get(QUEUE)
    assert (reply.status_code, reply.headers["content-type"]) == (500, "application/problem+json")
    assert "its log has more" in reply.json()["detail"]
    assert [record.getMessage() for record in caplog.records] == [f"GET '{QUEUE}' failed"]
