"""The changes of a database table, from the topic ``customers.changes``, as a table with one row for each change.

The key of a record is the customer's id, so the changes of one customer are in one partition, in order.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame

from pyspark_skep.parsing import good_rows, parse_json

BOOTSTRAP = spark.conf.get("skep.bootstrap")
CHANGE = "op STRING NOT NULL, id BIGINT NOT NULL, name STRING, city STRING"


@dp.temporary_view
def new_changes() -> DataFrame:
    records = (
        spark.readStream.format("skep")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "customers.changes")
        .option("startingOffsets", "earliest")
        .load()
    )
    return good_rows(parse_json(records, CHANGE), "offset")


@dp.table
def changes() -> DataFrame:
    return spark.readStream.table("new_changes")
