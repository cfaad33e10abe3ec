"""Topics as tables for ``skep sql``: which topics a query names, and the view that Spark gets for each.

A view has a column for each field of the JSON in the values, and these, which every record has:

==============  ===========================================================
``_key``        the key, as text
``_value``      the value, as text, also where it is not JSON
``_partition``  the partition
``_offset``     the offset in it
``_timestamp``  when the record was made, or appended, as the topic is set
==============  ===========================================================

A field of one of these names is left out; of fields that differ in case only, one is there. Values that are not JSON,
or do not fit, have nulls in their fields.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from skep.cli import output
from skep.cli.failures import UsageError

RECORD_COLUMNS = ("_key", "_value", "_partition", "_offset", "_timestamp")
SAMPLED_RECORDS = 10_000
"""From so many records of each partition the fields are inferred when no schema is given."""
_NOT_NAMES = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAMES = re.compile(r"`((?:[^`]|``)+)`|([^\W\d]\w*)")
_CORRUPT = "_corrupt_record"


def topics_named(query: str, topics: Collection[str]) -> dict[str, str]:
    """The names in ``query`` that are topics, with the topic each means.

    A name that turns out to be a column's costs a view that nobody uses. Spark does not tell upper from lower case in
    names, so a name means the topic that is written the same, else the one that differs by case only.
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
    """``orders=id INT, price DOUBLE`` for each topic that has one."""
    schemas: dict[str, str] = {}
    for text in texts or ():
        topic, equals, schema = text.partition("=")
        if not equals or not topic.strip() or not schema.strip():
            raise UsageError(f"a schema is written TOPIC='name TYPE, ...', not '{text}'")
        schemas[topic.strip()] = schema.strip()
    return schemas


def columns_of(fields: Sequence[str]) -> tuple[list[str], list[str]]:
    """The fields that become columns, and those that cannot because Spark takes their names for one that is there."""
    columns: dict[str, str] = {}
    twins: list[str] = []
    # Of product and Product the plainer one: what is written in lower case comes last in the order of characters.
    for field in sorted(fields, reverse=True):
        if field.lower() in (*RECORD_COLUMNS, _CORRUPT):
            continue
        if columns.setdefault(field.lower(), field) != field:
            twins.append(field)
    kept = set(columns.values())
    return [field for field in fields if field in kept], sorted(twins)


def add_view(spark: Any, name: str, topic: str, options: Mapping[str, str], schema: str | None) -> None:
    """A temporary view ``name`` on all that ``topic`` holds now."""
    from pyspark.sql import functions as F

    records = spark.read.format("skep").options(**options).option("subscribe", topic).load()
    text = records["value"].cast("string")
    fields = _parse(schema) if schema is not None else _inferred(spark, records, text)
    columns, twins = columns_of(fields.fieldNames())
    if twins:
        output.note(
            f"Topic {topic} has fields that differ in case only; no columns, but in _value: {', '.join(twins)}."
        )
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
    """What Spark makes of the JSON in a sample. By way of the JVM: Python would go through an RDD of its strings."""
    from pyspark.sql.types import StructType

    sample = records.select(text.alias("value")).where("value is not null").limit(SAMPLED_RECORDS)
    strings = getattr(sample._jdf, "as")(spark._jvm.org.apache.spark.sql.Encoders.STRING())
    inferred = spark._jsparkSession.read().json(strings).schema()
    return StructType.fromJson(json.loads(inferred.json()))
