"""The options of `spark.read.format("curbstone")`, and of `readStream`, `write` and `writeStream`, checked on the
driver.

Names are not case-sensitive, as usual in Spark. An unknown option is an error, because ignoring a misspelt one could
read the wrong messages. Spark passes all values as text.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from curbstone.core.errors import BadRequest
from curbstone.core.names import group_name
from curbstone.spark.client import Address, Secret, check_ca_file, checked_name
from curbstone.spark.failure import PipelineError

DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE, TOKEN_VARIABLE = "CURBSTONE_SERVER", "CURBSTONE_TOKEN"
TOKEN_FILE_VARIABLE, CA_FILE_VARIABLE = "CURBSTONE_TOKEN_FILE", "CURBSTONE_CA_FILE"
"""These four variables have the same meaning for a pipeline as for the command line."""
CORES_VARIABLE, CORES_UNKNOWN = "CURBSTONE_SPARK_CORES", 4
"""Spark does not pass the number of cores to a data source. `register` does, by the environment of Python workers."""

UNITS_S = {"s": 1, "m": 60, "h": 3600}
TRIGGER_DELAY_S = 15 * 60
"""The same default as in Spark's own source for Kafka."""

EARLIEST, LATEST, GROUP = "earliest", "latest", "group"
MESSAGES, JOURNAL = "messages", "journal"

