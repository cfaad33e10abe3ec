"""The fields of a schema in DDL, found without asking Spark."""

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from pyspark_skep.parse.ddl import Field, fields_of


def test_names_types_and_what_must_be_there_are_found() -> None:
    text = "id BIGINT NOT NULL, price DECIMAL(10, 2), `a, b` string not null COMMENT 'x, y', m MAP<STRING, INT>"
    assert fields_of(text) == (
        Field("id", "BIGINT", True, ()),
        Field("price", "DECIMAL(10, 2)", False, ()),
        Field("a, b", "STRING", True, ()),
        Field("m", "MAP", False, ()),
    )


def test_fields_of_a_struct_are_found_in_it() -> None:
    [field] = fields_of("at STRUCT<x: INT NOT NULL, y: STRUCT<z: ARRAY<INT>>> NOT NULL")
    inner = (Field("x", "INT", True, ()), Field("y", "STRUCT", False, (Field("z", "ARRAY", False, ()),)))
    assert field == Field("at", "STRUCT", True, inner)


def test_a_struct_type_says_the_same() -> None:
    schema = StructType().add("id", IntegerType(), nullable=False).add("in", StructType().add("a", StringType(), False))
    assert fields_of(schema) == fields_of("id INT NOT NULL, in STRUCT<a: STRING NOT NULL>")


@pytest.mark.parametrize("text", ["", "id", "id INT,", "id INT,, b INT"])
def test_a_field_without_name_or_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME TYPE"):
        fields_of(text)
