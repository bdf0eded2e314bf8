"""The module in which Spark finds `format("curbstone")`. Spark imports every installed module named pyspark_*.

It is small, because every PySpark process imports it. Sessions that can't find it, such as those run from a checkout,
can call `register(spark)` after `from pyspark_curbstone import register`.
"""

from __future__ import annotations

from curbstone.spark.source import CurbstoneDataSource as DefaultSource
from curbstone.spark.source import register

__all__ = ["DefaultSource", "register"]
