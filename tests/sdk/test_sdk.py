"""The clients generated from the contract: they are made, their types are checked, and they work."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.doors import Doors, doors
from tests.sdk.tools import FOLDER, NODE_MODULES, node_tool, run, tool
from tests.server import ServerProcess

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both clients, made as `make sdk` does it; the generator's warnings are errors."""
    out = tmp_path_factory.mktemp("sdk")
    node_tool("openapi-typescript")
    run(tool("python"), FOLDER / "generate.py", out, cwd=out)
    return out


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    grants = '["send,receive,peek,manage sdk/*", "send,receive topic:sdk/*"]'
    with doors(tmp_path_factory.mktemp("guarded"), f"[users.sdk]\ngrants = {grants}\n") as it:
        yield it


def test_the_python_client_works_and_logs_in(sdk: Path, guarded: Doors) -> None:
    folder = sdk / "python"
    shutil.copy(HERE / "roundtrip.py", folder)
    run(tool("mypy"), "--strict", "curbstone_http", "roundtrip.py", cwd=folder)
    assert run(tool("python"), "roundtrip.py", guarded.server.url, guarded.secrets["sdk"], cwd=folder) == "done\n"


def test_the_example_of_the_python_client_runs_as_it_is_printed(sdk: Path, server: ServerProcess) -> None:
    folder = sdk / "python"
    (example,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (folder / "example.py").write_text(example.replace("http://localhost:8080", server.url), encoding="utf-8")
    said = run(tool("python"), "example.py", cwd=folder).splitlines()
    assert [said[0].split()[0], *said[1:]] == ["201", '{"total": 12} 0', "404 no such queue: shop/none"]


def test_the_typescript_client_works_and_logs_in(sdk: Path, guarded: Doors) -> None:
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
        assert f"    readonly {operation}: {{" in schema, operation
