"""The columns for reading and writing, and their types."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from curbstone.spark.failure import PipelineError

TEXT_MAP = MapType(StringType(), StringType())
GROUPS = ArrayType(StringType())

MESSAGES = StructType(
    [
        StructField("queue", StringType()),
        StructField("epoch", StringType()),
        StructField("seq", LongType()),
        StructField("message_id", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("content_type", StringType()),
        StructField("headers", TEXT_MAP),
        StructField("body", BinaryType()),
        StructField("tries", IntegerType()),
        StructField("expires", TimestampType()),
        StructField("groups", GROUPS),
        StructField("key", StringType()),
    ]
)
"""The columns of messages. `queue` is `project/queue`. `epoch` changes when a queue is deleted and created again. Null
in `expires` means never, and in `groups` all groups. `key` is the ordering key, which is also among the headers.
"""

JOURNAL = StructType(
    [
        StructField("queue", StringType()),
        StructField("epoch", StringType()),
        StructField("position", LongType()),
        StructField("event", StringType()),
        StructField("seq", LongType()),
        StructField("count", LongType()),
        StructField("time", TimestampType()),
        StructField("group", StringType()),
        StructField("tries", IntegerType()),
        StructField("due", TimestampType()),
        StructField("bytes", LongType()),
    ]
)
"""The columns of the journal. A row is an event of `count` messages from `seq` on."""

_BYTES = (StringType(), BinaryType())
_WRITTEN: dict[str, tuple[DataType, ...]] = {
    "body": _BYTES,
    "value": _BYTES,
    "queue": (StringType(),),
    "headers": (TEXT_MAP,),
    "content_type": (StringType(),),
    "delay": (IntegerType(), LongType()),
    "ttl": (IntegerType(), LongType()),
    "groups": (GROUPS,),
    "key": (StringType(),),
    "priority": (IntegerType(), LongType()),
}


def projected(full: StructType, wanted: StructType) -> StructType:
    """Return the columns to read, which are those of `wanted`. Raise PipelineError if one is not in `full`."""
    known = {field.name: field for field in full.fields}
    for field in wanted.fields:
        if field.name not in known:
            raise PipelineError(f"there is no column {field.name!r}; the columns are {', '.join(known)}")
        offered = known[field.name].dataType
        if not _same(field.dataType, offered):
            raise PipelineError(
                f"column {field.name!r} is {offered.simpleString()}, not {field.dataType.simpleString()}"
            )
    return wanted


def check_written(schema: StructType, *, queue_given: bool) -> None:
    """Raise PipelineError if these columns can't be written."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        types = _WRITTEN.get(field.name)
        if types is None:
            raise PipelineError(
                f"column {field.name!r} can't be written, only {', '.join(_WRITTEN)}; drop or rename the others"
            )
        if not any(_same(field.dataType, one) for one in types):
            wanted = " or ".join(one.simpleString() for one in types)
            raise PipelineError(f"column {field.name!r} is {field.dataType.simpleString()}; it must be {wanted}")
    if "body" in names and "value" in names:
        raise PipelineError("columns 'body' and 'value' have the same meaning; use one of them")
    if "body" not in names and "value" not in names:
        raise PipelineError("there is no column 'body' (or 'value') to write")
    if "queue" not in names and not queue_given:
        raise PipelineError("no destination: set the option queue, or add a column 'queue'")


def _same(one: DataType, other: DataType) -> bool:
    """Return whether two types are the same, regardless of which parts may be null."""
    return bool(one.simpleString() == other.simpleString())
