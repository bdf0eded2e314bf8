"""SQL on archived and queued messages in a program or a notebook::

    import curbstone.sql

    base = curbstone.sql.connect("lake")
    base.sql("SELECT queue, count(*) FROM messages GROUP BY ALL").df()

It needs `pip install 'curbstone[sql]'`, and loads DuckDB and Arrow only when `connect` is called.
"""

from __future__ import annotations

from curbstone.spark.sql import connect

__all__ = ["connect"]
