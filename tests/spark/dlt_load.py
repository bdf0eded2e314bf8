"""Loads a queue into DuckDB with dlt: python dlt_load.py URL QUEUE DATABASE FOLDER. Prints how many rows there are."""

from __future__ import annotations

import sys

import dlt
import duckdb

from curbstone.dlt import messages

url, queue, database, folder = sys.argv[1:]
destination = dlt.destinations.duckdb(database)
pipeline = dlt.pipeline("test", pipelines_dir=folder, destination=destination, dataset_name="queues")
pipeline.run(messages(queue, server=url))
with duckdb.connect(database) as base:
    query = "SELECT count(*), count(DISTINCT seq), min(headers), min(body) FROM queues.messages"
    print(base.execute(query).fetchall()[0])
