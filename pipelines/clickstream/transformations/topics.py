"""The counts as topics: ``page-views`` and ``sessions``."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

BOOTSTRAP = spark.conf.get("skep.bootstrap")

dp.create_sink("page_views_topic", "skep", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "page-views"})
dp.create_sink("sessions_topic", "skep", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "sessions"})


@dp.append_flow(target="page_views_topic")
def page_views_to_topic() -> DataFrame:
    views = spark.readStream.table("page_views")
    return views.select(F.col("page").alias("key"), F.to_json(F.struct("*")).alias("value"))


@dp.append_flow(target="sessions_topic")
def sessions_to_topic() -> DataFrame:
    visits = spark.readStream.table("sessions")
    return visits.select(F.col("user").alias("key"), F.to_json(F.struct("*")).alias("value"))
