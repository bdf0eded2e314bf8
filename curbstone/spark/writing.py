"""Writing: each task stages its rows in parts with unique names, and the driver publishes all parts in one commit.

A task that fails or runs twice leaves parts that no commit names. The id of the transaction identifies a repeated
commit. For a micro-batch it is the id of the query and the number of the batch, which are the same after a restart from
the checkpoint. The commit also names the range that the checkpoint plans for the batch, so that an old checkpoint,
which plans another range under a known number, is an error. For a batch the id is the option `transactionId`, or else a
new one for each job. The server remembers committed ids (of a query the number of its last batch), so repeating a
commit publishes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from curbstone.core.errors import BadRequest
from curbstone.spark import calls
from curbstone.spark.client import Client, checked_name
from curbstone.spark.failure import NoRoom, PipelineError, Refused, last_line
from curbstone.spark.frames import write_part
from curbstone.spark.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES = 16 << 20
"""A part is sent when it has this size. The server accepts up to 64 MiB."""

log = logging.getLogger("curbstone.spark")

_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


@dataclass
class Staged(WriterCommitMessage):
    """The parts that one task staged, in order."""

    transaction: str
    parts: tuple[str, ...]
    messages: int


class _Stage:
    """Collects frames for one task and sends them as parts."""

    def __init__(self, options: WriteOptions, project: str, transaction: str, name: str) -> None:
        self._options = options
        self._project = project
        self._server = Client(options.address)
        self._transaction = transaction
        self._name = name
        self._frames: list[bytes] = []
        self._bytes = 0
        self._parts: list[str] = []
        self._messages = 0
        self.open = True
        """False once the server has reported that this transaction is committed, so that nothing need be staged."""

    def add(
        self, queue: str, bodies: list[bytes], blocks: list[bytes], delays: list[int], extras: list[bytes] | None
    ) -> None:
        frame = write_part(queue, bodies, blocks, delays, extras)
        if self._frames and self._bytes + len(frame) > PART_BYTES:
            self._send()
        self._frames.append(frame)
        self._bytes += len(frame)
        self._messages += len(bodies)

    def done(self) -> Staged:
        if self._frames:
            self._send()
        self._server.close()
        return Staged(self._transaction, tuple(self._parts), self._messages)

    def _send(self) -> None:
        part = f"{self._name}-{len(self._parts):05d}"
        if self.open:
            body = b"".join(self._frames)
            try:
                self.open = calls.put_part(self._server, self._project, self._transaction, part, body)
            except NoRoom:
                # Parts of killed attempts may fill the room, and would stay while the job is retried. The driver can't
                # drop them, because without a successful task it lacks the id. A commit that needs one of the dropped
                # parts fails.
                _abort(self._options, self._transaction)
                raise
        self._parts.append(part)
        self._frames, self._bytes = [], 0


def _stage_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions, project: str, stage: _Stage) -> Staged:
    from curbstone.spark.arrow import Blocks

    blocks = Blocks()
    known: dict[str, str] = {}
    for batch in batches:
        if batch.num_rows:
            _add_batch(batch, options, project, stage, blocks, known)
    return stage.done()


def _add_batch(
    batch: pa.RecordBatch, options: WriteOptions, project: str, stage: _Stage, blocks: Any, known: dict[str, str]
) -> None:
    """Stage a batch of rows, with a frame for each queue in it."""
    from curbstone.spark.arrow import bytes_of, extras_of, header_blocks

    names = batch.schema.names
    bodies = bytes_of(batch.column("body" if "body" in names else "value"))
    if None in bodies:
        raise PipelineError("a row's body is null; a message needs a body, which may be empty")
    delays = _delays(batch)
    try:
        made = header_blocks(batch, blocks)
        extras = extras_of(batch)
    except (ValueError, BadRequest) as error:
        raise PipelineError(str(error)) from None
    if "queue" not in names:
        stage.add(checked_name(options.queue).queue, bodies, made, delays, extras)  # type: ignore[arg-type]
        return
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(batch.column("queue").to_pylist()):
        queue = known.get(name)
        if queue is None:
            queue = known[name] = _target(name, options, project)
        rows_of.setdefault(queue, []).append(row)
    for queue, rows in rows_of.items():
        picked = [[column[row] for row in rows] for column in (bodies, made, delays)]
        more = [extras[row] for row in rows] if extras is not None else None
        stage.add(queue, picked[0], picked[1], picked[2], more)  # type: ignore[arg-type]


def _target(name: str | None, options: WriteOptions, project: str) -> str:
    """Return the queue that a row names, without its project. Null means the queue of the option."""
    if name is None:
        if not options.queue:
            raise PipelineError("a row's queue is null, and the option queue is not set")
        return checked_name(options.queue).queue
    found = checked_name(name, project)
    if found.project != project:
        raise PipelineError(f"a row is for {found}; a write can have only one project, here {project}")
    return found.queue


def _delays(batch: pa.RecordBatch) -> list[int]:
    if "delay" not in batch.schema.names:
        return [0] * batch.num_rows
    delays = [delay or 0 for delay in batch.column("delay").to_pylist()]
    if min(delays) < 0:
        raise PipelineError("a row's delay is negative; it is in milliseconds, 0 or more")
    return delays


def _project(options: WriteOptions) -> str:
    return checked_name(options.queue).project if options.queue else options.project


def _task_name(run: str) -> str:
    """Return the prefix of the names of this task's parts. It sorts by partition, and is unique to the attempt."""
    context = TaskContext.get()
    if context is None:
        raise PipelineError("writing is only possible in a Spark task")
    return f"{context.partitionId():06d}-{context.attemptNumber()}-{context.taskAttemptId()}-{run}"


