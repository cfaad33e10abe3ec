"""The project that ``skep pipeline init`` writes: an example with a table, a view, a sink and a dead-letter topic."""

import json
import re
from pathlib import Path
from string import Template

from skep.cli.connection import DEFAULT_BOOTSTRAP
from skep.cli.failures import CommandError

_SPEC = """\
name: $quoted
storage: pipeline-storage
configuration:
  skep.bootstrap: $bootstrap
  spark.sql.shuffle.partitions: "4"
libraries:
  - glob:
      include: transformations/**
"""

_ORDERS = '''\
"""Reads orders from a topic into a table. Invalid orders go to a dead-letter topic, large orders to their own topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_skep.parsing import dead_letters, good_rows, parse_json

BOOTSTRAP = spark.conf.get("skep.bootstrap")
ORDER = "id BIGINT NOT NULL, product STRING NOT NULL, quantity INT, price DOUBLE"


@dp.temporary_view
def parsed_orders() -> DataFrame:
    records = (
        spark.readStream.format("skep")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return parse_json(records, ORDER)


@dp.table
def orders() -> DataFrame:
    return good_rows(spark.readStream.table("parsed_orders"), "timestamp")


dp.create_sink(
    "bad_orders",
    format="skep",
    options={"kafka.bootstrap.servers": BOOTSTRAP, "topic": "orders.bad", "includeHeaders": "true"},
)


@dp.append_flow(target="bad_orders")
def to_bad_orders() -> DataFrame:
    return dead_letters(spark.readStream.table("parsed_orders"))


dp.create_sink("large_orders", format="skep", options={"kafka.bootstrap.servers": BOOTSTRAP, "topic": "orders.large"})


@dp.append_flow(target="large_orders")
def to_large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where("quantity * price >= 100")
    return large.select(F.col("id").cast("string").alias("key"), F.to_json(F.struct("*")).alias("value"))
'''

_REVENUE = """\
-- Computed from the whole table in every run.
CREATE MATERIALIZED VIEW revenue AS
SELECT product, count(*) AS orders, round(sum(quantity * price), 2) AS revenue
FROM orders
GROUP BY product
"""

_DATA = """\
{"id": 1, "product": "eggs", "quantity": 12, "price": 0.4}
{"id": 2, "product": "basket", "quantity": 1, "price": 129.0}
{"id": 3, "product": "eggs", "quantity": 300, "price": 0.38}
this is not an order
{"id": 5, "product": "hen", "quantity": "two", "price": 21.5}
{"id": 6, "product": "hen", "quantity": 2, "price": 21.5}
"""

_README = """\
# $name

A pipeline on Spark. It reads the topic `orders` and writes the table `orders` (Parquet), the view `revenue` and the
topic `orders.large`. Invalid orders go to the topic `orders.bad`, with the reason and the origin as headers.

```console
for topic in orders orders.large orders.bad; do skep topics create $$topic --if-not-exists; done
skep produce orders < data/orders.jsonl
skep pipeline validate
skep pipeline run
skep pipeline show revenue
skep consume orders.large --from-beginning
skep consume orders.bad --from-beginning
```

| file | content |
|---|---|
| `spark-pipeline.yml` | name, storage and properties; `skep.bootstrap` holds the broker addresses |
| `transformations/orders.py` | tables and topics, in Python |
| `transformations/revenue.sql` | a view, in SQL |
| `data/orders.jsonl` | six sample records, two of them invalid |
| `pipeline-storage/` | created by a run: tables (Parquet), checkpoints, `last-run.json`, `spark.log` |

A run processes the new records of the topics and ends. `skep pipeline run --continuous` goes on, `--every 1m` runs it
again each minute. `skep pipeline show revenue` prints a table, `skep pipeline graph` the flows with their last numbers.
`skep pipeline run --full-refresh-all` starts again from the first record; records already written to topics stay there.

This is a project of Spark Declarative Pipelines; Spark's guide describes the files. To use Spark's own command
(`spark-pipelines run`), set `storage` to an absolute `file://` URL and configure a persistent catalog.
"""

_FILES = {
    "spark-pipeline.yml": _SPEC,
    "transformations/orders.py": _ORDERS,
    "transformations/revenue.sql": _REVENUE,
    "data/orders.jsonl": _DATA,
    "README.md": _README,
    ".gitignore": "pipeline-storage/\n__pycache__/\n",
}


_YAML_WORDS = ("yes", "no", "on", "off", "true", "false", "null", "y", "n")


def write_project(folder: Path, bootstrap: str | None, name: str | None = None) -> Path:
    """Writes the files into ``folder``, which must be empty or not exist. It also names the project, unless given."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} already exists and is not an empty folder; choose another name")
    name = name or folder.resolve().name
    # JSON is YAML, also for names like "on" or "1.5", which are not text without quotes.
    plain = re.fullmatch(r"[A-Za-z][\w-]*", name) and name.lower() not in _YAML_WORDS
    names = {
        "name": name,
        "quoted": name if plain else json.dumps(name, ensure_ascii=False),
        "bootstrap": bootstrap or DEFAULT_BOOTSTRAP,
    }
    try:
        for path, text in _FILES.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(text).substitute(names) if "$" in text else text)
    except OSError as error:
        raise CommandError(f"cannot write to {folder}: {error.strerror}") from None
    return folder
