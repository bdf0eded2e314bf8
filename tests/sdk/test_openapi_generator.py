"""Clients that the public OpenAPI generators make from the contract with their defaults: they compile, and publish."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.kit.processes import QUICK_JAVA
from tests.kit.server import ServerProcess
from tests.sdk.tools import ROOT, node_tool, run, tool

CONTRACT = ROOT / "openapi" / "openapi.yaml"
LIBRARIES = ("--lib", "es2022,dom,dom.iterable", "--skipLibCheck")
COMPILER = ("--strict", "--target", "es2022", "--module", "nodenext", *LIBRARIES)

PYTHON = """
import sys
from openapi_client import ApiClient, Configuration, LeasesApi, MessagesApi, QueuesApi
from openapi_client.models import AckRequest, LeaseRequest, QueueChanges

api = ApiClient(Configuration(host=sys.argv[1]))
QueuesApi(api).ensure_queue("p", "q", queue_changes=QueueChanges(cap=20 * 1024 * 1024))
MessagesApi(api).publish_message("p", "q", body=b"\\x00\\xff")
MessagesApi(api).publish_message("p", "q", body=b"text", _content_type="text/plain")
leased = LeasesApi(api).lease_messages("p", "q", lease_request=LeaseRequest(count=2, seconds=60)).messages
print([message.message for message in leased])
ack = AckRequest(ackIds=[message.ack_id for message in leased])
print(LeasesApi(api).ack_leases("p", "q", ack_request=ack).settled)
print(QueuesApi(api).get_queue("p", "q").cap)
"""

TYPESCRIPT = """
import { Configuration, LeasesApi, MessagesApi, QueuesApi } from "./index.js";

const configuration = new Configuration({ basePath: (globalThis as any).process.argv[2] });
const at = { project: "p", queue: "q" };
await new QueuesApi(configuration).ensureQueue({ ...at, queueChanges: { cap: 20 * 1024 * 1024 } });
await new MessagesApi(configuration).publishMessage({ ...at, body: new Blob(["text"]) });
const leased = await new LeasesApi(configuration).leaseMessages({ ...at, leaseRequest: { count: 2, seconds: 60 } });
console.log(leased.messages.map((message) => message.message).join());
const ackIds = leased.messages.map((message) => message.ackId);
console.log((await new LeasesApi(configuration).ackLeases({ ...at, ackRequest: { ackIds } })).settled);
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients, each in a folder with the name of its generator; one Java process makes all."""
    if shutil.which("java") is None:
        pytest.skip("openapi-generator needs Java")
    folder = tmp_path_factory.mktemp("generated")
    for name, properties in (("python", {}), ("typescript-fetch", {"importFileExtension": ".js"})):
        settings = {"generatorName": name, "inputSpec": str(CONTRACT), "outputDir": str(folder / name)}
        text = json.dumps(settings | {"additionalProperties": properties})
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    command = (tool("openapi-generator-cli"), "batch", "--threads", "1", "python.json", "typescript-fetch.json")
    run(*command, cwd=folder, JDK_JAVA_OPTIONS=QUICK_JAVA)
    return folder


def test_the_python_client_of_openapi_generator_publishes_bytes(generated: Path, server: ServerProcess) -> None:
    """Bytes were sent as JSON, which they are not, because the contract had a type with "json" in its name, too."""
    (generated / "python" / "example.py").write_text(PYTHON, encoding="utf-8")
    printed = run(tool("python"), "example.py", server.url, cwd=generated / "python")
    assert printed.splitlines() == ["['AP8=', 'text']", "2", "20971520"]


def test_the_typescript_client_of_openapi_generator_compiles_and_publishes(
    generated: Path, server: ServerProcess
) -> None:
    """Its compiler did not find the type `Null`, which was made of `oneOf` with `null`."""
    out = generated / "typescript-fetch"
    (out / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (out / "example.ts").write_text(TYPESCRIPT, encoding="utf-8")
    run(node_tool("tsc"), *COMPILER, "example.ts", cwd=out)
    assert run("node", "example.js", server.url, cwd=out).splitlines() == ["text", "1"]


def test_the_import_name_of_openapi_python_client_is_not_that_of_the_python_client(tmp_path: Path) -> None:
    run(tool("openapi-python-client"), "generate", "--path", CONTRACT, "--output-path", tmp_path / "made", cwd=tmp_path)
    packages = [path.parent.name for path in (tmp_path / "made").glob("*/__init__.py")]
    assert packages == ["curbstone_http_client"]
