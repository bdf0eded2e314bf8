"""Gaps: messages that were gone before a stream could read them. The offset of the next batch records them.

A lake has them in the table `gaps`. The gaps of a queue have numbers, and the commit of a batch has the number of its
last gap (see `positions`). So gaps of a batch that was killed before its commit are recognized by their numbers and
removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from curbstone.spark.failure import DataLoss, PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

GAPS = "gaps"

RECREATED = "the queue was deleted and created again"
DELETED = "the queue was deleted"
GROUP_DELETED = "the group was deleted, and consumers may have settled messages since"
OTHER_READER = "another reader of the group had acked them"
GIVEN_UP = "dropped while the queue was full, or purged"
EARLIER = "lost before the first batch: dropped while the queue was full, or purged"


@dataclass(frozen=True)
class Gap:
    """Lost messages from seq `low` up to, but not including, `high`, which is None if the queue's end is unknown.

    `lost` is their number; None if it is only known to be at least `at_least`.
    """

    queue: str
    epoch: str
    low: int
    high: int | None
    lost: int | None
    at_least: int
    why: str

    def __str__(self) -> str:
        count = f"{self.lost:,}" if self.lost is not None else f"unknown, at least {self.at_least:,}"
        if self.lost is None and self.high is not None:
            count += f" and at most {self.high - self.low:,}"
        until = f" to {self.high - 1}" if self.high is not None else " on"
        return f"{self.queue}: messages lost from {self.low}{until}: {count} ({self.why})"

    def to_json(self) -> dict[str, Any]:
        """Return the gap's form in an offset, in which the queue's name is the key."""
        found = asdict(self)
        del found["queue"]
        return found

    def error(self, group: str, advice: str) -> DataLoss:
        """Return the error that names this gap."""
        count = f"{self.lost} lost" if self.lost is not None else f"an unknown number, at least {self.at_least}"
        return data_loss(self.queue, group, self.low, self.high, f"{self.why}, {count}; {advice}")


def data_loss(queue: str, group: str, low: int, high: int | None, why: str) -> DataLoss:
    """Return the error that names the missing messages."""
    reader = f" group={group}" if group else ""
    return DataLoss(f"DATA_LOSS queue={queue}{reader} missing=[{low},{'…' if high is None else high}): {why}")


def gaps_in(offset: Mapping[str, Mapping[str, Any]]) -> list[Gap]:
    """Return the gaps that were found when the batch that ends at `offset` was planned."""
    return [Gap(queue, **gap) for queue, place in offset.items() for gap in place.get("gaps", ())]


# --- in a lake


def record(lake: str, gaps: Iterable[tuple[int, Gap]]) -> None:
    """Add gaps with their numbers to the table. On a local disk, sync it before returning."""
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import DeltaError

    from curbstone.spark import delta_log
    from curbstone.spark.parts import filesystem

    uri = _uri(lake)
    now = datetime.now(UTC)
    rows = [{**_row(gap), "number": number, "found": now} for number, gap in gaps]
    files, root = filesystem(uri)
    files.create_dir(root, recursive=True)
    before = DeltaTable(uri).version() if DeltaTable.is_deltatable(uri) else -1
    try:
        write_deltalake(uri, pa.Table.from_pylist(rows, schema=_schema()), mode="append", name=GAPS)
    except DeltaError as error:
        raise PipelineError(f"can't write to {uri}: {error}") from None
    delta_log.sync(uri, before)


def remove_after(lake: str, numbers: Mapping[str, int]) -> None:
    """Remove the gaps of queues with higher numbers than these; they belong to batches that were never committed."""
    from deltalake import DeltaTable

    uri = _uri(lake)
    if not DeltaTable.is_deltatable(uri):
        return
    table = DeltaTable(uri)
    found = table.to_pyarrow_table(columns=["queue", "number"]).to_pylist()
    for queue in sorted({row["queue"] for row in found if row["number"] > numbers.get(row["queue"], 1 << 62)}):
        table.delete(f"queue = '{queue}' AND number > {numbers[queue]}")


def gaps_of(lake: str) -> list[Gap]:
    """Return the gaps of a lake, sorted by queue and place."""
    found = [
        Gap(row["queue"], row["epoch"], row["from"], row["to"], row["lost"], row["at_least"], row["why"])
        for row in gap_table(lake).to_pylist()
    ]
    return sorted(found, key=lambda gap: (gap.queue, gap.epoch, gap.low))


def gap_table(lake: str) -> pa.Table:
    """Return the gaps of a lake as rows, with those that earlier releases wrote to files in `_gaps`."""
    import pyarrow as pa
    from deltalake import DeltaTable

    uri = _uri(lake)
    before = pa.Table.from_pylist(list(_old(lake)), schema=_schema())
    if not DeltaTable.is_deltatable(uri):
        return before
    now = DeltaTable(uri).to_pyarrow_table().select(before.schema.names)
    return pa.concat_tables([before, now.cast(before.schema)])


def _uri(lake: str) -> str:
    from curbstone.spark.table import absolute

    return f"{absolute(lake)}/{GAPS}"


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"queue": pa.string(), "epoch": pa.string(), "why": pa.string()}
    types |= dict.fromkeys(("from", "to", "lost", "at_least", "number"), pa.int64())
    return pa.schema([*types.items(), ("found", pa.timestamp("us", "UTC"))])


def _row(gap: Gap) -> dict[str, Any]:
    facts = {"queue": gap.queue, "epoch": gap.epoch, "from": gap.low, "to": gap.high, "lost": gap.lost}
    return {**facts, "at_least": gap.at_least, "why": gap.why}


def _old(lake: str) -> Iterator[dict[str, Any]]:
    from pyarrow import fs

    from curbstone.spark.parts import filesystem
    from curbstone.spark.table import absolute

    files, root = filesystem(absolute(lake))
    for info in files.get_file_info(fs.FileSelector(f"{root}/_gaps", allow_not_found=True)):
        if info.extension == "json":
            with files.open_input_file(info.path) as file:
                yield json.loads(file.read())
