"""What the tests of archives share: topics with records of all kinds, and what is in a log or an archive."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

import skep as skep_package
from skep.cli.main import app

DAY_MS = 86_400_000
FIRST_MS = 1_769_817_600_000  # 2026-01-31 in UTC
SOURCES = str(Path(skep_package.__file__).parents[1])


class Killed(BaseException):
    """Stands for the end of the process: nothing is tidied up."""


def create(admin: AdminClient, partitions: int = 2, **configs: str) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    given = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=given)])[name].result(30)
    return name


def fill(bootstrap: str, topic: str, count: int, *, partitions: int = 2, days: int = 3, first: int = 0) -> None:
    """Records with and without key, value and headers; every tenth one is late by up to ``days``."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(first, first + count):
        day = (number * 7 % days) if number % 10 == 0 else number * days // (first + count)
        producer.produce(
            topic,
            None if number % 13 == 0 else b"value %d" % number,
            key=None if number % 5 == 0 else b"key %d" % (number % 50),
            partition=number % partitions,
            timestamp=FIRST_MS + day * DAY_MS + number,
            headers=[("n", b"%d" % number), ("none", None), ("n", b"")] if number % 3 == 0 else None,
        )
    assert producer.flush(60) == 0


def skep(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> str:
    result = skep(*arguments)
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    return str(result.stdout)


def in_log(bootstrap: str, topic: str) -> pa.Table:
    return skep_package.read_arrow(bootstrap, topic, headers=True).drop(["topic"])


def in_archive(lake: Path, topic: str) -> pa.Table:
    """By what the files say, as anybody would read them."""
    files = sorted((lake / f"topic={topic}").glob("date=*/*.parquet"))
    tables = [pq.ParquetFile(path).read() for path in files]
    return pa.concat_tables(tables).sort_by([("partition", "ascending"), ("offset", "ascending")])


def same_records(one: pa.Table, other: pa.Table, without: tuple[str, ...] = ()) -> bool:
    names = [name for name in one.column_names if name not in without]
    # Arrow and Parquet call the items of a list by different names.
    return bool(one.select(names).to_pylist() == other.select(names).to_pylist())
