"""Loads a queue into DuckDB with dlt: python dlt_load.py URL QUEUE DATABASE, with a folder in each line of its input.

Each line is a run with its state in that folder. Prints how many rows there are then.
"""

from __future__ import annotations

import sys

import dlt
import duckdb

from curbstone.dlt import messages

url, queue, database = sys.argv[1:]
for line in sys.stdin:
    destination = dlt.destinations.duckdb(database)
    pipeline = dlt.pipeline("test", pipelines_dir=line.strip(), destination=destination, dataset_name="queues")
    pipeline.run(messages(queue, server=url))
    with duckdb.connect(database) as base:
        query = "SELECT count(*), count(DISTINCT seq), min(headers), min(body) FROM queues.messages"
        print(base.execute(query).fetchall()[0], flush=True)
