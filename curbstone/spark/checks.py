"""Checks of a job before it starts Java, which can take half a minute."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from curbstone.spark import calls
from curbstone.spark.client import Address, Client
from curbstone.spark.failure import PipelineError, Refused
from curbstone.spark.session import submitted
from curbstone.spark.table import Table

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def local_folder(path: str) -> Path | None:
    """Return the folder of an address, if Spark is certain to use this machine's file system; otherwise None."""
    scheme = _SCHEME.match(path)
    if scheme is not None:
        return Path(unquote(urlsplit(path).path)) if scheme[1] == "file" else None
    # The settings of Hadoop, or of a cluster, may map such a path to another place.
    return None if submitted() or "HADOOP_CONF_DIR" in os.environ else Path(path)


def check_writable(path: str, what: str) -> None:
    """Create a folder if it does not exist. Raise PipelineError if it can't be created or written to."""
    folder = local_folder(path)
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise PipelineError(f"{what} {path}: can't write there: {error.strerror}") from None


def check_lake(path: str, table: str) -> None:
    """Raise PipelineError if nothing was ever archived."""
    stored = Table(path, table)
    if local_folder(path) is not None and not stored.exists:
        raise stored.missing_error()


def check_server(address: Address, queues: Sequence[str], *, must_exist: bool = True) -> None:
    """Raise PipelineError if the server can't be reached, or lacks one of these queues."""
    server = Client(address)
    try:
        for queue in queues:
            try:
                calls.offsets(server, queue)
            except Refused as refused:
                if must_exist or refused.status != calls.NOT_FOUND:
                    raise
    finally:
        server.close()


def check_pattern(address: Address, project: str, pattern: str, *, must_exist: bool = True) -> None:
    """Raise PipelineError if the server can't be reached, or has no queue whose name matches."""
    server = Client(address)
    find = calls.some_queues_like if must_exist else calls.queues_like
    try:
        find(server, project, pattern)
    finally:
        server.close()
