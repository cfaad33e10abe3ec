"""What tests of pipelines share: the command run as a user runs it, a topic read to its end, a table from Parquet."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pyarrow.dataset

ROOT = Path(__file__).parents[2]
RUN_TIMEOUT_S = 400.0
# Half of what a Spark of a minute computes is the optimizing compiler's work, for loops that end before it does.
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Record(NamedTuple):
    key: str | None
    value: str | None
    headers: dict[str, str]


def environment() -> dict[str, str]:
    """Of a command run from the sources; Spark's Python workers get it from there."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200", "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA}


def skep(*arguments: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "skep.cli.main", *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, env=environment(), check=False
    )


def done(*arguments: str, text: str | None = None) -> str:
    """The output of a command that has to succeed."""
    ran = skep(*arguments, text=text)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def load(bootstrap: str, topic: str, path: Path, *, keyed: bool = True) -> None:
    separator = ("--key-separator", "\\t") if keyed else ()
    done("produce", topic, *separator, "--file", str(path), "--bootstrap-server", bootstrap)


def records(bootstrap: str, topic: str) -> list[Record]:
    """All committed records of ``topic``, partition by partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        read: list[Record] = []
        for partition in sorted(partitions):
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(30)
                assert message is not None, f"{topic}-{partition} has no end"
                if message.error() is not None:
                    assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                    break
                headers = {name: value.decode() for name, value in message.headers() or ()}
                read.append(Record(_text(message.key()), _text(message.value()), headers))
        return read
    finally:
        consumer.close()


def _text(field: bytes | None) -> str | None:
    return None if field is None else field.decode()


def table(project: Path, name: str) -> list[tuple[Any, ...]]:
    """The rows of a pipeline's table, sorted, as any reader of Parquet finds them."""
    files = pyarrow.dataset.dataset(project / "pipeline-storage" / "tables" / name, format="parquet")
    return sorted(tuple(row.values()) for row in files.to_table().to_pylist())
