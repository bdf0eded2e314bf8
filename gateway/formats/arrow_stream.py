"""A page of messages as an Arrow IPC stream, which pyarrow, Polars and DuckDB read in one line. It needs pyarrow.

The columns are those of the Spark source. Arrow is loaded for the first such page.
"""

from __future__ import annotations

from importlib.util import find_spec

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
COLUMNS = (
    *("queue", "epoch", "seq", "message_id", "timestamp", "content_type", "headers", "body", "tries", "expires"),
    *("groups", "key"),
)


def is_installed() -> bool:
    """Return whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def stream_of(page: bytes, queue: str, epoch: str, *, headers: bool, body: bool) -> bytes:
    """Return a binary page of a queue (`project/queue`) as a stream, with `headers` and `body` only if requested."""
    import pyarrow as pa

    from curbstone.spark.arrow import arrow_schema, message_batch

    left_out = {*(() if headers else ("headers", "content_type", "key")), *(() if body else ("body",))}
    schema = arrow_schema(tuple((name, True) for name in COLUMNS if name not in left_out))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(message_batch(page, queue, epoch, schema))
    return bytes(sink.getvalue())
