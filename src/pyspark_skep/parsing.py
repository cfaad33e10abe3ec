"""Parses values into columns, JSON and Avro by a schema, and turns rows that do not fit into dead letters.

    records = spark.readStream.format("skep").option("subscribe", "orders")...load()
    parsed = parse_json(records, "id BIGINT NOT NULL, amount DOUBLE")
    good_rows(parsed)      # the fields as columns
    dead_letters(parsed)   # key, value, headers: to be written with format("skep") and includeHeaders

Spark's ``from_json`` parses JSON inside the JVM, but does not say what was wrong: in its permissive mode a bad row is a
row of nulls, in the other it ends the query. So ``parse_*`` adds a column ``error``: null for a good row, else one
sentence. Avro is decoded in Python workers (``avro.py``), because Spark's decoder needs a jar that its wheel lacks.

A row is bad if its value is null, if it is not JSON or Avro of the schema, if a field does not have the schema's type,
or if a NOT NULL field is missing or null. Fields that the schema does not name are allowed.

Columns ``data`` and ``error`` that the records already have are not replaced: rename them first.

Left out: a check that Avro bytes belong to the schema. Avro carries no types, so bytes of another schema may decode.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_skep.parse.avro import NotAvro, read_whole, reader_of, type_of
from pyspark_skep.parse.ddl import Field, fields_of

DATA = "data"
ERROR = "error"
DEAD_LETTER_HEADERS = ("dlq.reason", "dlq.topic", "dlq.partition", "dlq.offset", "dlq.timestamp")
"""The headers that a dead letter gets in addition to its own. All are text; the timestamp is in milliseconds."""
_CORRUPT = "_corrupt_record"
_PARSED, _REASON = "_parsed", "_reason"
"""Internal columns. All columns are made by select: withColumn and drop make Spark resolve tables at once, and in a
pipeline it would then take a table of the previous run for the one that this run is about to fill."""
_CONFLUENT_PREFIX_BYTES = 5
_SHOWN_CHARACTERS = 80


def parse_json(records: DataFrame, schema: str | StructType) -> DataFrame:
    """Returns ``records`` with the columns ``data``, a struct of ``schema`` (DDL or StructType), and ``error``."""
    fields = fields_of(schema)
    text = F.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    with_corrupt = (
        f"{schema}, {_CORRUPT} STRING"
        if isinstance(schema, str)
        else StructType([*schema.fields]).add(_CORRUPT, "string")
    )
    whole = F.from_json(text, with_corrupt, options)
    parsed = records.select("*", whole.alias(_PARSED))
    data = F.col(_PARSED)
    # from_json stops at the end of the object and takes the first element of an array. The brackets reveal both.
    values = F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))), F.lit(0))
    misfit = data.isNull() | data[_CORRUPT].isNotNull()
    error = (
        F.when(F.col("value").isNull(), F.lit("the value is null"))
        .when(~F.is_valid_utf8(F.col("value").cast("binary")), F.lit("the value is not UTF-8"))
        .when(values != 1, F.concat(F.lit("not JSON: "), _shown(text)))
        .when(~text.rlike(r"^\s*\{"), F.concat(F.lit("not a JSON object: "), _shown(text)))
        .when(misfit, _misfits(fields, text))
    )
    for path, required in _required(fields):
        error = error.when(required, F.lit(f"field '{path}' is missing"))
    checked = parsed.select("*", error.alias(_REASON))
    good = F.when(F.col(_REASON).isNull(), data.dropFields(_CORRUPT))
    rest = F.expr(f"* EXCEPT ({_PARSED}, {_REASON})")
    return checked.select(rest, good.alias(DATA), F.col(_REASON).alias(ERROR))


def parse_avro(records: DataFrame, schema: str, *, confluent: bool = False) -> DataFrame:
    """Does the same as ``parse_json`` for Avro. ``schema`` is a record schema in Avro's JSON.

    With ``confluent`` a value begins with a zero and the four bytes of a schema id, as serializers with a schema
    registry write it. They are removed; the id is not looked up.
    """
    written: Any = json.loads(schema)
    if not isinstance(written, dict) or written.get("type") != "record":
        raise ValueError("the Avro schema of a topic's values must be a record")
    # type_of comes first: it refuses a schema that is not supported.
    result = StructType().add(DATA, type_of(written)).add(ERROR, "string")
    reader, prefix = reader_of(written), _CONFLUENT_PREFIX_BYTES if confluent else 0
    not_avro = f"not Avro of the schema '{written.get('name', '')}'"

    def decode(value: bytes | None) -> dict[str, Any]:
        if value is None:
            return {DATA: None, ERROR: "the value is null"}
        if confluent and (len(value) < prefix or value[0] != 0):
            return {DATA: None, ERROR: "no schema id before the Avro"}
        try:
            return {DATA: read_whole(reader, bytes(value), prefix), ERROR: None}
        except NotAvro:
            return {DATA: None, ERROR: not_avro}

    decoded = records.select("*", F.udf(decode, result, useArrow=True)(F.col("value")).alias(_PARSED))
    return decoded.select(F.expr(f"* EXCEPT ({_PARSED})"), f"{_PARSED}.{DATA}", f"{_PARSED}.{ERROR}")


BAD_ROWS = "skep_bad_rows"
"""How the names of the metrics begin that count the rows that ``good_rows`` leaves out."""
_numbers = itertools.count(1)


def good_rows(parsed: DataFrame, *origin: str) -> DataFrame:
    """Returns the fields of the rows without an error as columns, after the record columns that ``origin`` names.

    In the definition of a pipeline the rows with an error are counted, as an observed metric, which ``skep pipeline
    run`` shows. Not elsewhere: Spark moves no filter and drops no column across a metric.
    """
    if _is_definition():
        # A number, because two metrics of a query must not have the same name.
        bad = F.count_if(F.col(ERROR).isNotNull())
        parsed = parsed.observe(f"{BAD_ROWS}_{next(_numbers)}", bad.alias(BAD_ROWS))
    return parsed.where(F.col(ERROR).isNull()).select(*origin, f"{DATA}.*")


def _is_definition() -> bool:
    """Returns whether a declarative pipeline is being defined. Its module is imported then."""
    module = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if module is None:
        return False
    try:
        module.get_active_graph_element_registry()
    except PySparkRuntimeError:
        return False
    return True


def dead_letters(parsed: DataFrame, *, headers: bool = False) -> DataFrame:
    """Returns the rows with an error as records: key and value unchanged, the reason and the origin as headers.

    Set ``headers`` if the records were read with ``includeHeaders``: their headers are kept, before the added ones. The
    columns are those that ``format("skep")`` writes.
    """
    facts = {
        "dlq.reason": F.col(ERROR),
        "dlq.topic": F.col("topic"),
        "dlq.partition": F.col("partition").cast("string"),
        "dlq.offset": F.col("offset").cast("string"),
        "dlq.timestamp": F.unix_millis(F.col("timestamp")).cast("string"),
    }
    ours = F.array(
        *(F.struct(F.lit(name).alias("key"), F.encode(text, "UTF-8").alias("value")) for name, text in facts.items())
    )
    # The columns of a DataFrame cannot be inspected inside a pipeline's query function, hence the parameter.
    carried = F.concat(F.coalesce(F.col("headers"), F.slice(ours, 1, 0)), ours) if headers else ours
    return parsed.where(F.col(ERROR).isNotNull()).select("key", "value", carried.alias("headers"))


def _misfits(fields: Sequence[Field], text: Column) -> Column:
    """Returns the error for JSON that does not fit: it names the fields whose value exists but became null."""
    named = [
        F.when(
            raw.isNotNull() & F.col(_PARSED)[field.name].isNull(),
            F.concat(F.lit(f"field '{field.name}' is not {field.type_name}: "), _shown(raw)),
        )
        for field in fields
        for raw in (F.get_json_object(text, f"$['{field.name}']"),)
    ]
    return F.coalesce(F.nullif(F.concat_ws("; ", *named), F.lit("")), F.lit("the value does not fit the schema"))


def _required(fields: Sequence[Field], holder: tuple[str, ...] = ()) -> Iterator[tuple[str, Column]]:
    """Yields the paths of required fields, each with the condition that it is missing while its parent exists."""
    for field in fields:
        path = (*holder, field.name)
        if field.required:
            missing = _at(path).isNull()
            yield ".".join(path), missing & _at(holder).isNotNull() if holder else missing
        yield from _required(field.fields, path)


def _at(path: tuple[str, ...]) -> Column:
    column = F.col(_PARSED)
    for name in path:
        column = column[name]
    return column


def _shown(text: Column) -> Column:
    cut = F.substring(text, 1, _SHOWN_CHARACTERS)
    return F.when(F.length(text) > _SHOWN_CHARACTERS, F.concat(cut, F.lit("..."))).otherwise(cut)
