"""Which topics a query is about, and how schemas are given."""

import pytest

from skep.cli.failures import UsageError
from skep.cli.sql.sql_views import columns_of, given_schemas, topics_named


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT * FROM orders", {"orders": "orders"}),
        ("SELECT * FROM ORDERS o JOIN `orders.large` l", {"ORDERS": "orders", "orders.large": "orders.large"}),
        ("SELECT 'orders' -- from orders\n /* orders */ FROM clicks-stream", {}),
        ("SELECT \"orders\", 'it''s orders'", {}),
        (
            "WITH a AS (SELECT * FROM orders) SELECT (SELECT max(x) FROM Twice) FROM a",
            {"orders": "orders", "Twice": "Twice"},
        ),
        ("SELECT * FROM TWICE", {}),
        ("SELECT * FROM orders.large", {"orders": "orders"}),
        ("SELECT * FROM `a``b`", {"a`b": "a`b"}),
    ],
)
def test_names_in_a_query_are_matched_with_topics(query: str, named: dict[str, str]) -> None:
    assert topics_named(query, ["orders", "orders.large", "clicks-stream", "Twice", "twice", "a`b"]) == named


def test_a_schema_is_given_by_topic() -> None:
    assert given_schemas(["a=id INT, m MAP<STRING, INT>", "b.c = x STRING"]) == {
        "a": "id INT, m MAP<STRING, INT>",
        "b.c": "x STRING",
    }


@pytest.mark.parametrize("text", ["orders", "=id INT", "orders="])
def test_a_schema_without_its_topic_or_fields_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected TOPIC='NAME TYPE"):
        given_schemas([text])


def test_of_fields_that_differ_in_case_only_one_is_a_column() -> None:
    fields = ["PRODUCT", "Product", "_Offset", "_corrupt_record", "id", "product"]
    assert columns_of(fields) == (["id", "product"], ["PRODUCT", "Product"])
