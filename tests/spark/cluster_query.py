"""A streaming query from topic to topic, sent to a cluster with ``spark-submit``.

    spark-submit --master URL cluster_query.py [--registered] [--to-the-end] BOOTSTRAP INPUT OUTPUT CHECKPOINT

Runs until it is killed, or to the end of the input.
"""

import argparse

from pyspark.sql import SparkSession

ROWS_OF_AN_EPOCH = 60
TASKS = 4  # twice the cores: while the last tasks of an epoch write, the first have left their transactions open


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--registered", action="store_true")
    parser.add_argument("--to-the-end", action="store_true")
    for name in ("bootstrap", "source", "sink", "checkpoint"):
        parser.add_argument(name)
    given = parser.parse_args()
    spark = SparkSession.builder.appName("copying").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    if given.registered:
        from pyspark_skep import DefaultSource

        spark.dataSource.register(DefaultSource)
    rows = (
        spark.readStream.format("skep")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("subscribe", given.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_OF_AN_EPOCH)
        .load()
        .select("key", "value")
    )
    copying = (
        # Over the network, so that an executor that is lost takes rows with it that tasks of others need.
        rows.repartition(TASKS)
        .writeStream.format("skep")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("topic", given.sink)
        .option("checkpointLocation", given.checkpoint)
    )
    if given.to_the_end:
        copying = copying.trigger(availableNow=True)
    copying.start().awaitTermination()


if __name__ == "__main__":
    main()
