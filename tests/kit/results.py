"""The results of long runs: added up in `tests/results.json`, and shown at the beginning of docs/RELIABILITY.md.

A run adds its counts when it has ended, and the date of a finding when it has failed. It does so only with
CURBSTONE_RECORD=1, as `make soak` and the like set it, so that other runs change no file. `python -m tests.kit.results`
writes the table again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
RESULTS = TESTS / "results.json"
PAGE = TESTS.parent / "docs" / "RELIABILITY.md"
BEGIN, END = "<!-- Made by tests/kit/results.py from tests/results.json -->\n", "<!-- End of what was made -->\n"
RUNS = {
    "engine": "simulator of the engine",
    "server": "simulator of the whole server",
    "pair": "simulator of a server and its second copy",
    "lease": "simulator of servers that share a lease",
    "failovers": "a server and its standby as processes, killed and handed over under load",
    "kills": "the real process, killed under load",
    "power": "the real process, power cuts on FUSE and LazyFS",
    "decoders": "decoders fuzzed",
    "properties": "property tests fuzzed by HypoFuzz",
    "directories": "data directories with random edits",
    "histories": "histories checked by Porcupine",
    "failover histories": "histories of failovers, checked by Porcupine",
    "mutation": "mutants of the engine",
}
"""The runs in their order on the page; "finding" is a failure of the product, not of the test."""


def record(run: str, counts: Mapping[str, int], *, is_finding: bool = False, is_sum: bool = False) -> None:
    """Add the counts of a run that has ended; if they are sums of all runs already, they replace those of before."""
    assert run in RUNS, run
    if os.environ.get("CURBSTONE_RECORD") != "1":
        return
    with open(RESULTS, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        results: dict[str, Any] = json.loads(file.read() or "{}")
        entry = results.setdefault(run, {"counts": {}})
        entry["last"] = _today()
        if is_finding:
            entry["finding"] = _today()
        if is_sum:
            entry["counts"] = {}
        for what, count in counts.items():
            entry["counts"][what] = entry["counts"].get(what, 0) + count
        file.truncate(0)
        file.write(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
        file.flush()
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


@contextmanager
def recorded(run: str, counts: Callable[[], Mapping[str, int]]) -> Iterator[None]:
    """Record a run when it ends; an exception is a finding."""
    try:
        yield
    except Exception:
        record(run, counts(), is_finding=True)
        raise
    record(run, counts())


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """Return the page with the table of these results."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE} has no place for the results"
    rows = ["| run | in all | last run | last finding |", "|---|---|---|---|"]
    for run, name in RUNS.items():
        if entry := results.get(run):
            counts = ", ".join(f"{count:,} {what}" for what, count in entry["counts"].items())
            rows.append(f"| {name} | {counts} | {entry['last']} | {entry.get('finding', 'none')} |")
    return before + BEGIN + "\n" + "\n".join(rows) + "\n\n" + END + after


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), json.loads(RESULTS.read_text())), encoding="utf-8")
