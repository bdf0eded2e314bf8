"""The clients generated from the contract: they are made, their types are checked, and they work."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.guarded_server import GuardedServer, guarded_server
from tests.kit.server import ServerProcess
from tests.sdk.tools import FOLDER, NODE_MODULES, node_tool, run, tool

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both clients, made as `make sdk` does it; the generator's warnings are errors."""
    out = tmp_path_factory.mktemp("sdk")
    node_tool("openapi-typescript")
    run(tool("python"), FOLDER / "generate.py", out, cwd=out)
    return out


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    grants = '["send,receive,peek,manage sdk/*", "send,receive topic:sdk/*"]'
    with guarded_server(tmp_path_factory.mktemp("guarded"), f"[users.sdk]\ngrants = {grants}\n") as it:
        yield it


def test_the_python_client_works_and_logs_in(sdk: Path, guarded: GuardedServer) -> None:
    folder = sdk / "python"
    shutil.copy(HERE / "roundtrip.py", folder)
    run(tool("mypy"), "--strict", "curbstone_http", "roundtrip.py", cwd=folder)
    assert run(tool("python"), "roundtrip.py", guarded.server.url, guarded.secrets["sdk"], cwd=folder) == "done\n"


def test_python_client_example_runs(sdk: Path, server: ServerProcess) -> None:
    folder = sdk / "python"
    (example,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (folder / "example.py").write_text(example.replace("http://localhost:8080", server.url), encoding="utf-8")
    said = run(tool("python"), "example.py", cwd=folder).splitlines()
    assert [said[0].split()[0], *said[1:]] == ["201", '{"total": 12} 0', "404 no such queue: shop/none"]


def test_typescript_client_can_be_installed_as_built(sdk: Path, server: ServerProcess, tmp_path: Path) -> None:
    """The package's `main` did not exist until its user had compiled it."""
    [packed] = json.loads(
        run("npm", "pack", "--json", "--silent", "--pack-destination", tmp_path, sdk / "typescript", cwd=tmp_path)
    )
    modules = tmp_path / "node_modules"
    modules.mkdir()
    shutil.unpack_archive(tmp_path / packed["filename"], tmp_path)
    (tmp_path / "package").rename(modules / "curbstone-http")
    (modules / "openapi-fetch").symlink_to(NODE_MODULES / "openapi-fetch")
    (modules / "openapi-typescript-helpers").symlink_to(NODE_MODULES / "openapi-typescript-helpers")
    readme = (modules / "curbstone-http" / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```ts\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "example.mts").write_text(example.replace("http://localhost:8080", server.url), encoding="utf-8")
    options = ("--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom,dom.iterable")
    run(node_tool("tsc"), *options, "example.mts", cwd=tmp_path)
    said = run("node", "example.mjs", cwd=tmp_path).splitlines()
    assert [said[0].split()[0], *said[1:]] == ["201", '{"total":12} 0', "404 no such queue: shop/none"]


def test_the_typescript_client_works_and_logs_in(sdk: Path, guarded: GuardedServer) -> None:
    folder = sdk / "typescript"
    (folder / "node_modules").symlink_to(NODE_MODULES)
    shutil.copy(HERE / "roundtrip.ts", folder)
    run(node_tool("tsc"), cwd=folder)
    assert run("node", "roundtrip.js", guarded.server.url, guarded.secrets["sdk"], cwd=folder) == "done\n"


def test_each_operation_has_its_function_in_both_clients(sdk: Path) -> None:
    functions = {path.stem for path in (sdk / "python" / "curbstone_http" / "api").glob("*/*.py")} - {"__init__"}
    schema = (sdk / "typescript" / "schema.d.ts").read_text(encoding="utf-8")
    assert len(functions) == schema.count("operations[")
    for name in functions:
        words = name.split("_")
        operation = words[0] + "".join(word.title() for word in words[1:])
        assert f"    {operation}: {{" in schema, operation
