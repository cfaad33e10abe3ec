"""The current state as the compacted topic ``customers``: the last record of a key is that customer's state.

A deleted customer is a record without a value. The broker removes the key, and later that record too.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

BOOTSTRAP = spark.conf.get("skep.bootstrap")

dp.create_sink("customers_topic", "skep", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "customers"})


@dp.append_flow(target="customers_topic")
def state_to_topic() -> DataFrame:
    state = F.when(F.col("op") != "delete", F.to_json(F.struct("id", "name", "city")))
    # There is no shuffle: a partition's rows are written in the order in which they were read.
    return spark.readStream.table("new_changes").select(F.col("id").cast("string").alias("key"), state.alias("value"))
