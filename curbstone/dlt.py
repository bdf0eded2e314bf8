"""A source of dlt (https://dlthub.com), which loads a queue into any of the databases and warehouses that dlt supports.

    import dlt
    from curbstone.dlt import messages

    pipeline = dlt.pipeline("orders", destination="duckdb", dataset_name="queues")
    pipeline.run(messages("shop/orders"))

It needs `pip install 'curbstone[dlt]'`. Each run loads the messages that earlier runs have not loaded. The position is
in dlt's own state, which is loaded with the rows. The messages are read through a group, so other consumers are not
affected; a run acks what the previous run has loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dlt

GROUP = "dlt"
COLUMNS = (
    *("queue", "epoch", "seq", "message_id", "timestamp", "content_type", "headers", "body", "tries", "expires"),
    *("groups", "key"),
)


def messages(
    queue: str,
    *,
    table: str = "messages",
    group: str = GROUP,
    server: str = "",
    token_file: str = "",
    ca_file: str = "",
    fail_on_data_loss: bool = True,
) -> Any:
    """Return a resource of dlt that appends the messages of `queue` to a table.

    `queue` is `project/queue`, or several with commas between. `headers` and `groups` are JSON. The server's address
    and the files are by default those of the command line. Without `fail_on_data_loss`, a run continues after lost
    messages, and logs them.
    """
    given = {"queues": queue, "groupId": group, "url": server, "tokenFile": token_file, "caFile": ca_file}
    options = {name: text for name, text in given.items() if text}
    options["failOnDataLoss"] = str(fail_on_data_loss).lower()

    def rows() -> Iterator[Any]:
        from curbstone.spark.options import read_options
        from curbstone.spark.source_types import ReadLimit
        from curbstone.spark.stream import StreamReader

        state = dlt.current.resource_state()
        reader = StreamReader(read_options(options, stream=True), tuple((name, True) for name in COLUMNS))
        try:
            start = state.get("places") or reader.initialOffset()
            reader.prepareForTriggerAvailableNow()
            # Only one batch, because planning another would ack this one before it is loaded.
            end = reader.latestOffset(start, ReadLimit())
            for task in reader.partitions(start, end):
                for batch in reader.read(task):
                    yield _plain(batch)
            state["places"] = end
        finally:
            reader.stop()

    return dlt.resource(rows, name=table, write_disposition="append")


def _plain(batch: Any) -> Any:
    """Return rows with JSON in place of maps and lists, which not all destinations support."""
    import json

    import pyarrow as pa

    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    headers = [json.dumps(dict(pairs or ())) for pairs in arrays["headers"].to_pylist()]
    groups = [None if names is None else json.dumps(names) for names in arrays["groups"].to_pylist()]
    arrays |= {"headers": pa.array(headers, pa.string()), "groups": pa.array(groups, pa.string())}
    return pa.table(arrays)
