"""The contracts, held against the routes of the server in both directions, and the documents it serves of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from starlette.routing import Route

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.access.reloading import Reloads
from curbstone.core.errors import BadRequest
from curbstone.core.host import AsyncioHost
from curbstone.core.names import event_name
from curbstone.core.options import QueueOptions
from curbstone.core.values import Capability
from curbstone.gateway.http.resource import Verbs
from curbstone.gateway.resources.metrics.figures import Process
from curbstone.gateway.resources.server.standby import NoFollowers
from curbstone.gateway.server import GatewayServer
from curbstone.gateway.settings import GatewaySettings
from curbstone.net.acceptor import Acceptor
from curbstone.openapi.contract import ASYNCAPI, OPENAPI, text_of
from curbstone.serve import _listeners
from curbstone.settings import Settings
from tests.kit.contract import CONTRACT, SOCKETS, operations
from tests.kit.gateway import Running, running


@pytest.fixture
async def gateway(anyio_backend: object, tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data", GatewaySettings(), QueueOptions()) as it:
        yield it


def verbs_of(resource: Verbs) -> set[str]:
    """Return the verbs with a meaning of their own: every path has HEAD for GET, and OPTIONS for its verbs."""
    verbs = set(resource.allow.split(", ")) - {"HEAD", "OPTIONS"}
    return verbs | ({"OPTIONS"} if resource.has_own_options else set())


@pytest.mark.anyio
async def test_contract_and_routes_match(gateway: Running) -> None:
    """The routes are those of the server as it is put together: the gateway's own, and what is added to them."""
    host = gateway.broker.host
    assert isinstance(host, AsyncioHost)
    (server,) = [
        each.server
        for each in _listeners(
            *(gateway.broker, OpenAuthenticator(gateway.broker, host), host, Settings(), Acceptor(), Reloads()),
            *(Process(), None, NoFollowers("no")),
        )
        if each.name == "http"
    ]
    assert isinstance(server, GatewayServer)
    routes = server.app.gateway.routes
    served = set()
    for route in routes:
        assert isinstance(route, Route) and isinstance(route.endpoint, Verbs)
        served |= {(route.path, verb) for verb in verbs_of(route.endpoint)}
    assert served == {(path, verb) for path, verb, _ in operations()}


def test_every_operation_has_a_unique_name_a_summary_and_a_tag() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in CONTRACT["tags"]}
    for _, _, operation in operations():
        assert operation["summary"]
        assert set(operation["tags"]) <= tags


def test_the_parameters_in_a_path_are_described() -> None:
    for path, item in CONTRACT["paths"].items():
        named = {resolved(CONTRACT, each)["name"] for each in item.get("parameters", ())}
        assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}, path


@pytest.mark.parametrize("parameter", ["Event", "OneEvent"])
def test_event_names_may_contain_the_characters_that_the_server_accepts(parameter: str) -> None:
    pattern = re.compile(CONTRACT["components"]["parameters"][parameter]["schema"]["pattern"])
    for character in map(chr, range(0x3100)):
        try:
            accepted = event_name(f"a{character}b")
        except BadRequest:
            accepted = ""
        assert bool(pattern.search(f"a{character}b")) == bool(accepted), f"U+{ord(character):04X}"


def test_every_error_is_a_problem_with_json() -> None:
    for path, verb, operation in operations():
        for status, answer in operation["responses"].items():
            if path.startswith(("/v2/", "/mq/")) and int(status) >= 400:
                content = resolved(CONTRACT, answer)["content"]
                assert list(content) == ["application/problem+json"], f"{verb} {path} {status}"


def test_operations_with_a_body_document_413_and_408() -> None:
    for path, verb, operation in operations():
        if "requestBody" in operation:
            assert {"408", "413"} <= set(operation["responses"]), f"{verb} {path}"


@pytest.mark.parametrize("contract", [CONTRACT, SOCKETS], ids=[OPENAPI, ASYNCAPI])
def test_references_resolve_and_components_are_used(contract: dict[str, Any]) -> None:
    used = set()
    for node in nodes(contract):
        if "$ref" in node:
            assert resolved(contract, node)
            used.add(node["$ref"])
    used |= {f"#/components/securitySchemes/{name}" for way in contract.get("security", ()) for name in way}
    for kind, members in contract["components"].items():
        for name in members:
            assert f"#/components/{kind}/{name}" in used, f"{kind} {name} is not used"