def _commit(options: WriteOptions, messages: list[WriterCommitMessage | None], content: str = "") -> None:
    staged = [message for message in messages if isinstance(message, Staged)]
    parts = [part for message in staged for part in message.parts]
    if not parts:
        return  # nothing was staged, so there is nothing to commit
    server = Client(options.address)
    try:
        calls.commit(server, _project(options), staged[0].transaction, parts, content)
    finally:
        server.close()


def _abort(options: WriteOptions, transaction: str) -> None:
    """Drop the staged parts. If this fails too, the server drops them later."""
    server = Client(options.address)
    try:
        calls.drop(server, _project(options), transaction)
    except PipelineError:
        pass
    finally:
        server.close()


def _planned(checkpoint: str, batch: int) -> str:
    """Return a digest of a batch's planned range in Spark's checkpoint; "" if it can't be read."""
    from curbstone.spark.parts import filesystem, text_of
    from curbstone.spark.table import absolute

    if not checkpoint:
        return ""
    try:
        files, root = filesystem(absolute(checkpoint))
        text = text_of(files, f"{root}/offsets/{batch}")
    except (OSError, ValueError) as error:
        log.warning("curbstone: can't read the checkpoint %s: %s", checkpoint, error)
        return ""
    # The first two lines are the version of the format, and times and settings.
    return hashlib.sha256("\n".join(text.splitlines()[2:]).encode()).hexdigest() if text else ""


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame, all or nothing."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex[:12]
        self._transaction = options.transaction or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        project = _project(self._options)
        stage = _Stage(self._options, project, self._transaction, _task_name(self._run))
        return _stage_rows(iterator, self._options, project, stage)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, self._transaction)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each all or nothing, and exactly once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex[:12]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context else None
        batch = context.getLocalProperty(_BATCH_ID) if context else None
        if not query or not batch:
            raise PipelineError("Spark did not pass the query and batch of this task")
        project = _project(self._options)
        stage = _Stage(self._options, project, f"{query}@{batch}", _task_name(self._run))
        return _stage_rows(iterator, self._options, project, stage)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._was_committed_by_first_release(messages):
            return
        try:
            _commit(self._options, messages, _planned(self._options.checkpoint, batchId))
        except Refused as refused:
            if refused.status != calls.CONFLICT:
                raise
            why = f"{last_line(refused)}; the checkpoint {self._options.checkpoint} is older than what was published"
            advice = "restore its newest state, or begin after the published messages with a new checkpoint and groupId"
            raise PipelineError(f"batch {batchId}: {why}: {advice}") from None

    def _was_committed_by_first_release(self, messages: list[WriterCommitMessage | None]) -> bool:
        """Return whether the first release committed this batch, under another id.

        An upgraded query may repeat its last batch.
        """
        staged = next((message for message in messages if isinstance(message, Staged) and message.parts), None)
        if staged is None:
            return False
        server = Client(self._options.address)
        try:
            earlier = staged.transaction.replace("@", ":")
            state = calls.transaction_state(server, _project(self._options), earlier)
        finally:
            server.close()
        if state is None or state["state"] == "staged":
            return False
        _abort(self._options, staged.transaction)
        return True

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for transaction in {message.transaction for message in messages if isinstance(message, Staged)}:
            _abort(self._options, transaction)
