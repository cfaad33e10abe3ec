"""Topics as tables for ``skep sql``: the topics that a query names, and a Spark view of each.

A view has a column for each field of the JSON values, and these columns:

==============  ===========================================================
``_key``        the key as text
``_value``      the value as text, also if it is not JSON
``_partition``  the partition
``_offset``     the offset
``_timestamp``  the create or append time, by message.timestamp.type
==============  ===========================================================

A field with one of these names is left out. Of fields that differ only in case, one is kept. The fields of a value
that is not JSON or does not match the schema are null.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from skep.cli import output
from skep.cli.failures import UsageError

RECORD_COLUMNS = ("_key", "_value", "_partition", "_offset", "_timestamp")
SAMPLED_RECORDS = 10_000
"""The number of records from which fields are inferred if no schema is given."""
_NOT_NAMES = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAMES = re.compile(r"`((?:[^`]|``)+)`|([^\W\d]\w*)")
_CORRUPT = "_corrupt_record"


def topics_named(query: str, topics: Collection[str]) -> dict[str, str]:
    """Returns the names in ``query`` that are topics, with the topic of each.

    A column with the name of a topic only creates an unused view. Names in Spark are case-insensitive: a name stands
    for the topic with exactly that name, else for the only one that differs in case.
    """
    by_lower: dict[str, list[str]] = {}
    for topic in topics:
        by_lower.setdefault(topic.lower(), []).append(topic)
    named: dict[str, str] = {}
    for quoted, plain in _NAMES.findall(_NOT_NAMES.sub(" ", query)):
        name = quoted.replace("``", "`") or plain
        alike = by_lower.get(name.lower(), [])
        if name in alike:
            named[name] = name
        elif len(alike) == 1:
            named[name] = alike[0]
    return named


def given_schemas(texts: list[str] | None) -> dict[str, str]:
    """Parses the ``--schema`` options, like ``orders=id INT, price DOUBLE``."""
    schemas: dict[str, str] = {}
    for text in texts or ():
        topic, equals, schema = text.partition("=")
        if not equals or not topic.strip() or not schema.strip():
            raise UsageError(f"--schema {text}: expected TOPIC='NAME TYPE, ...'")
        schemas[topic.strip()] = schema.strip()
    return schemas


def columns_of(fields: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the fields that become columns, and those that do not because they differ from a column only in case."""
    columns: dict[str, str] = {}
    duplicates: list[str] = []
    # Of "product" and "Product" the lower-case one is kept: lower-case letters sort after upper-case ones.
    for field in sorted(fields, reverse=True):
        if field.lower() in (*RECORD_COLUMNS, _CORRUPT):
            continue
        if columns.setdefault(field.lower(), field) != field:
            duplicates.append(field)
    kept = set(columns.values())
    return [field for field in fields if field in kept], sorted(duplicates)


def add_view(spark: Any, name: str, topic: str, options: Mapping[str, str], schema: str | None) -> None:
    """Creates a temporary view ``name`` of the current records of ``topic``."""
    from pyspark.sql import functions as F

    records = spark.read.format("skep").options(**options).option("subscribe", topic).load()
    text = records["value"].cast("string")
    fields = _parse(schema) if schema is not None else _inferred(spark, records, text)
    columns, duplicates = columns_of(fields.fieldNames())
    if duplicates:
        names = ", ".join(duplicates)
        output.note(f"Topic {topic}: fields that differ from a column only in case are found in _value only: {names}.")
    data = F.from_json(text, type(fields)([fields[column] for column in columns])) if columns else None
    view = records.select(
        *((data[column].alias(column) for column in columns) if data is not None else ()),
        records["key"].cast("string").alias("_key"),
        text.alias("_value"),
        records["partition"].alias("_partition"),
        records["offset"].alias("_offset"),
        records["timestamp"].alias("_timestamp"),
    )
    view.createOrReplaceTempView("`" + name.replace("`", "``") + "`")


def _parse(schema: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(schema)


def _inferred(spark: Any, records: Any, text: Any) -> Any:
    """Returns the schema that Spark infers from a sample. Called in the JVM, because Python's API needs an RDD."""
    from pyspark.sql.types import StructType

    sample = records.select(text.alias("value")).where("value is not null").limit(SAMPLED_RECORDS)
    strings = getattr(sample._jdf, "as")(spark._jvm.org.apache.spark.sql.Encoders.STRING())
    inferred = spark._jsparkSession.read().json(strings).schema()
    return StructType.fromJson(json.loads(inferred.json()))
