"""Clicks from the topic ``clicks``: as a table, counted by minute and page, and grouped into visits.

A minute is counted, and a visit ends, when no more clicks of it are expected: when a click two minutes after its end
has been seen. A click may be two minutes late. A later one is in the table ``clicks`` only.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_skep.parsing import good_rows, parse_json

BOOTSTRAP = spark.conf.get("skep.bootstrap")
CLICK = "user STRING NOT NULL, page STRING NOT NULL, at TIMESTAMP NOT NULL"


def from_topic() -> DataFrame:
    records = (
        spark.readStream.format("skep")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .load()
    )
    return good_rows(parse_json(records, CLICK))


@dp.table
def clicks() -> DataFrame:
    return from_topic()


# The two tables below read the topic and not the table ``clicks``: withWatermark needs the columns at once, but the
# tables of a pipeline are known only when all of its files have been read.


@dp.table
def page_views() -> DataFrame:
    in_time = from_topic().withWatermark("at", "2 minutes")
    counted = in_time.groupBy(F.window("at", "1 minute"), "page").agg(F.count("*").alias("views"))
    return counted.select(F.col("window.start").alias("minute"), "page", "views")


@dp.table
def sessions() -> DataFrame:
    """The clicks of a user with less than five minutes between them."""
    in_time = from_topic().withWatermark("at", "2 minutes")
    visits = in_time.groupBy(F.session_window("at", "5 minutes"), "user").agg(
        F.count("*").alias("clicks"), F.min("at").alias("first"), F.max("at").alias("last")
    )
    return visits.select("user", "first", "last", "clicks")
