"""Tests of the partitions named on a command line."""

import pytest

from skep.cli.failures import UsageError
from skep.cli.partition_selection import parse_selection, unknown_partition


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("orders", ("orders", None)),
        ("orders:2", ("orders", [2])),
        ("orders:2,0,2", ("orders", [0, 2])),
        ("a.b-c_d: 1, 3", ("a.b-c_d", [1, 3])),
    ],
)
def test_a_selection_is_a_topic_or_some_of_its_partitions(text: str, selection: tuple[str, list[int] | None]) -> None:
    assert parse_selection(text) == selection


@pytest.mark.parametrize("text", ["", ":1", "orders:", "orders:x", "orders:-1", "orders:1,,2", "orders:0:1"])
def test_a_malformed_selection_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_selection(text)


def test_an_unknown_partition_is_reported_with_those_that_exist() -> None:
    assert str(unknown_partition("orders", 7, {0, 1, 2})) == (
        "topic 'orders' has no partition 7; its partitions are 0 to 2"
    )
