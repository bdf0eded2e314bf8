"""The progress of a lake: the place in each queue where reading continues, in the commits of the lake's own tables.

A commit that adds rows also sets application transactions (*Transaction Identifiers* of the Delta protocol), such as

    curbstone/shop/orders/next    101
    curbstone/shop/orders/epoch   the queue's epoch, a hexadecimal number

So rows and position are stored together or not at all, and there is no other record of progress. `floor` and `lost` are
the group's values, from which later losses are counted, and `from` is where the last batch began. `rows` and `missed`
are the numbers of messages from `begin` up to `next` that are in the table, and that were lost; the others had expired
or were not for the group. `gap` is the number of the queue's last gap. The table of the journal has `position` instead
of `next`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from curbstone.spark.columns import JOURNAL, MESSAGES
from curbstone.spark.places import Offset
from curbstone.spark.table import Table

_PREFIX = "curbstone/"
COUNTS = ("begin", "rows", "missed", "gap")
_PLACE = {MESSAGES: ("from", "next", "floor", "lost", "gone"), JOURNAL: ("position",)}
_MEMBERS = {MESSAGES: (*_PLACE[MESSAGES], *COUNTS), JOURNAL: _PLACE[JOURNAL]}


def stored(table: Table) -> Offset:
    """Return the place of each queue that the table has, or had, rows of."""
    found: Offset = {}
    for name, version in table.transactions().items():
        if name.startswith(_PREFIX):
            queue, _, member = name.removeprefix(_PREFIX).rpartition("/")
            found.setdefault(queue, {})[member] = f"{version:012x}" if member == "epoch" else version
    return {queue: at for queue, at in found.items() if "epoch" in at}


def transactions(table: Table, offset: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the application transactions for these places."""
    found = {}
    for queue, at in offset.items():
        if at.get("epoch"):
            found[f"{_PREFIX}{queue}/epoch"] = int(at["epoch"], 16)
            members = {"floor": 0, "lost": 0, "gone": 0, **at} if table.name == MESSAGES else at
            found |= {
                f"{_PREFIX}{queue}/{name}": int(members[name]) for name in _MEMBERS[table.name] if name in members
            }
    return found


def of_checkpoint(table: Table, checkpoint: str) -> Offset:
    """Return the places of a lake of an earlier release from Spark's checkpoint of its query.

    The table has the last stored batch, and the checkpoint has its end. Return {} without a checkpoint. If it lacks the
    batch, the places of messages are taken from the rows.
    """
    from curbstone.spark.parts import filesystem, text_of

    if not table.exists:
        return {}
    files, root = filesystem(f"{checkpoint}/{table.name}")
    query = text_of(files, f"{root}/metadata")
    if query is None:
        return {}
    batch = table.transactions().get(json.loads(query)["id"])
    if batch is None:
        return {}
    try:
        text = text_of(files, f"{root}/offsets/{batch}") or ""
        offset: Offset = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return _of_rows(table) if table.name == MESSAGES else {}
    members = ("epoch", *_PLACE[table.name])
    return {
        queue: {name: at[name] for name in members if name in at} for queue, at in offset.items() if at.get("epoch")
    }


def _of_rows(table: Table) -> Offset:
    """Return the places after the last row of each queue. Every earlier message was stored, or will never appear."""
    columns = ("project", "queue", "epoch", "seq", "timestamp")
    rows = table.dataset().to_table(columns=list(columns))
    ends = rows.group_by(["project", "queue", "epoch"]).aggregate([("seq", "max"), ("timestamp", "max")])
    found: Offset = {}
    for row in ends.sort_by("timestamp_max").to_pylist():
        found[f"{row['project']}/{row['queue']}"] = {"epoch": row["epoch"], "next": row["seq_max"] + 1}
    return found
