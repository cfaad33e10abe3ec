"""Fields and types, found as Spark finds them. tests/spark/test_sql_engines.py compares the same values with Spark."""

import json

import pytest

from skep.cli.failures import UsageError
from skep.cli.sql.value_schema import UnknownType, columns_of, inferred, parse_ddl, shown_name

INFERRED = [
    (['{"a": 1, "b": 1.5, "c": true, "d": "x"}'], "a BIGINT, b DOUBLE, c BOOLEAN, d STRING"),
    (['{"b": 1}', '{"a": 1}'], "a BIGINT, b BIGINT"),
    (['{"a": ""}'], "a STRING"),
    (['{"a": null}'], "a STRING"),
    (['{"a": null}', '{"a": 1}'], "a BIGINT"),
    (['{"a": []}'], "a ARRAY<STRING>"),
    (['{"a": [null]}', '{"a": [1]}'], "a ARRAY<BIGINT>"),
    (['{"a": {}, "b": [{}], "c": {"d": {}}}'], ""),
    (['{"a": 12345678901234567890}'], "a DECIMAL(20,0)"),
    (['{"a": 9223372036854775808}'], "a DECIMAL(19,0)"),
    (['{"a": 9223372036854775808}', '{"a": 1}'], "a DECIMAL(20,0)"),
    (['{"a": 12345678901234567890}', '{"a": 1.5}'], "a DOUBLE"),
    (['{"a": 1234567890123456789012345678901234567890123}'], "a DOUBLE"),
    (['{"a": 1}', '{"a": 1.5}'], "a DOUBLE"),
    (['{"a": 1}', '{"a": true}'], "a STRING"),
    (['{"a": [1]}', '{"a": 1}'], "a STRING"),
    (['{"a": [1, "x"]}'], "a ARRAY<STRING>"),
    (['{"a": [1]}', '{"a": [1.5]}'], "a ARRAY<DOUBLE>"),
    (['{"a": {"x": 1}}', '{"a": {"y": "s"}}'], "a STRUCT<x: BIGINT, y: STRING>"),
    (['{"a": {"x": 1}}', '{"a": 5}'], "a STRING"),
    (['{"a": {"x": 1}}', '{"a": ""}'], "a STRUCT<x: BIGINT>"),
    (['[{"a": 1}, {"b": 2}]'], "a BIGINT, b BIGINT"),
    (["[1, 2]", "17", '"text"', "null"], ""),
    (['{"": 1}'], ""),
    (['{"a b": 1}'], "`a b` BIGINT"),
]


@pytest.mark.parametrize(("values", "ddl"), INFERRED)
def test_fields_and_types_are_inferred(values: list[str], ddl: str) -> None:
    assert inferred(map(json.loads, values)).columns() == ddl


def test_a_value_of_many_levels_has_a_type_of_few() -> None:
    fields = inferred([json.loads("[" * 400 + '{"a": ' + "[" * 400 + "]" * 400 + "}" + "]" * 400)])
    assert fields.columns() == ""
    fields = inferred([{"a": json.loads("[" * 900 + "1" + "]" * 900)}])
    assert fields.columns() == "a " + "ARRAY<" * 49 + "STRING" + ">" * 49


def test_of_fields_of_a_struct_that_differ_in_case_only_one_is_kept() -> None:
    assert inferred([{"a": {"X": 1, "x": "s"}}]).columns() == "a STRUCT<x: STRING>"


def test_of_fields_that_differ_in_case_only_one_is_a_column() -> None:
    fields = ["PRODUCT", "Product", "_Offset", "_corrupt_record", "id", "product"]
    assert columns_of(fields) == (["id", "product"], ["PRODUCT", "Product"])


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("id INT, price DOUBLE", "id INT, price DOUBLE"),
        ("id integer NOT NULL COMMENT 'a, b', x long", "id INT, x BIGINT"),
        ("a: decimal, b DECIMAL(12, 2), c numeric(3)", "a DECIMAL(10,0), b DECIMAL(12,2), c DECIMAL(3,0)"),
        ("a ARRAY<ARRAY<INT>>, `b c` STRUCT<`x``y`: INT NOT NULL, z STRING>, m MAP<STRING, DATE>",
         "a ARRAY<ARRAY<INT>>, `b c` STRUCT<`x``y`: INT, z: STRING>, m MAP<STRING, DATE>"),
    ],
)  # fmt: skip
def test_ddl_is_read(text: str, ddl: str) -> None:
    assert parse_ddl(text).columns() == ddl


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id", "a type for the field id is missing"),
        ("id INT,", "a name is missing"),
        ("id INT price DOUBLE", "expected a comma after the field id, not price"),
        ("id INT, id STRING", "the field id is given twice"),
        ("a ARRAY<INT", "> is missing"),
        ("a DECIMAL(40)", "more than 38 digits"),
        ("a DECIMAL(2,3)", "more after the point"),
        ("id = INT", "unexpected '='"),
        (", id INT", "expected a name, not ,"),
    ],
)
def test_what_is_wrong_with_ddl_is_told(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_ddl(text)
    assert why in str(refused.value)


def test_a_type_that_only_spark_may_know_is_told_apart() -> None:
    with pytest.raises(UnknownType, match="the field v has the unknown type VARIANT"):
        parse_ddl("v VARIANT")


def test_names_are_shown_as_a_query_writes_them() -> None:
    assert [shown_name(name) for name in ("orders", "a.b", "a`b", "1")] == ["orders", "`a.b`", "`a``b`", "`1`"]
