"""The rows that can be written: those of Spark's own Kafka sink. Other columns are ignored, as in Spark."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from skep.base.errors import OptionError

WRITTEN = ("key", "value", "topic", "partition", "headers")


def check_row_schema(schema: StructType, topic: str) -> None:
    """Raises OptionError if a column is missing or has the wrong type. ``topic`` is the option, or empty."""
    columns = {field.name: field.dataType for field in schema}
    if "value" not in columns:
        raise OptionError(
            f"rows need a column value (string or binary), but these have {', '.join(columns) or 'none'}; "
            "to_json(struct('*')) builds one from all columns"
        )
    if not topic and "topic" not in columns:
        raise OptionError("no topic is given: set the option topic, or add a column topic")
    for name in ("key", "value"):
        if name in columns and not isinstance(columns[name], StringType | BinaryType):
            raise _wrong(name, columns[name], "string or binary; cast it, or convert it with to_json")
    if not topic and not isinstance(columns["topic"], StringType):
        raise _wrong("topic", columns["topic"], "string")
    if "partition" in columns and not isinstance(columns["partition"], IntegerType):
        raise _wrong("partition", columns["partition"], "int")
    if "headers" in columns and not _are_headers(columns["headers"]):
        raise _wrong("headers", columns["headers"], "array<struct<key:string,value:binary>>")


def _are_headers(type: DataType) -> bool:
    if not isinstance(type, ArrayType) or not isinstance(type.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in type.elementType]
    return (
        [name for name, _ in fields] == ["key", "value"]
        and isinstance(fields[0][1], StringType)
        and isinstance(fields[1][1], BinaryType)
    )


def _wrong(name: str, type: DataType, expected: str) -> OptionError:
    return OptionError(f"column {name} is {type.simpleString()}, but must be {expected}")
