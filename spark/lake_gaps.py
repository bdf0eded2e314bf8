"""The gaps that an archive has noted in its lake; see `lake` for where and `gaps` for what they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from curbstone.spark.gaps import Gap
from curbstone.spark.table import absolute

if TYPE_CHECKING:
    import pyarrow as pa


def gaps_of(lake: str) -> list[Gap]:
    """Return them by queue and place."""
    found = [
        Gap(one["queue"], one["epoch"], one["from"], one["to"], one["lost"], one["at_least"], one["why"])
        for one in _facts(lake)
    ]
    return sorted(found, key=lambda gap: (gap.queue, gap.epoch, gap.low))


def gap_table(lake: str) -> pa.Table:
    """Return them as rows."""
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
