"""A program on Spark Connect: the session is a client, and Spark runs in a server of its own, here on loopback.

python connect.py URL FOLDER; the last line of its output is what it found, in JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from curbstone.spark.archive import archive
from curbstone.spark.failure import last_line


def main(url: str, folder: str) -> None:
    settings = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    def read(queue: str) -> int:
        return int(spark.read.format("curbstone").options(url=url, queue=queue, token="s3cr3t").load().count())

    found: dict[str, object] = {"session": type(spark).__module__}
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("curbstone").options(url=url, queue="shop/in").mode("append").save()
    found["written"] = read("shop/in")
    stream = spark.readStream.format("curbstone").options(url=url, queue="shop/in", groupId="copy").load()
    target = {"url": url, "queue": "shop/out", "checkpointLocation": f"{folder}/check"}
    query = stream.select("body").writeStream.format("curbstone").options(**target).trigger(availableNow=True).start()
    query.awaitTermination()
    found["copied"] = read("shop/out")
    found["archived"] = archive(spark, f"{folder}/lake", {"url": url, "queues": "shop/in"}, once=True).messages
    try:
        read("shop/none")
    except Exception as error:
        found["error"] = last_line(error)
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
