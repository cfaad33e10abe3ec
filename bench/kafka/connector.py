"""Spark's own Kafka connector: its jars, a session that has them, and a read that either connector can make.

``python -m bench.kafka.connector FORMAT SERVERS TOPIC`` starts a session, makes its first read and prints the seconds
of both. In the first read Python workers start or the connector's classes are loaded, and the JVM compiles Spark's own
code, so it can only be measured in a new JVM.
"""

import json
import sys
import time

from pyspark.sql import SparkSession

from bench.kafka.maven_jars import maven_jars
from bench.spark_session import session

VERSION = "4.2.0"
"""The newest in Maven Central. Spark 4.3, which pyspark is, has none there; this one runs in it."""
_TOKENS_VERSION = "4.1.0-preview1"
"""Of the part for delegation tokens, which nothing here uses. Not every repository has a newer one."""
_CONNECTOR, _TOKENS = "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"


def connector_session() -> SparkSession:
    """The session of this process, with ``format("kafka")`` beside ``format("skep")``."""
    wanted = [f"org.apache.spark:{_CONNECTOR}:{VERSION}", f"org.apache.spark:{_TOKENS}:{_TOKENS_VERSION}"]
    # All else that the connector needs is in pyspark, in pyspark's version.
    jars = maven_jars(f"spark-connector-{VERSION}", wanted, [_CONNECTOR, _TOKENS, "kafka-clients", "commons-pool2"])
    return session(",".join(sorted(str(path) for path in jars.glob("*.jar"))))


def read_seconds(source: str, servers: str, topic: str) -> tuple[float, int, int]:
    """Seconds of a query over all rows, planning included; how many rows it read, and the bytes of their values."""
    spark = connector_session()
    begun = time.perf_counter()
    rows = spark.read.format(source).options(**{"kafka.bootstrap.servers": servers, "subscribe": topic}).load()
    [(count, size)] = rows.selectExpr("count(*)", "sum(length(value))").collect()
    return time.perf_counter() - begun, count, size


def main() -> None:
    source, servers, topic = sys.argv[1:]
    begun = time.perf_counter()
    spark = connector_session()
    started_s = time.perf_counter() - begun
    seconds, count, size = read_seconds(source, servers, topic)
    print(json.dumps({"session_s": started_s, "read_s": seconds, "count": count, "size": size}))
    spark.stop()


if __name__ == "__main__":
    main()
