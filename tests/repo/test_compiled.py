"""The compiled build: which modules are in it, and that they can be compiled.

`make test-compiled` runs the tests of the engine and its protocols on such a build.
"""

from __future__ import annotations

import asyncio
import os
import re
import runpy
from pathlib import Path

import pytest

from curbstone.gateway.resources.metrics.figures import BUILD
from tests.kit.wheel import ROOT
from tests.repo.test_tidy import SOURCES, facts, imported, relative
from tests.stomp.serving import serving
from tests.stomp.test_way import traced

STAY_SOURCE = {
    "core/host.py": "it is where the event loop and the threads come in, and leaves a loop in a `finally`",
}
"""Modules of core and stomp on the way of a message that are not compiled, and why."""


def compiled() -> set[str]:
    """Return the modules that setup.py names, as core/engine/queue.py."""
    said = runpy.run_path(str(ROOT / "setup.py"))["COMPILED"]
    return {f"{folder}/{name}.py" for folder, names in said.items() for name in names.split()}


@pytest.mark.source
def test_message_path_of_engine_and_stomp_is_compiled(tmp_path: Path) -> None:
    async def main() -> set[str]:
        async with serving(tmp_path) as world:
            return {file for trace in await traced(world) for file, _ in trace.calls}

    way = {file for file in asyncio.run(main()) if file.startswith(("core/", "stomp/"))}
    assert len(way) > 30, "nothing was traced"
    assert way - compiled() == {*STAY_SOURCE}


@pytest.mark.skipif("CURBSTONE_REQUIRE_COMPILED" not in os.environ, reason="make test-compiled says so")
def test_the_tests_run_on_the_compiled_build() -> None:
    assert BUILD == "compiled"


def test_compiled_modules_exist() -> None:
    assert [name for name in sorted(compiled()) if not (ROOT / name).is_file()] == []


def test_compiled_attributes_are_no_c_keywords() -> None:
    """mypyc puts a "_" before the name of an attribute, and `__volatile` is a keyword of C compilers."""
    words = (
        "alignof|asm|attribute|complex|const|extension|imag|inline|label|real|restrict|signed|thread|typeof|volatile"
    )
    pattern = re.compile(rf"\bself\._({words})\b")
    found = [name for name in sorted(compiled()) if pattern.search((ROOT / name).read_text(encoding="utf-8"))]
    assert not found


def test_compiled_tuple_fields_have_resolvable_types() -> None:
    """It looks these names of builtins up among the module's own, when the module is imported."""
    pattern = re.compile(r"^    \w+: (bytearray|frozenset|memoryview|range|slice)$", re.M)
    found = [name for name in sorted(compiled()) if pattern.search((ROOT / name).read_text(encoding="utf-8"))]
    assert not found


def test_compiled_code_does_not_index_with_enum_slices() -> None:
    """mypyc takes an index for a number, and a slice object is a TypeError: `Kind.key_of` is not compiled."""
    found = [name for name in sorted(compiled()) if re.search(r"\.key\]", (ROOT / name).read_text(encoding="utf-8"))]
    assert not found


def test_compiled_classes_use_no_weak_references() -> None:
    """Its objects have none: a `WeakValueDictionary` refuses the first of them."""
    wanting = [name for name in sorted(compiled()) if "__weakref__" in (ROOT / name).read_text(encoding="utf-8")]
    assert not wanting


def test_uncompiled_classes_do_not_extend_compiled_ones() -> None:
    """Python refuses that, when the first object is made."""
    modules = compiled()
    closed = {f"curbstone.{name.removesuffix('.py').replace('/', '.')}" for name in modules}
    for path in SOURCES:
        if relative(path) not in modules:
            bases = {base.partition("[")[0] for base in facts(path).bases}
            homes = {home for home, _, name in (full.rpartition(".") for full in imported(path)) if name in bases}
            assert not homes & closed, relative(path)