_BOTH = ("url", "token", "tokenFile", "caFile", "project", "queue", "requestTimeout", "retryTimeout")
_READ = (
    *("mode", "queues", "queuePattern", "groupId", "startingOffsets", "endingOffsets", "startingTimestamp"),
    *("endingTimestamp", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxRecordsPerPartition"),
    *("failOnDataLoss", "includeHeaders", "includeBody", "fetchRows", "fetchBytes", "pollWait"),
)
_WRITE = ("transactionId",)
_ALIASES = {
    "subscribe": "queues",
    "subscribepattern": "queuePattern",
    "topic": "queue",
    "kafka.group.id": "groupId",
}
"""Options of Spark's source and sink for Kafka with another name for the same meaning. Most have the same name here."""
_KAFKA_PARTITION = "0"
"""A queue corresponds to a topic with one partition."""
# Spark itself adds these to the options.
_SPARKS = {"path", "checkpointlocation", "queryname"}

PER_TRIGGER = 250_000
"""The default size of a micro-batch. Starting one takes a quarter of a second of CPU, a fifth of the time for writing
this many messages of 100 bytes to Parquet.
"""
FIT = "staged"
"""Lets the server limit a micro-batch. One that is written to a queue must fit the server's --max-staged, and Spark
never shrinks a planned batch. So at planning the server returns how far a part of that limit reaches.
"""
PER_PARTITION = 250_000

_TRANSACTION = re.compile(r"[A-Za-z0-9._:-]{1,200}")

Place = str | int
"""`earliest`, `latest`, `group`, or a seq."""


@dataclass(frozen=True)
class Places:
    """Where to begin or end: a `default`, and places for single queues, by full name."""

    default: Place
    of_queues: Mapping[str, Place] = field(default_factory=dict)

    def of(self, queue: str) -> Place:
        return self.of_queues.get(queue, self.default)


@dataclass(frozen=True)
class ReadOptions:
    """The options for reading (docs/spark-reference.md). Durations are in s, times in ms. `queues` are full names."""

    address: Address
    mode: str
    queues: tuple[str, ...]
    project: str
    pattern: str
    group: str
    start: Places | None
    end: Places | None
    start_ms: int | None
    end_ms: int | None
    per_trigger: int
    bytes_per_trigger: str
    """A number, or FIT for the server's choice for a staged transaction."""
    per_trigger_min: int
    """Fewer messages wait for a later batch, but no longer than `trigger_delay_s`."""
    trigger_delay_s: float
    cores: int
    """How many tasks Spark can run at once."""
    partitions_min: int | None
    """None if not set."""
    per_partition: int
    fail_on_loss: bool
    headers: bool
    body: bool
    fetch_rows: int
    fetch_bytes: int
    poll_wait_s: float
    plain_headers: bool = True
    """Whether headers have clients' own names, or those of the log, as in lakes of earlier releases."""

    def reads(self, queue: str) -> bool:
        """Return whether a queue is among those to read, even if it does not exist."""
        if not self.pattern:
            return queue in self.queues
        project, _, name = queue.partition("/")
        return project == self.project and bool(re.fullmatch(self.pattern, name))


@dataclass(frozen=True)
class WriteOptions:
    """The options for writing.

    `queue` is a full name, or "" if each row names its own. `transaction` is "" if none was given.
    """

    address: Address
    project: str
    queue: str
    transaction: str
    checkpoint: str
    """The directory of a stream's checkpoint, or "" if the stream has no such option."""


class _Options:
    """The given options. Each is taken out once, by a method for its type."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            meant = _ALIASES.get(name.lower(), name)
            key = meant.lower() if meant in known else name.lower()
            if key in self._values:
                raise PipelineError(f"options {meant} and {name} have the same meaning; use one of them")
            self._values[key] = value
        for name in self._values:
            if name not in names and name not in _SPARKS:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {names[near[0]]}?" if near else f"; known options: {', '.join(sorted(known))}"
                raise PipelineError(f"unknown option {name!r}{hint}")

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default).strip()

    def number(self, name: str, default: int, least: int, most: int = (1 << 62)) -> int:
        text = self.text(name, str(default))
        if not text.isdecimal() or not least <= int(text) <= most:
            limit = f"from {least} to {most}" if most < 1 << 62 else f"{least} or more"
            raise PipelineError(f"option {name}={text!r}: expected a whole number, {limit}")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            number, unit = (text[:-1], UNITS_S[text[-1]]) if text[-1:] in UNITS_S else (text, 1)
            value = float(number) * unit
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e6:
            raise PipelineError(f"option {name}={text!r}: expected seconds, 0 or more; or 15m, 2h")
        return value

    def yes(self, name: str, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise PipelineError(f"option {name}={text!r}: expected true or false")
        return text == "true"

    def moment(self, name: str) -> int | None:
        text = self.text(name)
        return moment_ms(text, f"option {name}") if text else None


def moment_ms(text: str, what: str) -> int:
    """Return a time in ms, given as milliseconds since 1970 or in ISO 8601 (in UTC if it names no zone)."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        text = f"{what}={text!r}: expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"
        raise PipelineError(text) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def read_options(given: Mapping[str, str], *, stream: bool | None = None) -> ReadOptions:
    """Return the checked options. Raise PipelineError.

    With `stream=None`, options that only a batch or only a stream may have are accepted.
    """
    options = _Options(given, (*_BOTH, *_READ))
    project = _project(options)
    queues = _queues(options, project)
    pattern = _pattern(options, queues)
    mode = options.text("mode", MESSAGES)
    if mode not in (MESSAGES, JOURNAL):
        raise PipelineError(f"option mode={mode!r}: expected {MESSAGES} or {JOURNAL}")
    found = ReadOptions(
        address=_address(options),
        mode=mode,
        queues=queues,
        project=project,
        pattern=pattern,
        group=_group(options),
        start=_places(options, "startingOffsets", project, (EARLIEST, LATEST, GROUP)),
        end=_places(options, "endingOffsets", project, (LATEST,)),
        start_ms=options.moment("startingTimestamp"),
        end_ms=options.moment("endingTimestamp"),
        per_trigger=options.number("maxOffsetsPerTrigger", PER_TRIGGER, 1),
        bytes_per_trigger=_bytes_per_trigger(options),
        per_trigger_min=options.number("minOffsetsPerTrigger", 1, 1),
        trigger_delay_s=options.seconds("maxTriggerDelay", TRIGGER_DELAY_S),
        cores=int(os.environ.get(CORES_VARIABLE) or CORES_UNKNOWN),
        partitions_min=options.number("minPartitions", 1, 1, 10_000) if options.text("minPartitions") else None,
        per_partition=options.number("maxRecordsPerPartition", PER_PARTITION, 1),
        fail_on_loss=options.yes("failOnDataLoss", True),
        headers=options.yes("includeHeaders", True),
        body=options.yes("includeBody", True),
        fetch_rows=options.number("fetchRows", 20_000, 1, 100_000),
        fetch_bytes=options.number("fetchBytes", 4 << 20, 1 << 10, 16 << 20),
        poll_wait_s=min(options.seconds("pollWait", 1.0), 30.0),
    )
    _check_together(found, stream)
    return found


def _bytes_per_trigger(options: _Options) -> str:
    given = options.text("maxBytesPerTrigger", FIT)
    return given if given == FIT else str(options.number("maxBytesPerTrigger", 1, 1, (1 << 49)))


def write_options(given: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """Return the checked options. Raise PipelineError."""
    options = _Options(given, (*_BOTH, *_WRITE))
    project = _project(options)
    queue = options.text("queue")
    transaction = options.text("transactionId")
    if transaction and not _TRANSACTION.fullmatch(transaction):
        raise PipelineError("option transactionId: expected 1 to 200 of A-Z a-z 0-9 . _ : -")
    if transaction and stream:
        raise PipelineError(
            "option transactionId: not for a streaming query, which derives it from its id and the batch's number"
        )
    full = str(checked_name(queue, project)) if queue else ""
    return WriteOptions(_address(options), project, full, transaction, options.text("checkpointLocation"))


def _check_together(found: ReadOptions, stream: bool | None) -> None:
    if found.start and found.start_ms is not None:
        raise PipelineError("options startingOffsets and startingTimestamp: use one of them")
    if found.end and found.end_ms is not None:
        raise PipelineError("options endingOffsets and endingTimestamp: use one of them")
    if found.mode == JOURNAL and (found.end or found.start_ms is not None or found.end_ms is not None or found.group):
        raise PipelineError("mode=journal allows startingOffsets (a position, or earliest), but no group, end or time")
    for name, places in (("startingOffsets", found.start), ("endingOffsets", found.end)):
        for queue in places.of_queues if places else ():
            if not found.reads(queue):
                raise PipelineError(f"option {name} names {queue}, which is not among the queues to read")
    starts = {found.start.default, *found.start.of_queues.values()} if found.start else set()
    if found.mode == JOURNAL and starts & {LATEST, GROUP}:
        raise PipelineError("mode=journal starts at a position, or at earliest")
    if stream is False and LATEST in starts:
        raise PipelineError("option startingOffsets: a batch can't start at latest, because nothing follows it")
    if stream and (found.end or found.end_ms is not None):
        raise PipelineError("options endingOffsets and endingTimestamp are for batches; a stream has no end")
    if stream and LATEST in starts and not found.group:
        raise PipelineError("startingOffsets=latest needs groupId, which keeps the place until the first batch is done")
    if GROUP in starts and not found.group:
        raise PipelineError("startingOffsets=group needs groupId")


def address_of(url: str, token_file: str, ca_file: str = "") -> Address:
    """Return the address of the server. Empty values are taken from the environment. Raise PipelineError."""
    given = {"url": url, "tokenFile": token_file, "caFile": ca_file}
    return _address(_Options(given, tuple(given)))


def _address(options: _Options) -> Address:
    url = options.text("url") or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    url = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable, parts = False, urlsplit("")
    if parts.username or parts.password:
        raise PipelineError("option url: remove the user and password; use token or tokenFile")
    if not usable or parts.query or parts.fragment:
        raise PipelineError(f"option url={url!r}: expected http://host:port")
    request_s, retry_s = options.seconds("requestTimeout", 60), options.seconds("retryTimeout", 60)
    if not request_s:
        raise PipelineError("option requestTimeout: expected seconds, more than 0")
    return Address(url.rstrip("/"), _token(options), request_s, retry_s, _ca_file(options, parts.scheme))


def _ca_file(options: _Options, scheme: str) -> str:
    """Return the file with trusted authorities, or "" for those of the machine. Raise if it can't be read."""
    file = options.text("caFile")
    if file and scheme != "https":
        raise PipelineError("option caFile needs a url that begins with https://")
    file = file or (os.environ.get(CA_FILE_VARIABLE, "") if scheme == "https" else "")
    if file:
        check_ca_file(file)
    return file


def _token(options: _Options) -> Secret:
    token, file = options.text("token"), options.text("tokenFile")
    if token and file:
        raise PipelineError("options token and tokenFile: use one of them")
    if not token and not file:
        file = os.environ.get(TOKEN_FILE_VARIABLE, "")
        token = "" if file else os.environ.get(TOKEN_VARIABLE, "")
    if file:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise PipelineError(f"option tokenFile={file!r}: {reason}") from None
    if token and (not token.isascii() or not token.isprintable() or " " in token):
        raise PipelineError("the token has characters that are not allowed in an HTTP header")
    return Secret(token)


def _project(options: _Options) -> str:
    return checked_name("q", options.text("project", "default")).project


def _queues(options: _Options, project: str) -> tuple[str, ...]:
    one, many = options.text("queue"), options.text("queues")
    if one and many:
        raise PipelineError("options queue and queues: use one of them")
    if one and "," in one:
        raise PipelineError("option queue names one queue; use queues for several")
    names = [name.strip() for name in (one or many).split(",") if name.strip()]
    return tuple(dict.fromkeys(str(checked_name(name, project)) for name in names))


def _pattern(options: _Options, queues: tuple[str, ...]) -> str:
    pattern = options.text("queuePattern")
    if bool(pattern) == bool(queues):
        raise PipelineError("no queue: use one of the options queue, queues and queuePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise PipelineError(f"option queuePattern={pattern!r}: {error}") from None
    return pattern


def _group(options: _Options) -> str:
    text = options.text("groupId")
    try:
        return group_name(text) if text else ""
    except BadRequest as error:
        raise PipelineError(f"option groupId: {error}") from None


def _places(options: _Options, name: str, project: str, words: tuple[str, ...]) -> Places | None:
    text = options.text(name)
    if not text:
        return None
    if not text.startswith("{"):
        return Places(_place(name, text, words))
    try:
        given = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"option {name}: bad JSON: {error}") from None
    places = {str(checked_name(queue, project)): _place_of(name, place, words) for queue, place in given.items()}
    return Places(words[0], places)


def _place_of(name: str, given: object, words: tuple[str, ...]) -> Place:
    """Return a place in JSON. Kafka's form, with partitions, is accepted if it names only one partition."""
    if isinstance(given, dict) and list(given) == [_KAFKA_PARTITION]:
        given = given[_KAFKA_PARTITION]
    return _place(name, str(given), words)


def _place(name: str, text: str, words: tuple[str, ...]) -> Place:
    text = {"-2": EARLIEST, "-1": LATEST}.get(text, text)
    if text in words:
        return text
    if not text.isdecimal():
        raise PipelineError(
            f"option {name}={text!r}: expected {', '.join(words)}, a number, or JSON with one of these per queue"
        )
    return int(text)
