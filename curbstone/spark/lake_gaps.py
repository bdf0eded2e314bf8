"""The gaps that an archive records in its lake. Each is a file in `_gaps`; see `gaps` for their meaning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from curbstone.spark.gaps import Gap
from curbstone.spark.table import absolute

if TYPE_CHECKING:
    import pyarrow as pa


def note_gap(lake: str, gap: Gap) -> None:
    """Record a gap. Recording the same gap again writes the same file."""
    from curbstone.spark.parts import filesystem

    files, root = filesystem(absolute(lake))
    name = f"{gap.queue.replace('/', '-')}-{gap.epoch}-{gap.low}-{gap.high or 'end'}.json"
    facts = {"queue": gap.queue, "epoch": gap.epoch, "from": gap.low, "to": gap.high, "lost": gap.lost}
    text = json.dumps({**facts, "at_least": gap.at_least, "why": gap.why})
    files.create_dir(f"{root}/_gaps", recursive=True)
    with files.open_output_stream(f"{root}/_gaps/{name}") as file:
        file.write(text.encode())


def gaps_of(lake: str) -> list[Gap]:
    """Return the gaps of a lake, sorted by queue and place."""
    found = [
        Gap(one["queue"], one["epoch"], one["from"], one["to"], one["lost"], one["at_least"], one["why"])
        for one in _facts(lake)
    ]
    return sorted(found, key=lambda gap: (gap.queue, gap.epoch, gap.low))


def gap_table(lake: str) -> pa.Table:
    """Return the gaps of a lake as rows."""
    import pyarrow as pa

    texts, numbers = ("queue", "epoch", "why"), ("from", "to", "lost", "at_least")
    types = [(name, pa.string()) for name in texts] + [(name, pa.int64()) for name in numbers]
    return pa.Table.from_pylist(_facts(lake), schema=pa.schema(types))


def _facts(lake: str) -> list[dict[str, Any]]:
    from pyarrow import fs

    from curbstone.spark.parts import filesystem

    files, root = filesystem(absolute(lake))
    found = []
    for info in files.get_file_info(fs.FileSelector(f"{root}/_gaps", allow_not_found=True)):
        if info.extension == "json":
            with files.open_input_file(info.path) as file:
                found.append(json.loads(file.read()))
    return found
