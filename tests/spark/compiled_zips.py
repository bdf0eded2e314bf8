"""Puts compiled modules into the zips from which Spark's Python workers import PySpark.

Called as `python -m tests.spark.compiled_zips`. The zips hold sources alone, and Python can't keep beside a zip what it
has compiled: each worker, hundreds of them in the tests, would compile PySpark for half a second. A Python of another
version takes the sources, as before.
"""

from __future__ import annotations

import os
import pkgutil
import shutil
import sys
import zipfile
from importlib import import_module
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

import pyspark
import pyspark.sql.worker

WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner")
UNCHECKED = (1).to_bytes(4, "little")
"""The flags of a compiled module that holds a hash of its source which nobody compares (PEP 552)."""


def compiled_modules() -> dict[str, bytes]:
    """Import what workers start with; return all modules that came of it, by their names in a zip."""
    of_sql = pkgutil.iter_modules(pyspark.sql.worker.__path__, "pyspark.sql.worker.")
    for name in (*WORKERS, *(module.name for module in of_sql)):
        import_module(name)
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in ("pyspark", "py4j") and file is not None and Path(file).suffix == ".py":
            place = name.replace(".", "/") + ("/__init__.pyc" if Path(file).stem == "__init__" else ".pyc")
            code = Path(cache_from_source(file)).read_bytes()[16:]
            found[place] = MAGIC_NUMBER + UNCHECKED + source_hash(Path(file).read_bytes()) + code
    return found


def main() -> None:
    """Add them to copies, which then take the places of the zips."""
    modules = compiled_modules()
    for path in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"):
        beside = path.with_suffix(".part")
        shutil.copy(path, beside)
        with zipfile.ZipFile(beside, "a") as archive:
            there = {*archive.namelist()}
            for place, code in modules.items():
                if place[:-1] in there and place not in there:
                    archive.writestr(place, code)
        os.replace(beside, path)


if __name__ == "__main__":
    main()
