"""Fuzzes decoders with Atheris, guided by the branches that an input takes: `python -m tests.fuzz.run [NAME...]`.

Each target starts from its corpus in the repository and runs for CURBSTONE_FUZZ_SECONDS (300) in a process of its own.
Exits with 1 if one has failed; the input is then in the folder that is printed. Needs Atheris (`make soak-fuzz`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["curbstone"]):
    from tests.fuzz.targets import TARGETS
from tests.kit.results import record

CORPUS = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX = 4096
ONE_INPUT_S_MAX = 10


def fuzz(name: str, folder: str, seconds: str) -> None:
    """Fuzz one target in this process, which ends with it."""
    options = [
        "-print_final_stats=1",
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={folder}/",
    ]
    corpora = [folder, str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *options, f"-timeout={ONE_INPUT_S_MAX}", *corpora], TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    """Fuzz the named targets, or all, one after the other."""
    seconds = os.environ.get("CURBSTONE_FUZZ_SECONDS", "300")
    failed = []
    for name in sys.argv[1:] or TARGETS:
        folder = tempfile.mkdtemp(prefix=f"fuzz-{name}-")
        print(f"{name}: {seconds} s, in {folder}", flush=True)
        program = f"from tests.fuzz.run import fuzz; fuzz({name!r}, {folder!r}, {seconds!r})"
        done = subprocess.run([sys.executable, "-c", program], check=False, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode:
            failed.append(f"{name} (its input is in {folder})")
        inputs = re.search(r"stat::number_of_executed_units: *(\d+)", done.stderr)
        record("decoders", {"inputs": int(inputs[1]) if inputs else 0}, is_finding=bool(done.returncode))
    print(f"failed: {', '.join(failed)}" if failed else "no finding")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