def test_links_name_operations_and_fill_their_paths() -> None:
    paths = {operation["operationId"]: path for path, _, operation in operations()}
    found = set()
    for path, _, operation in operations():
        for answer in operation["responses"].values():
            for link in answer.get("links", {}).values():
                target = link["operationId"]
                wanted = set(re.findall(r"{(\w+)}", paths[target]))
                given = link.get("parameters", {})
                assert wanted <= given.keys(), (operation["operationId"], target)
                of_request = {text.rpartition(".")[2] for text in given.values() if text.startswith("$request.path.")}
                assert of_request <= set(re.findall(r"{(\w+)}", path)), (operation["operationId"], target)
                found.add((operation["operationId"], target))
    assert {("publishMessage", "getMessage"), ("leaseMessages", "ackLeases")} <= found


def test_the_sockets_in_the_contract_are_those_of_the_server() -> None:
    addresses = {channel["address"] for channel in SOCKETS["channels"].values()}
    assert addresses == {
        "/v2/{project}/queues/{queue}/messages",
        "/v2/{project}/events/{event}/messages",
        "/v2/{project}/queues",
        "{destination}",
    }
    protocols = {
        channel["bindings"]["ws"]["headers"]["properties"]["Sec-WebSocket-Protocol"]["const"]
        for channel in SOCKETS["channels"].values()
        if "bindings" in channel
    }
    assert protocols == {"publish", "consume", "queues"}


@pytest.mark.anyio
@pytest.mark.parametrize("name", [OPENAPI, ASYNCAPI])
async def test_the_server_serves_the_files(gateway: Running, name: str) -> None:
    reply = await gateway.http.get(f"/{name}")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/yaml"
    assert reply.content == text_of(name)


@pytest.mark.anyio
async def test_json_contract_equals_the_yaml_contract(gateway: Running) -> None:
    reply = await gateway.http.get("/openapi.json")
    assert reply.headers["content-type"] == "application/json"
    assert orjson.loads(reply.content) == yaml.safe_load(text_of(OPENAPI))


@pytest.mark.anyio
async def test_docs_page_is_self_contained(gateway: Running) -> None:
    reply = await gateway.http.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"].startswith("default-src 'self'; ")
    places = re.findall(r'(?:src|href|spec-url)="([^"]+)"', reply.text)
    assert {"openapi.yaml", "docs/docs.js"} <= set(places)
    for place in places:
        if place != "data:,":
            assert (await gateway.http.get(f"/{place}")).status_code == 200
    assert (await gateway.http.get("/docs/none.js")).status_code == 404


@pytest.mark.anyio
async def test_docs_script_is_the_vendored_one(gateway: Running) -> None:
    said = (files("curbstone.gateway") / "docs" / "rapidoc.txt").read_text(encoding="utf-8")
    for accepted in ("gzip", "identity"):
        reply = await gateway.http.get("/docs/rapidoc-min.js", headers={"accept-encoding": accepted})
        assert reply.headers.get("content-encoding", "identity") == accepted
        assert hashlib.sha256(reply.content).hexdigest() in said


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def resolved(contract: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        target: Any = contract
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        node = target
    return node


@pytest.mark.parametrize("document", [CONTRACT, SOCKETS], ids=["openapi", "asyncapi"])
def test_no_text_was_cut_into_keys_by_a_comma(document: Any) -> None:
    """`{type: integer, description: In ms, since 1970.}` has a key `since 1970.` with nothing behind it."""

    def keys_of_nothing(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from [str(key) for key, inside in value.items() if inside is None]
        for inside in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from keys_of_nothing(inside)

    assert list(keys_of_nothing(document)) == []


def test_every_part_that_an_engine_may_lack_is_named() -> None:
    named = CONTRACT["components"]["schemas"]["Engine"]["properties"]["capabilities"]["items"]["enum"]
    assert named == sorted(capability.value for capability in Capability)
