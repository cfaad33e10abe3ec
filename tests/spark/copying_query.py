"""A streaming query from topic to topic as a program of its own, to be killed and started again.

    python -m tests.spark.copying_query BOOTSTRAP INPUT OUTPUT CHECKPOINT TASKS

Prints the number of each epoch that is done. Ends when the input is at its end. The first attempt of a task fails here
and there, so that attempts that have written rows are tried again.
"""

import sys

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

FAILS_EVERY = 5


class _Epochs(StreamingQueryListener):
    def onQueryStarted(self, event: object) -> None:
        print("started", flush=True)

    def onQueryProgress(self, event: object) -> None:
        print("epoch", event.progress.batchId, flush=True)  # type: ignore[attr-defined]

    def onQueryIdle(self, event: object) -> None:
        pass

    def onQueryTerminated(self, event: object) -> None:
        pass


def failing(batches):  # type: ignore[no-untyped-def]
    """Rows as they are; when some have gone out, the first attempt of some tasks ends."""
    context = TaskContext.get()
    epoch = int(context.getLocalProperty("streaming.sql.batchId"))
    yield from batches
    if context.attemptNumber() == 0 and (epoch + context.partitionId()) % FAILS_EVERY == 0:
        raise RuntimeError("this attempt was made to fail")


def main(bootstrap: str, source: str, sink: str, checkpoint: str, tasks: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.streams.addListener(_Epochs())
    rows = (
        spark.readStream.format("skep")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 60)
        .load()
        .select("key", "value")
    )
    query = (
        rows.repartition(int(tasks))
        .mapInArrow(failing, "key binary, value binary")
        .writeStream.format("skep")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
