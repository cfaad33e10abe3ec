"""What is left of Spark's messages for a person at a shell."""

import pytest

from skep.cli.spark.spark_failures import MAX_LENGTH, one_line


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 1, pos 9)\n\n== SQL ==\nSEL",
            "Syntax error at or near 'FORM' (line 1, pos 9)",
        ),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `a` cannot be resolved. SQLSTATE: 42703;\n'Project ['a]\n+-",
            "A column `a` cannot be resolved",
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `ordrs` cannot be found. Verify the spelling and correctness "
            "of the schema and catalog. To tolerate the error on drop use DROP VIEW IF EXISTS. SQLSTATE: 42P01; line 2",
            "The table or view `ordrs` cannot be found; line 2",
        ),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source skep: Traceback (most recent call last):\n"
            '  File "reader.py", line 3, in partitions\n'
            "skep.base.errors.OptionError: there is no topic 'orders'\n. SQLSTATE: 38000",
            "there is no topic 'orders'",
        ),
        (
            "Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed: "
            "Traceback (most recent call last):\n"
            '  File "runner.py", line 279, in main\n'
            "pyspark_skep.read.lookup.TopicMissing: there is no topic 'orders'\n",
            "there is no topic 'orders'",
        ),
        (
            "Query [id = 1, runId = 2] terminated with exception: Python worker failed to connect back.",
            "Python worker failed to connect back",
        ),
        (
            "(org.apache.spark.sql.pipelines.graph.DatasetManager$TableMaterializationException) "
            "org.apache.spark.sql.AnalysisException: [AUTOCDC_X] Cannot start: the target `a`.`b` has no MERGE.",
            "Cannot start: the target `a`.`b` has no MERGE",
        ),
        (
            "Traceback (most recent call last):\n  nothing was raised that we know",
            "Traceback (most recent call last): nothing was raised that we know",
        ),
        ("", ""),
    ],
)
def test_a_message_becomes_one_sentence(message: str, told: str) -> None:
    assert one_line(message) == told


def test_an_exception_without_words_is_told_by_its_name() -> None:
    assert one_line(ValueError()) == "ValueError"


def test_a_very_long_sentence_is_cut() -> None:
    told = one_line("x" * 10_000)
    assert len(told) == MAX_LENGTH + 3
    assert told.endswith("...")
