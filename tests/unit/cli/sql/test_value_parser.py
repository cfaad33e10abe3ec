"""JSON values of each type, as Spark's from_json reads them (noted from Spark 4.3)."""

import datetime
import decimal
import math
from typing import Any

import pytest

from skep.cli.sql.value_parser import columns, decoded, java_double
from skep.cli.sql.value_schema import parse_ddl

UTC = datetime.UTC

READ: list[tuple[str, str, Any]] = [
    ("STRING", '"x"', "x"),
    ("STRING", "1.50", "1.5"),
    ("STRING", "1e3", "1000.0"),
    ("STRING", "12345678901234567890", "12345678901234567890"),
    ("STRING", "true", "true"),
    ("STRING", '{ "z" : 1.50, "y": [1 , 2] }', '{"z":1.5,"y":[1,2]}'),
    ("STRING", '["\\u001f\\n\\"\\\\/ä😀"]', '["\\u001F\\n\\"\\\\/ä\\uD83D\\uDE00"]'),
    ("STRING", "NaN", '"NaN"'),
    ("STRING", "1e400", '"Infinity"'),
    ("STRING", "0.0000001", "1.0E-7"),
    ("STRING", "100000000.0", "1.0E8"),
    ("STRING", '"\\ud83d"', "?"),
    ("BIGINT", "7", 7),
    ("BIGINT", "1.0", None),
    ("BIGINT", '"7"', None),
    ("BIGINT", "true", None),
    ("BIGINT", "12345678901234567890", None),
    ("INT", "3000000000", None),
    ("TINYINT", "300", None),
    ("DOUBLE", "12345678901234567890", 1.2345678901234567e19),
    ("DOUBLE", '"-Infinity"', -math.inf),
    ("DOUBLE", '"INF"', None),
    ("DOUBLE", "1e400", math.inf),
    ("DOUBLE", "true", None),
    ("FLOAT", "1714564800", 1714564864.0),
    ("BOOLEAN", "true", True),
    ("BOOLEAN", "1", None),
    ("DECIMAL(10,2)", "123456.789", decimal.Decimal("123456.79")),
    ("DECIMAL(10,2)", '"1.5"', decimal.Decimal("1.50")),
    ("DECIMAL(10,2)", "1234567890", None),
    ("DECIMAL(20,0)", "1.50", decimal.Decimal(2)),
    ("DECIMAL(20,0)", "true", None),
    ("DECIMAL(20,0)", '" 5 "', None),
    ("DECIMAL(20,0)", '"1_0"', None),
    ("DECIMAL(20,0)", '"1,000"', decimal.Decimal(1000)),
    ("DECIMAL(20,0)", '"x"', None),
    ("TIMESTAMP", '"2024-05-01T12:00:00+02:00"', datetime.datetime(2024, 5, 1, 10, tzinfo=UTC)),
    ("TIMESTAMP", '"2024-05-01 12:00:00.123456"', datetime.datetime(2024, 5, 1, 12, 0, 0, 123456, UTC)),
    ("TIMESTAMP", '"2024-05"', datetime.datetime(2024, 5, 1, tzinfo=UTC)),
    ("TIMESTAMP", "1714564800", datetime.datetime(2024, 5, 1, 12, tzinfo=UTC)),
    ("TIMESTAMP", "1.5", None),
    ("TIMESTAMP", '"2024-05-01 12"', datetime.datetime(2024, 5, 1, 12, tzinfo=UTC)),
    ("TIMESTAMP", '"2024-05-01T"', None),
    ("TIMESTAMP", '"2024-13-01"', None),
    ("TIMESTAMP_NTZ", '"2024-05-01 12:00:00.5"', datetime.datetime(2024, 5, 1, 12, 0, 0, 500000)),
    ("TIMESTAMP_NTZ", '"2024-05-01T12:00:00Z"', None),
    ("DATE", '"2024-05-01T12:00:00+02:00"', datetime.date(2024, 5, 1)),
    ("DATE", '"2024-05-01 and so on"', datetime.date(2024, 5, 1)),
    ("DATE", '"12"', datetime.date(1970, 1, 13)),
    ("DATE", "5", None),
    ("BINARY", '"AQI="', b"\x01\x02"),
    ("BINARY", '"x"', None),
    ("ARRAY<BIGINT>", '[1, "x"]', None),
    ("ARRAY<BIGINT>", "[1, null]", [1, None]),
    ("ARRAY<STRING>", '[1, "x"]', ["1", "x"]),
    ("STRUCT<z: DOUBLE, y: BIGINT>", '{"z": 1.5, "y": "s"}', {"z": 1.5, "y": None}),
    ("MAP<STRING, STRING>", '{"z": 1.50, "y": [1 , 2]}', [("z", "1.5"), ("y", "[1,2]")]),
    ("MAP<STRING, BIGINT>", "5", None),
]


@pytest.mark.parametrize(("kind", "text", "value"), READ)
def test_a_value_is_read_as_its_type(kind: str, text: str, value: Any) -> None:
    [column] = columns([decoded(f'{{"a": {text}, "b": 1}}')], parse_ddl(f"a {kind}"))
    assert column.to_pylist() == [value]


def test_nan_is_a_double() -> None:
    [column] = columns([decoded('{"a": "NaN"}')], parse_ddl("a DOUBLE"))
    assert math.isnan(column[0].as_py())


@pytest.mark.parametrize("text", ["no json", '{"a": 1', '{"a": tru}', '[{"a": 1}]', "5", "null", "", None, "[" * 9999])
def test_what_is_no_object_has_no_fields(text: str | None) -> None:
    assert [column.to_pylist() for column in columns([decoded(text)], parse_ddl("a STRING"))] == [[None]]


def test_a_value_of_many_levels_is_no_error() -> None:
    for depth in (900, 100_000):
        text = '{"b": 1, "a": ' + "[" * depth + "]" * depth + "}"
        assert len(columns([decoded(text)], parse_ddl("a STRING"))[0]) == 1


@pytest.mark.parametrize("text", [' {"a": 1}', '{"a": 1} rest', '\ufeff{"a": 1}', '{"a": 7, "a": 1}'])
def test_what_stands_around_an_object_does_not_matter(text: str) -> None:
    assert columns([decoded(text)], parse_ddl("a BIGINT"))[0].to_pylist() == [1]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.0"), (-0.0, "-0.0"), (0.001, "0.001"), (0.0001, "1.0E-4"), (9999999.0, "9999999.0"), (1e7, "1.0E7"),
     (-1.25e22, "-1.25E22"), (123456.789, "123456.789"), (5e-324, "5.0E-324")],
)  # fmt: skip
def test_numbers_are_written_as_java_does(number: float, text: str) -> None:
    # Java 19 and newer; older ones write 4.9E-324.
    assert java_double(number) == text
