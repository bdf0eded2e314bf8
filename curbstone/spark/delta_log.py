"""Functions for the log of a Delta table that `deltalake` lacks: all application transactions, and syncs.

`deltalake` does not sync what it writes to a local disk. So `sync` is called before archived messages are acked, for
all commits since the last one known to be synced, including those of a compaction. And `repair` removes commits that a
power cut has damaged before that. Object stores confirm only durable data.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from curbstone.core.disk import sync_path

if TYPE_CHECKING:
    from pyarrow import fs

LOG = "_delta_log"
SYNCED = "curbstoneSynced"
"""The member of a commit's information with the version up to which its process had synced the table before."""
_COMMIT = re.compile(r"(\d{20})\.json")
_LAST, _CHECKPOINT = "_last_checkpoint", ".checkpoint.parquet"
_PARQUET = b"PAR1"


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


def durable(uri: str) -> int:
    """Return the version up to which a local table was synced, according to its commits; -1 if none records it."""
    files, root = _local(uri)
    if files is None:
        return -1
    for _, path in reversed(_commits(files, f"{root}/{LOG}")):
        for action in _actions(files, path) or ():
            if SYNCED in action.get("commitInfo", {}):
                return int(action["commitInfo"][SYNCED])
    return -1


def sync(uri: str, since: int) -> int:
    """Sync the commits of all writers of a local table after the version `since`, with the files that they add.

    Also sync the checkpoints of the log, and the folders of all of them. Return the last version.
    """
    files, root = _local(uri)
    if files is None:
        return since
    log = f"{root}/{LOG}"
    commits = [(number, path) for number, path in _commits(files, log) if number > since]
    added = {path for _, commit in commits for path in _added(_actions(files, commit) or (), root)}
    synced = [*added, *_checkpoints(files, log), *(path for _, path in commits)]
    folders = {str(Path(path).parent) for path in synced} | {root, str(Path(root).parent)}
    for path in (*synced, *sorted(folders, reverse=True)):
        with suppress(FileNotFoundError):  # a later commit has replaced the file, and it was removed
            sync_path(path)
    return max([since, *(number for number, _ in commits)])


def repair(uri: str) -> str:
    """Set aside the commits of a local table that a power cut has damaged, with all later ones.

    A commit is damaged if it, or a file that it adds, is incomplete. Only commits that were never synced are checked,
    so none of them was acked. Return the name of the first one's file, or "". Only one process at a time may call
    this.
    """
    files, root = _local(uri)
    if files is None:
        return ""
    log = f"{root}/{LOG}"
    for path in _checkpoints(files, log):
        if not _is_checkpoint(files, path):
            os.replace(path, f"{path}.torn")
    commits = _commits(files, log)
    known = durable(uri)
    if known < 0:  # an earlier release synced each commit before the next
        commits = commits[-1:]
    commits = [(number, path) for number, path in commits if number > known]
    actions = [_actions(files, path) for _, path in commits]
    gone = {action["remove"]["path"] for some in actions for action in some or () if "remove" in action}
    for place, some in enumerate(actions):
        if some is None or not all(_is_whole(action["add"], root) for action in _adds(some, but=gone)):
            first = commits[place][0]
            for _, path in commits[place:]:
                os.replace(path, f"{path}.torn")
            for path in _checkpoints(files, log):
                if _version_of(files, path) >= first:
                    os.replace(path, f"{path}.torn")
            return commits[place][1]
    return ""


def _actions(files: fs.FileSystem, path: str) -> list[dict[str, Any]] | None:
    """Return the actions of a commit, or None if its file is incomplete."""
    from curbstone.spark.parts import text_of

    try:
        found = [json.loads(line) for line in (text_of(files, path) or "").splitlines()]
    except ValueError:
        return None
    return found if found and all(isinstance(action, dict) for action in found) else None


def _adds(actions: Iterable[dict[str, Any]], but: Collection[str] = ()) -> list[dict[str, Any]]:
    return [action for action in actions if "add" in action and action["add"]["path"] not in but]


def _added(actions: Iterable[dict[str, Any]], root: str) -> list[str]:
    return [f"{root}/{unquote(action['add']['path'])}" for action in _adds(actions)]


def _is_whole(add: dict[str, Any], root: str) -> bool:
    """Return whether a file has its expected size, and ends as a Parquet file does."""
    path = f"{root}/{unquote(add['path'])}"
    return os.path.isfile(path) and os.path.getsize(path) == add["size"] and _ends_well(path)


def _ends_well(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - len(_PARQUET)))
        return file.read() == _PARQUET


def _checkpoints(files: fs.FileSystem, folder: str) -> list[str]:
    """Return the paths of a log's checkpoints, and of the file that names the last one."""
    from pyarrow import fs

    found = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return [info.path for info in found if info.base_name == _LAST or info.base_name.endswith(_CHECKPOINT)]


def _is_checkpoint(files: fs.FileSystem, path: str) -> bool:
    if path.endswith(_CHECKPOINT):
        return _ends_well(path)
    try:
        return os.path.isfile(f"{Path(path).parent}/{_version_of(files, path):020d}{_CHECKPOINT}")
    except (ValueError, KeyError, TypeError):
        return False


def _version_of(files: fs.FileSystem, path: str) -> int:
    """Return the version of a checkpoint, or of the last one by the file that names it."""
    from curbstone.spark.parts import text_of

    if path.endswith(_CHECKPOINT):
        return int(Path(path).name[:20])
    return int(json.loads(text_of(files, path) or "")["version"])


def _local(uri: str) -> tuple[fs.FileSystem | None, str]:
    """Return the file system and the path of a table on a local disk; no file system for any other."""
    from pyarrow import fs

    from curbstone.spark.parts import filesystem

    files, root = filesystem(uri)
    return files if isinstance(files, fs.LocalFileSystem) else None, root


def _commits(files: fs.FileSystem, folder: str) -> list[tuple[int, str]]:
    """Return the version and the path of each commit in a log, in order."""
    from pyarrow import fs

    found = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    named = [(match, info.path) for info in found if (match := _COMMIT.fullmatch(info.base_name))]
    return sorted((int(match[1]), path) for match, path in named)
