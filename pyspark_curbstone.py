"""Where Spark looks for `format("curbstone")`: it imports every installed module named pyspark_*, so this is small.

`from pyspark_curbstone import register` and `register(spark)` do the same for sessions that can't search, such as
those that run from a checkout.
"""

from __future__ import annotations

from curbstone.spark.source import CurbstoneDataSource as DefaultSource
from curbstone.spark.source import register

__all__ = ["DefaultSource", "register"]
