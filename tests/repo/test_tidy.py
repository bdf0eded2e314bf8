"""Rules of the source tree: allowed imports, where I/O and clocks may be used, what is packaged, and sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from setuptools import find_namespace_packages

from tests.kit.server import clean_environment

ROOT = Path(__file__).resolve().parents[2]
Rule = Callable[[Path], None]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]

# Imports point inward: an adapter imports the engine, itself, and what connections have in common; the engine and
# net import only themselves. curbstone/ assembles the server and may import everything.
MAY_IMPORT: dict[str, set[str]] = {
    "access": {"core", "http_client", "net"},
    "core": set(),
    "gateway": {"access", "core", "net", "openapi", "spark"},  # the last for pages in Arrow
    "mqks": {"access", "core", "net"},
    "net": set(),
    "openapi": set(),
    "rabbit": {"core"},
    "spark": {"core", "http_client"},
    "stomp": {"access", "core", "net"},
}

# The folders inside a folder, lowest first: each imports from those below it, from those in its own line, and from the
# folder itself, except what puts the parts together; of that they may import types.
LAYERS: dict[str, tuple[str, ...]] = {
    "core": ("engine", "wal events", "transactions", "reader admin", "staging", "snapshots"),
    "core/engine": ("log", "facts", "index", "delivery", "compaction", "commit", "recovery"),
    "curbstone": ("process", "repair", "drill", "backup", "standby", "tracing", "cli"),
    "gateway": ("http", "formats", "websocket", "resources"),
    "gateway/resources": ("queues messages", "reading metrics server"),
    "rabbit": ("amqp", "shared", "publishing", "consuming"),
}
ABOVE_THE_LAYERS = {
    "core": set[str](),
    "core/engine": {"broker", "queue"},
    "curbstone": {"serve"},
    "gateway/resources": set[str](),
    "gateway": {"app", "asgi", "asgi_socket", "connection", "cycle", "handover", "routes", "server"},
    "rabbit": {"engine", "queue", "transaction"},
}
MAY_IMPORT_UPWARD = {
    "curbstone/cli/serve.py": {"serve"},  # within the function, so that other commands do not load the server
}
# The engine proper imports nothing of the optional parts around it; this list may only get shorter.
OPTIONAL = {"admin", "events", "reader", "snapshots", "staging", "transactions", "wal"}
IMPORTS_OPTIONAL = {
    "core/engine/broker.py": {"admin", "events", "staging", "transactions", "wal"},  # the composition root
}
# Files of the contract that import the engine.
CONTRACT_IMPORTS_ENGINE = {"core/frames.py"}

# Names with an underscore that are public all the same, or that other packages offer no alternative for.
OPEN_PRIVATES = {
    *("_replace", "_asdict", "_fields", "_make", "_exit", "_jvm", "_jsparkSession", "_Hash", "_Decompress"),
}

# What adapters may import of core: the port of an engine, the values that go through it, and the host.
PORT = {
    *("batches", "errors", "filters", "frames", "headers", "holders", "host", "masks", "message", "names", "options"),
    *("orders", "port", "port_reading", "port_staging", "positions", "schemas", "stats", "traffic", "values"),
}
MORE_OF_CORE = {
    **dict.fromkeys(["access/tokens.py", "access/user_authenticator.py"], {"disk"}),  # where the tokens are stored
}
ADAPTERS = {"access", "gateway", "mqks", "net", "rabbit", "stomp"}

# Only these files may use sockets, clocks, threads, random numbers and files; all others get them as arguments.
ENVIRONMENT_MODULES = {
    *("asyncio", "concurrent", "fcntl", "multiprocessing", "os", "random", "sched", "select", "selectors"),
    *("shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time"),
}
USES_ENVIRONMENT = {
    "access/files.py",
    "core/disk.py",
    "core/host.py",
    "core/lasting_file.py",
    "core/write_behind.py",
    "curbstone/schema_process.py",
    "gateway/asgi.py",
    "gateway/asgi_socket.py",
    "gateway/connection.py",
    "gateway/server.py",
    "gateway/http/callbacks.py",
    "gateway/http/client_disconnect.py",
    "gateway/http/long_poll.py",
    "gateway/http/answer_budget.py",
    "net/certificates.py",
    "net/connection_set.py",
    "net/acceptor.py",
    "net/tcp.py",
    "net/tls.py",
    "rabbit/amqp/connection.py",
    "rabbit/amqp/io_services.py",
    "rabbit/amqp/socket_filter.py",
}
# Everything that a server keeps in its data directory goes through `core.disk.Disk`, so that a standby receives all of
# it. Only these files change files in another way; the folders are those of commands, which run without a server.
CHANGE_FILES = {
    "access/files.py",  # the users file that `access init` makes, and the audit, which belongs to one server
    "core/disk.py",
    "curbstone/backup/receive.py",  # on the machine that asks for a backup
    "curbstone/backup/restore.py",
    "curbstone/backup/source.py",  # second names of files, while a backup is sent
    "curbstone/standby/restoring.py",  # of a history to a new directory
    "net/tcp.py",  # which writes to its sockets
}
COMMANDS = ("curbstone/cli/", "curbstone/drill/", "curbstone/repair/", "spark/")
PATH_CHANGES = {"hardlink_to", "mkdir", "rmdir", "symlink_to", "unlink", "write_bytes", "write_text"}
OS_CHANGES = {
    *("ftruncate", "link", "makedirs", "mkdir", "mkfifo", "pwrite", "pwritev", "remove", "removedirs", "rename"),
    *("renames", "replace", "rmdir", "symlink", "truncate", "unlink", "write", "writev"),
}
# Not part of the server: it runs in Spark's processes, and no simulator runs it.
CLIENTS = {"spark"}
# Only these may use the packages of an extra.
EXTRAS = {
    "rabbit": ("cluster",),
    "spark": ("spark", "sql"),
    "access/jwt_verifier.py": ("oidc",),
    "curbstone/dlt.py": ("dlt",),
    "spark/iceberg_table.py": ("iceberg",),
    "curbstone/standby/object_lease.py": ("objects",),
    "curbstone/standby/object_parts.py": ("objects",),
    "curbstone/standby/object_stores.py": ("objects",),
    "gateway/formats/arrow_stream.py": ("sql",),
    **dict.fromkeys([f"curbstone/tracing/{name}.py" for name in ("engine", "export", "queue", "spans")], ("otel",)),
    **dict.fromkeys(["curbstone/cli/push.py", "curbstone/cli/webhook.py"], ("client",)),
}
# The Python client, a distribution of its own: two shells around a core without sockets, threads or clocks.
CLIENT_SHELLS = {"aio", "sync"}
CLIENT_EXTRAS = {"celery": {"kombu"}, "dramatiq": {"dramatiq"}, "taskiq": {"taskiq"}, "testing": {"pytest"}}
CLIENT_CORE_LACKS = {"asyncio", "select", "selectors", "signal", "socket", "threading", "time"}
# They format a given time and read no clock.
HARMLESS = {"time.gmtime", "time.strftime"}

# Projects whose import has another name.
IMPORTED_AS = {"PyJWT": "jwt", "argon2-cffi": "argon2", "opentelemetry-sdk": "opentelemetry", "pyyaml": "yaml"}

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
ENGINE_FILE_LINES_MAX = 700
"""A file of the engine holds one idea whole, such as the write queue, so that it can be read from top to bottom."""

FOLDERS = sorted(MAY_IMPORT)
AT_THE_TOP = ("core", "gateway", "openapi", "stomp")
SOURCES = sorted(path for folder in ("curbstone", *AT_THE_TOP) for path in (ROOT / folder).rglob("*.py"))
TOP_MODULES = sorted(ROOT.glob("*.py"))
BESIDE = [path for folder in ("bench", "client", "tests") for path in (ROOT / folder).rglob("*.py")]
ALL_PYTHON = sorted({*SOURCES, *TOP_MODULES, *BESIDE})


@cache
def relative(path: Path) -> str:
    """Return where a file is, as core/disk.py; of a folder in curbstone/ with rules of its own, as net/tcp.py."""
    inside = path.relative_to(ROOT).as_posix().removeprefix("curbstone/")
    return inside if inside.partition("/")[0] in FOLDERS else path.relative_to(ROOT).as_posix()


def held_by(paths: Iterable[Path]) -> Callable[[Rule], Callable[[], None]]:
    """Make a test of a rule for each of these files; it reports all that break the rule.

    A test for each file and rule would take longer to collect, in each worker, than to run.
    """
    files = list(paths)

    def decorate(rule: Rule) -> Callable[[], None]:
        @wraps(rule)
        def test() -> None:
            broken: list[str] = []
            for path in files:
                try:
                    rule(path)
                except AssertionError as error:
                    broken.append(f"{relative(path)}: {error}")
            assert not broken, "\n".join(broken)
            assert files, "nothing was looked at"

        del test.__wrapped__  # pytest would take its parameter for a fixture
        return test

    return decorate


class Facts(NamedTuple):
    """What the rules need of a file, parsed once."""

    lines: int
    has_docstring: bool
    imports: tuple[str, ...]
    run_time_imports: tuple[str, ...]
    """Without those under `if TYPE_CHECKING`."""
    functions: tuple[tuple[str, int], ...]
    """Names and lines."""
    reaches: tuple[str, ...]
    """Where it uses a private name that it has not made."""
    bases: tuple[str, ...]
    """What its classes extend, as it is written."""


@cache
def facts(path: Path) -> Facts:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, str(path))
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Facts(
        len(text.splitlines()),
        bool(ast.get_docstring(tree)),
        tuple(imports_of(nodes)),
        tuple(imports_of(run_time_nodes(tree))),
        tuple((node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions),
        tuple(reaches_of(nodes)),
        tuple(ast.unparse(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases),
    )


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a tree without those under `if TYPE_CHECKING`."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            inside = (ast.stmt, ast.excepthandler, ast.match_case)
            left += [child for child in ast.iter_child_nodes(node) if isinstance(child, inside)]


def imported(path: Path) -> tuple[str, ...]:
    """Return the full name of everything imported; `from curbstone.core import names` is curbstone.core.names."""
    return facts(path).imports


def imports_of(nodes: Iterable[ast.AST]) -> list[str]:
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write the import with its full name"
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return names


def files_imported(path: Path) -> set[str]:
    """Return the files that one of ours imports at run time, as in `core/engine/queue.py`."""
    found = set()
    for name in facts(path).run_time_imports:
        parts = name.split(".")
        if parts[0] == "curbstone":
            folder = parts[1:] if len(parts) > 1 and parts[1] in FOLDERS else parts
            found |= {"/".join(folder) + ".py", "/".join(folder[:-1]) + ".py"}
    return found & {relative(source) for source in SOURCES}


@cache
def declared_dependencies(folder: str, file: str) -> set[str]:
    """Return the import names of the run-time dependencies, with those of the extras that a folder or file is in."""
    extras = PROJECT["project"]["optional-dependencies"]
    more = [line for extra in EXTRAS.get(file) or EXTRAS.get(folder, ()) for line in extras[extra]]
    names = (re.match(r"[\w.-]+", line) for line in [*PROJECT["project"]["dependencies"], *more])
    return {IMPORTED_AS.get(name[0], name[0].replace("-", "_")) for name in names if name}


@held_by(SOURCES)
def test_imports_point_inward(path: Path) -> None:
    folder = relative(path).partition("/")[0]
    for name in imported(path):
        top, _, rest = name.partition(".")
        assert top not in FOLDERS, f"write curbstone.{name}"
        if top == "curbstone":
            other = rest.partition(".")[0]
            assert folder == "curbstone" or other in {folder, *MAY_IMPORT[folder]}, f"{folder} may not import {name}"
        elif top not in sys.stdlib_module_names:
            assert folder != "core", f"core may not import {name}: the engine needs the standard library only"
            assert top in declared_dependencies(folder, relative(path)), (
                f"{top} is not among the dependencies in pyproject.toml"
            )


@held_by(p for p in SOURCES if relative(p.parent).rpartition("/")[0] in LAYERS)
def test_folders_import_from_those_below_them(path: Path) -> None:
    folder, _, part = relative(path.parent).rpartition("/")
    layers = [layer.split() for layer in LAYERS[folder]]
    rank = next(rank for rank, layer in enumerate(layers) if part in layer)
    higher = {name for layer in layers[rank + 1 :] for name in layer}
    may = MAY_IMPORT_UPWARD.get(relative(path), set()) | IMPORTS_OPTIONAL.get(relative(path), set())
    package = f"curbstone.{folder.replace('/', '.')}.".replace("curbstone.curbstone.", "curbstone.")
    for name in imported(path):
        inside = name.removeprefix(package)
        forbidden = higher | ABOVE_THE_LAYERS[folder] if name in facts(path).run_time_imports else higher
        assert inside == name or inside.partition(".")[0] not in forbidden - may, (
            f"{folder}/{part} may not import {name}"
        )


def test_the_engine_imports_no_optional_part() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        if relative(path).startswith("core/engine/"):
            parts = {name.split(".")[2] for name in imported(path) if name.startswith("curbstone.core.")} & OPTIONAL
            if parts:
                found[relative(path)] = parts
    assert found == IMPORTS_OPTIONAL


def test_the_contract_imports_no_engine() -> None:
    contract = [path for path in SOURCES if path.parent == ROOT / "core"]
    parts = tuple(f"curbstone.core.{part}." for part in ("engine", *OPTIONAL))
    found = {relative(path) for path in contract if any(name.startswith(parts) for name in imported(path))}
    assert found == CONTRACT_IMPORTS_ENGINE


@pytest.mark.parametrize("folder", sorted({"curbstone", *FOLDERS}))
def test_there_are_no_import_cycles(folder: str) -> None:
    sources = {relative(p): p for p in SOURCES if relative(p).partition("/")[0] == folder}
    left = {name: files_imported(path) & sources.keys() for name, path in sources.items()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in an import cycle, or importing one: {sorted(left)}"


def private_names(nodes: list[ast.AST]) -> set[str]:
    """Return the private names that a file makes itself: of its classes, and of itself."""
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def reaches_of(nodes: list[ast.AST]) -> Iterator[str]:
    mine = private_names(nodes) | OPEN_PRIVATES
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr[0] == "_" and not node.attr.endswith("__"):
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            if not is_own and node.attr not in mine:
                yield f"line {node.lineno}: {ast.unparse(node)}"


@held_by(SOURCES)
def test_no_file_uses_private_names_of_another(path: Path) -> None:
    assert not facts(path).reaches


@held_by(p for p in SOURCES if relative(p).partition("/")[0] in ADAPTERS)
def test_adapters_import_the_port_and_values_only(path: Path) -> None:
    for name in imported(path):
        top, _, rest = name.partition("curbstone.core.")
        may = PORT | MORE_OF_CORE.get(relative(path), set())
        assert top or rest.partition(".")[0] in may, f"{relative(path)} may not import {name}, also not for its type"


@held_by(p for p in SOURCES if relative(p).partition("/")[0] in {"gateway", "mqks", "stomp"})
def test_protocols_reach_queues_through_access_alone(path: Path) -> None:
    """`AuthorizedBroker` requires a right for each queue; with a `Broker`, a protocol could omit the check."""
    assert "curbstone.core.port.Broker" not in {*imported(path)}


@held_by(SOURCES)
def test_only_listed_files_use_the_environment(path: Path) -> None:
    if relative(path) in USES_ENVIRONMENT or relative(path).partition("/")[0] in {"curbstone", *CLIENTS}:
        return
    names = {*facts(path).run_time_imports} - HARMLESS
    found = {name.partition(".")[0] for name in names} & ENVIRONMENT_MODULES
    assert not found, f"{sorted(found)} may be used only in {sorted(USES_ENVIRONMENT)}"


def changes_files(call: ast.Call) -> bool:
    """Return whether a call may change a file or a name, other than through `core.disk.Disk`."""
    text = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    opens = any(set("wax+") & set(mode) and len(mode) <= 3 for mode in text)
    if isinstance(call.func, ast.Name):
        return call.func.id == "open" and opens
    if not isinstance(call.func, ast.Attribute):
        return False
    name, module = call.func.attr, ast.unparse(call.func.value)
    if module == "shutil":
        return True
    if module == "os":
        return name in OS_CHANGES or (name == "open" and "O_RDONLY" not in ast.unparse(call.args[1]))
    if name in {"rename", "replace"}:  # `Disk.rename` and `str.replace` have two arguments
        return len(call.args) == 1 and not call.keywords
    return name in PATH_CHANGES or (name == "open" and opens)


def test_the_data_directory_is_changed_through_the_disk_alone() -> None:
    found = set()
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.Call) and changes_files(node) for node in ast.walk(tree)):
            found.add(relative(path))
    assert {name for name in found if not name.startswith(COMMANDS)} == CHANGE_FILES


@held_by(sorted((ROOT / "client").rglob("*.py")))
def test_the_client_has_no_dependencies_and_its_core_no_sockets(path: Path) -> None:
    tops = {name.partition(".")[0] for name in imported(path)}
    frameworks = CLIENT_EXTRAS.get(path.stem, set())
    assert tops <= {"curbstone_client", *sys.stdlib_module_names, *frameworks}
    if path.stem.partition("_")[0] not in CLIENT_SHELLS and not frameworks:
        assert not tops & CLIENT_CORE_LACKS


@held_by(ALL_PYTHON)
def test_files_and_functions_are_small(path: Path) -> None:
    most = ENGINE_FILE_LINES_MAX if relative(path).startswith("core/engine/") else FILE_LINES_MAX
    assert facts(path).lines <= most
    for name, lines in facts(path).functions:
        assert 0 < lines <= FUNCTION_LINES_MAX, f"{name} has {lines} lines"


@held_by(ALL_PYTHON)
def test_every_file_has_a_docstring(path: Path) -> None:
    assert facts(path).has_docstring, "a module starts with a docstring"


def test_tests_and_bench_import_the_parts_by_their_full_names() -> None:
    for path in ALL_PYTHON:
        # `stomp` alone is stomp.py, the client.
        tops = {name.partition(".")[0] for name in imported(path)} - {"stomp"}
        assert not tops & set(FOLDERS), f"{relative(path)}: write curbstone.…"


def test_modules_at_the_top_ship() -> None:
    assert sorted([*SETUPTOOLS["py-modules"], "setup"]) == [path.stem for path in TOP_MODULES]


def test_every_folder_has_a_layer() -> None:
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "curbstone").iterdir() if path.is_symlink()}
    assert links == {folder: f"../{folder}" for folder in AT_THE_TOP}
    parents = {relative(path.parent) for path in SOURCES}
    folders = {*parents, *(folder.rpartition("/")[0] for folder in parents)} - {"", "curbstone", *FOLDERS}
    assert folders == {f"{folder}/{part}" for folder, layers in LAYERS.items() for part in " ".join(layers).split()}


def test_every_file_ships() -> None:
    packages = find_namespace_packages(str(ROOT), include=SETUPTOOLS["packages"]["find"]["include"])
    shipped = set()
    for package in packages:
        patterns = ["*.py", *SETUPTOOLS["package-data"].get(package, [])]
        directory = ROOT.joinpath(*package.split("."))
        shipped |= {path.resolve() for pattern in patterns for path in directory.glob(pattern)}
    for folder in ("curbstone", *AT_THE_TOP):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.name[0] != ".":
                assert path in shipped, f"{path.relative_to(ROOT)} would not be installed: see package-data"


def test_no_folder_at_the_root_hides_an_installed_package() -> None:
    """With stomp/__init__.py, `import stomp` in a checkout would find our folder instead of stomp.py."""
    assert [relative(path) for path in SOURCES if path.name == "__init__.py"] == ["curbstone/__init__.py"]
    command = [sys.executable, "-c", "import stomp; print(stomp.__file__, stomp.Connection12.__name__)"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    file, name = output.split()
    assert name == "StompConnection12"
    assert ROOT / "stomp" not in Path(file).parents


def test_man_page_and_completions_match_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "ops" / "command_pages.py"), str(tmp_path)]
    subprocess.run(command, check=True, env=clean_environment())
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 4
    for name in made:
        ours = (ROOT / "deploy" / name).read_text(encoding="utf-8")
        assert ours == (tmp_path / name).read_text(encoding="utf-8"), f"{name} is out of date: run `make man`"
