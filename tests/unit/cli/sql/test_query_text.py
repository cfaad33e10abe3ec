"""Which tables a query is about, where statements end, and how schemas are given."""

import pytest

from skep.cli.failures import CommandError, UsageError
from skep.cli.sql.query_text import (
    DUCKDB,
    SPARK,
    given_schemas,
    in_double_quotes,
    is_blank,
    missing_table,
    statements,
    syntax_error,
    tables_named,
)

TOPICS = ["orders", "orders.large", "clicks-stream", "Twice", "twice", "a`b"]


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
        ("SELECT 'it\\'s', id FROM orders", {"orders": "orders"}),
        ("SELECT 1 FROM `orders", {"orders": "orders"}),
    ],
)
def test_names_in_a_query_are_matched_with_topics(query: str, named: dict[str, str]) -> None:
    assert tables_named(query, TOPICS) == named


def test_names_for_duckdb_may_be_in_double_quotes() -> None:
    query = "SELECT 'orders', $$twice$$, 'a\\' FROM \"orders.large\" JOIN `clicks-stream`"
    named = {"orders.large": "orders.large", "clicks-stream": "clicks-stream"}
    assert tables_named(query, TOPICS, DUCKDB) == named
    assert in_double_quotes('SELECT \'`\', "`" -- `\n FROM `a"b` t, `c``d`') == (
        'SELECT \'`\', "`" -- `\n FROM "a""b" t, "c`d"'
    )


def test_a_query_cannot_name_two_topics_that_differ_only_in_case() -> None:
    with pytest.raises(CommandError, match="Twice and twice differ only in case"):
        tables_named("SELECT * FROM Twice JOIN twice", TOPICS)


@pytest.mark.parametrize(
    ("query", "missing"),
    [
        ("SELECT * FROM ordrs", "ordrs"),
        ("SELECT * FROM `ordrs` WHERE a = 'x'", "ordrs"),
        ("SELECT * FROM ordrs AS o", "ordrs"),
        ("WITH o AS (SELECT 1) SELECT * FROM o JOIN nothing USING (a)", "nothing"),
        ("SELECT (SELECT max(id) FROM nothing) FROM orders", "nothing"),
    ],
)
def test_a_table_that_nothing_can_be_is_found_without_an_engine(query: str, missing: str) -> None:
    assert missing_table(query, TOPICS) == missing


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM ORDERS AS o JOIN `orders.large`",
        "WITH a AS (SELECT 1), b (x) AS (SELECT 2) SELECT * FROM a, b JOIN b AS c",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT * FROM r",
        "SELECT extract(YEAR FROM made), trim(BOTH 'x' FROM name), substring(name FROM 2) FROM orders",
        "SELECT a IS DISTINCT FROM b FROM orders",
        "SELECT * FROM range(10) JOIN LATERAL (SELECT 1) JOIN VALUES (1) AS t(x)",
        "SELECT * FROM (SELECT 1)",
        "SELECT m.from AS sender, m.join, x.from y FROM orders m",
        "With a As (SELECT 1) SELECT * FROM a",
        "SELECT * FROM parquet.`/tmp/x`",
        "SELECT * FROM some.thing",
        "SELECT 'FROM nothing' -- FROM nothing",
        "SELECT * FROM orders LATERAL VIEW explode(tags) t AS tag",
        "FROM nothing SELECT *",
        "DESCRIBE nothing",
        "SELECT",
        "SELECT * FROM",
        "",
    ],
)
def test_a_query_that_may_be_right_is_left_to_the_engine(query: str) -> None:
    assert missing_table(query, TOPICS) is None


WRONG = {
    "": "the query is empty",
    " -- nothing\n": "the query is empty",
    "SELEC 1": "no statement begins with SELEC; SELECT does",
    "selct * FROM orders": "no statement begins with selct; SELECT does",
    "SELECT 'a FROM orders": "the string that begins with 'a FROM orders is not closed",
    "SELECT 'it''s": "the string that begins with 'it''s is not closed",
    "SELECT 'a''": "the string that begins with 'a'' is not closed",
    'SELECT "a': 'the string that begins with "a is not closed',
    "SELECT * FROM `orders WHERE quantity > 10": "the name that begins with `orders WHERE quanti... is not closed",
    "SELECT 1 /* one": "the comment that begins with /* one is not closed",
    "SELECT (1": "a ( is not closed",
    "SELECT 1)": "a ) has no ( before it",
    "SELECT tags[0 FROM orders": "a [ is not closed",
    "WITH a AS (SELECT 1] SELECT * FROM a": "a ] has no [ before it",
}
"""Queries, and what is certain about them before Spark starts. Spark refuses all of them (``tests/spark``)."""
RIGHT = [
    "SELECT 1",
    "(SELECT 1)",
    "WITH a AS (SELECT 1) SELECT * FROM a;",
    "SELECT '(', \"[\", 'it''s', '''', \"a\"\"b\" AS x -- (\n /* ( */",
    "SELECT /*+ BROADCAST(a) */ * FROM VALUES (1) AS a(x)",
    "SELECT 'it\\'s (' AS x",
    "SELECT r'\\' AS x",
    "SELECT 1 /* a /* b */ ( */",
    "SELECT array(1)[0], map('a', 1)['a'] AS `a``(`",
    "SET spark.some.option = (",
    "FROM VALUES (1) AS t(x) SELECT x",
    "VALUES (1)",
    "SHOW TABLES",
    "DESC FUNCTION abs",
    "EXPLAIN SELECT 1",
]
"""Queries that Spark understands."""


@pytest.mark.parametrize(("query", "told"), WRONG.items())
def test_some_syntax_errors_are_certain_without_an_engine(query: str, told: str) -> None:
    assert syntax_error(query) == told


@pytest.mark.parametrize("query", [*RIGHT, "OPTIMIZE orders", "SELECT FROM WHERE"])
def test_other_syntax_is_left_to_the_engine(query: str) -> None:
    assert syntax_error(query) is None


@pytest.mark.parametrize(
    ("text", "found", "rest"),
    [
        ("SELECT 1; SELECT 2", ["SELECT 1"], " SELECT 2"),
        ("SELECT ';' -- ;\n, `;` /* ; */;", ["SELECT ';' -- ;\n, `;` /* ; */"], ""),
        ("SELECT 'it;", [], "SELECT 'it;"),
        (";;", ["", ""], ""),
    ],
)
def test_statements_end_with_semicolons(text: str, found: list[str], rest: str) -> None:
    assert statements(text) == (found, rest)


def test_a_backslash_does_not_escape_in_duckdb() -> None:
    assert statements("SELECT '\\'; --'", DUCKDB) == (["SELECT '\\'"], " --'")
    assert statements("SELECT '\\'; --'", SPARK) == ([], "SELECT '\\'; --'")


def test_comments_and_spaces_are_no_statement() -> None:
    assert is_blank(" -- nothing\n /* at all */ ")
    assert not is_blank("-- one\n1")


def test_a_schema_is_given_by_topic() -> None:
    assert given_schemas(["a=id INT, m MAP<STRING, INT>", "b.c = x STRING"]) == {
        "a": "id INT, m MAP<STRING, INT>",
        "b.c": "x STRING",
    }


@pytest.mark.parametrize("text", ["orders", "=id INT", "orders="])
def test_a_schema_without_its_topic_or_fields_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected TOPIC='NAME TYPE"):
        given_schemas([text])
