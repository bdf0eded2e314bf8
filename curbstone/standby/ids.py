"""After a promotion that may have lost messages, no id is given again that clients may have seen.

Each queue goes on so far above what it has that no client can have seen an id from there on. The numbers are in a file
`ids` beside the queues, which belongs to the stream, until each queue has stored a message above its number.
"""

from __future__ import annotations

import json

from curbstone.core.disk import file_contents, remove_file, replace_file
from curbstone.core.engine.broker import Broker
from curbstone.standby.state_files import StateFiles

FILE = "ids"
GAP = 1 << 24
"""More than a queue is given in the time in which a copy can be behind; ranges of ids have counts of 32 bits."""


def skip_ids(broker: Broker) -> None:
    """Have each queue go on where it may. Blocks; before anything is served."""
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
