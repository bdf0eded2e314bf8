"""The log of a Delta table, as far as `deltalake` does not show it: all application transactions, and syncing it.

On a local disk nothing that `deltalake` writes is synced. So `sync` is called before what was archived is acked, and
`repair` removes a commit that a power cut tore before that. Object stores confirm only what is stored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import fs

LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")


def transactions(uri: str) -> dict[str, int]:
    """Return the last version of each application transaction of a table."""
    from pyarrow import parquet

    from curbstone.spark.parts import filesystem, text_of

    files, root = filesystem(uri)
    found: dict[str, int] = {}
    since = -1
    if known := text_of(files, f"{root}/{LOG}/_last_checkpoint"):
        since = int(json.loads(known)["version"])
        rows = parquet.read_table(f"{root}/{LOG}/{since:020d}.checkpoint.parquet", columns=["txn"], filesystem=files)
        found = {row["appId"]: row["version"] for row in rows.column("txn").to_pylist() if row}
    for version, path in _commits(files, f"{root}/{LOG}"):
        if version > since:
            for line in (text_of(files, path) or "").splitlines():
                action = json.loads(line).get("txn")
                if action:
                    found[action["appId"]] = action["version"]
    return found


def sync(uri: str, paths: Iterable[str], version: int) -> None:
    """Sync files of a local table, its commits after `version`, and the folders of all of them."""
    files, root = _local(uri)
    if files is None:
        return
    commits = {path for number, path in _commits(files, f"{root}/{LOG}") if number > version}
    synced = {f"{root}/{path}" for path in paths} | commits
    folders = {str(Path(path).parent) for path in synced} | {root, str(Path(root).parent)}
    for path in (*synced, *sorted(folders, reverse=True)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def repair(uri: str) -> str:
    """Remove the last commit of a local table if a power cut tore it. Return the name of its file, or "".

    Such a commit was never synced, so nothing of it was acked. Only one process at a time may call this.
    """
    files, root = _local(uri)
    if files is None:
        return ""
    commits = _commits(files, f"{root}/{LOG}")
    if not commits or _is_whole(files, commits[-1][1]):
        return ""
    torn = commits[-1][1]
    os.replace(torn, f"{torn}.torn")
    return torn


def _local(uri: str) -> tuple[fs.FileSystem | None, str]:
    """Return the file system and the path of a table on a local disk; no file system for any other."""
    from pyarrow import fs

    from curbstone.spark.parts import filesystem

    files, root = filesystem(uri)
    return files if isinstance(files, fs.LocalFileSystem) else None, root


def _is_whole(files: fs.FileSystem, path: str) -> bool:
    from curbstone.spark.parts import text_of

    try:
        lines = (text_of(files, path) or "").splitlines()
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def _commits(files: fs.FileSystem, folder: str) -> list[tuple[int, str]]:
    """Return the version and the path of each commit in a log, in order."""
    from pyarrow import fs

    found = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    named = [(match, info.path) for info in found if (match := _COMMIT.fullmatch(info.base_name))]
    return sorted((int(match[1]), path) for match, path in named)
