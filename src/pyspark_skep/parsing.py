"""Values as columns: JSON and Avro by a schema, with the rows that do not fit it kept and sent to a dead-letter topic.

    records = spark.readStream.format("skep").option("subscribe", "orders")...load()
    parsed = parse_json(records, "id BIGINT NOT NULL, amount DOUBLE")
    good_rows(parsed)      # the fields as columns
    dead_letters(parsed)   # key, value, headers: to be written with format("skep") and includeHeaders

JSON is parsed by Spark's ``from_json``, inside the JVM. What it lacks is to say what was wrong: in its permissive mode
a bad row is a row of nulls, in the other it ends the query. So ``parse_*`` adds a column ``error``: null if it is good,
else one sentence. Avro is decoded in Python workers (``avro.py``): Spark's own needs a jar that its wheel lacks.

What is bad: a null value; what is not JSON or Avro of the schema; a field that does not have the schema's type; a
field that the schema says is NOT NULL and that is missing or null. Not bad: fields that the schema does not name.

Columns ``data`` and ``error`` that the records have already are not replaced: rename them first.

Left out: that Avro bytes belong to the schema at all. Avro carries no types: bytes of another schema may well decode.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_skep.parse.avro import NotAvro, read_whole, reader_of, type_of
from pyspark_skep.parse.ddl import Field, fields_of

DATA = "data"
ERROR = "error"
DEAD_LETTER_HEADERS = ("dlq.reason", "dlq.topic", "dlq.partition", "dlq.offset", "dlq.timestamp")
"""What a dead letter carries besides its own headers; the timestamp in milliseconds, all as text."""
_CORRUPT = "_corrupt_record"
_PARSED, _REASON = "_parsed", "_reason"
"""Not of the result. All columns are made by select: withColumn and drop have Spark look at once what there is, and in
a pipeline a table of the run before is then taken for the one that this run is about to fill."""
_CONFLUENT_PREFIX_BYTES = 5
_SHOWN_CHARACTERS = 80


def parse_json(records: DataFrame, schema: str | StructType) -> DataFrame:
    """``records`` with the columns ``data``, a struct by ``schema`` (a DDL string or a StructType), and ``error``."""
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
    # from_json stops reading at the end of the object and takes the first of an array. In brackets neither can hide.
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
    """As ``parse_json``; ``schema`` is a record in Avro's JSON.

    With ``confluent`` a value begins with a zero and four bytes of a schema's id, as serializers with a schema registry
    write it. They are cut off; the id is not looked up.
    """
    written: Any = json.loads(schema)
    if not isinstance(written, dict) or written.get("type") != "record":
        raise ValueError("the Avro schema of a topic's values has to be a record")
    # The type first: it refuses a schema that cannot be read.
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


def good_rows(parsed: DataFrame, *origin: str) -> DataFrame:
    """The fields of the rows without an error as columns, after those columns of the record that ``origin`` names."""
    return parsed.where(F.col(ERROR).isNull()).select(*origin, f"{DATA}.*")


def dead_letters(parsed: DataFrame, *, headers: bool = False) -> DataFrame:
    """The rows with an error as records: key and value untouched, the reason and the origin as headers.

    With ``headers`` the records were read with ``includeHeaders``, and what they had stays, before ours. The columns
    are those that ``format("skep")`` writes; write with ``includeHeaders``.
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
    # Whether there is such a column cannot be asked of a DataFrame inside a pipeline's query function.
    carried = F.concat(F.coalesce(F.col("headers"), F.slice(ours, 1, 0)), ours) if headers else ours
    return parsed.where(F.col(ERROR).isNotNull()).select("key", "value", carried.alias("headers"))


def _misfits(fields: Sequence[Field], text: Column) -> Column:
    """The sentence for JSON that does not fit: the fields whose value is there and became null."""
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
    """The paths of fields that must be there, each with the condition that it is not while what holds it is."""
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
