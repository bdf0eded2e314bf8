"""A program that copies a queue into another as a stream, small batches at a time, until it is killed, or once.

It does not register the data source: Spark finds it by its name.

python copying.py URL CHECKPOINT once|on
"""

from __future__ import annotations

import sys

from curbstone.spark.session import session
from tests.spark.kit import LOCAL


def main(url: str, checkpoint: str, how: str) -> None:
    with session("copying", more=LOCAL, registered=False) as spark:
        source = {"url": url, "queue": "shop/in", "groupId": "copying", "maxOffsetsPerTrigger": 100}
        stream = spark.readStream.format("curbstone").options(**source).load().select("body")
        target = {"url": url, "queue": "shop/out", "checkpointLocation": checkpoint}
        writer = stream.writeStream.format("curbstone").options(**target)
        query = (writer.trigger(availableNow=True) if how == "once" else writer).start()
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
