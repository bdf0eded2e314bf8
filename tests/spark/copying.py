"""A program that archives a queue and copies it into another, small batches at a time, until it is killed.

It does not register the data source: Spark finds it by its name.

python copying.py URL FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

from curbstone.spark.archive import archive
from curbstone.spark.session import session
from tests.spark.kit import LOCAL

BATCH = {"maxOffsetsPerTrigger": "200"}


def copy(spark: Any, url: str, folder: str, *, once: bool) -> None:
    """Archive and copy: what there is, or for as long as the process runs."""
    source = {"url": url, "queue": "shop/in", "groupId": "copying", **BATCH}
    stream = spark.readStream.format("curbstone").options(**source).load().select("body")
    target = {"url": url, "queue": "shop/out", "checkpointLocation": f"{folder}/check"}
    writer = stream.writeStream.format("curbstone").options(**target)
    query = (writer.trigger(availableNow=True) if once else writer).start()
    archive(spark, f"{folder}/lake", {"url": url, "queues": "shop/in", **BATCH}, once=once, every_s=0)
    query.awaitTermination()


if __name__ == "__main__":
    with session("copying", more=LOCAL, registered=False) as opened:
        copy(opened, *sys.argv[1:], once=False)
