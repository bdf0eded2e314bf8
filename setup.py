"""The compiled build: with CURBSTONE_COMPILED=1, mypyc compiles the modules that every message passes through to C.

On Linux it also has `core/disk_threads.c`, which writes and syncs without the interpreter. The sources are the same;
without the variable, the wheel has only the sources. `make compiled` sets the variable. All other metadata of the
package are in pyproject.toml. See docs/install.md.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

for name in ("core", "gateway", "openapi", "stomp"):
    if not Path("curbstone", name).is_dir():
        raise SystemExit(
            f"curbstone/{name} is no link to {name}/: git checked this tree out without symbolic links. "
            "Set `git config core.symlinks true` and check it out again (on Windows, turn on developer mode first)."
        )

COMPILED = {
    "core": "message orders stats traffic values write_behind",
    "core/admin": "queue",
    "core/engine": "broker fault_barrier parts queue state syncer turns write_queue",
    "core/engine/commit": "batch meta_writer producer_sequences publishes records unique_names writer",
    "core/engine/compaction": "cleaner relocate retention",
    "core/engine/delivery": "acks consumer dispatch leases limits",
    "core/engine/facts": "facts",
    "core/engine/index": "backlogs buckets copies due dynamic_groups group index keys level reader runs tracked",
    "core/engine/log": "commit format log room",
    "core/transactions": "two_phase tx_log",
    "core/wal": "redo_format replay sync_group",
    "stomp": "acks codec frames header_values liveness send server session session_state subscribe subscription",
}
"""The compiled modules, by folder: those that a message passes through, and some that depend on them too closely.

tests/repo/test_compiled.py says which modules that a message passes through are left out, and why.
"""

DISK_THREADS = Extension(
    "curbstone.core.disk_threads",
    ["curbstone/core/disk_threads.c"],
    py_limited_api=True,
    extra_compile_args=["-O2", "-pthread"],
    extra_link_args=["-pthread"],
)


def extensions() -> list[Extension]:
    """Return the extensions to compile. Modules of Python share one library, so that they call each other directly."""
    if os.environ.get("CURBSTONE_COMPILED") != "1":
        return []
    from mypyc.build import mypycify

    files = [f"curbstone/{folder}/{name}.py" for folder, names in COMPILED.items() for name in names.split()]
    compiled = mypycify(files, opt_level="1", debug_level="0", multi_file=True, group_name="curbstone")
    return [*compiled, DISK_THREADS] if sys.platform == "linux" else compiled


if __name__ == "__main__":
    setup(ext_modules=extensions())
