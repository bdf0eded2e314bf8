"""Prevents that ids are reused after a promotion that may have lost messages.

Each queue continues with numbers so far above its last one that no client can have seen them. These are in a replicated
file `ids` beside the queues, until each queue has stored a message above its number.
"""

from __future__ import annotations

import json

from curbstone.core.disk import file_contents, remove_file, replace_file
from curbstone.core.engine.broker import Broker
from curbstone.standby.state_files import StateFiles

FILE = "ids"
GAP = 1 << 24
"""More ids than a queue can assign within the lag of a copy; ranges of ids have counts of 32 bits."""


def skip_ids(broker: Broker) -> None:
    """Have each queue skip ids. Blocks; called before serving."""
    disk = broker.disk
    queues = {f"{queue.log.uid:012x}": queue.state for queue in broker.queues()}
    least: dict[str, int] = {}
    if FILE in disk.list_dir(""):
        least = json.loads(file_contents(disk, FILE))
    files = StateFiles(disk, b"")
    if files.state.skips_ids:
        least = {uid: max(least.get(uid, 0), state.next_seq + GAP) for uid, state in queues.items()}
        replace_file(disk, FILE, json.dumps(least).encode()).close()
        files.change(skips_ids=False)
    files.close()
    lacking = {uid: seq for uid, seq in least.items() if uid in queues and queues[uid].next_seq <= seq}
    for uid, seq in lacking.items():
        queues[uid].next_seq = seq
    if least and not lacking:
        remove_file(disk, FILE)
