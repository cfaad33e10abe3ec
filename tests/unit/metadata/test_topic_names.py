"""Topic names: Kafka's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.metadata.topic_names import check_topic_name, is_topic_name, metric_name


@pytest.mark.parametrize("name", ["a", "...", "-", "_", "Orders.2024_x-1", "__consumer_offsets", "a" * 249])
def test_a_legal_name_is_accepted(name):
    check_topic_name(name)
    assert is_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty string"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, "250 characters"),
        ("a/b", "other than"),
        ("a b", "other than"),
        ("a\n", "other than"),
        ("ä", "other than"),
        ("\u0661", "other than"),
        ("a\0", "other than"),
    ],
)
def test_an_illegal_name_is_refused_saying_why(name, reason):
    with pytest.raises(KafkaError, match=reason) as refused:
        check_topic_name(name)
    assert refused.value.code is ErrorCode.invalid_topic_exception
    assert not is_topic_name(name)


@given(st.text())
def test_a_legal_name_is_a_file_name_that_stays_in_its_directory(name):
    if is_topic_name(name):
        assert name.isascii()
        assert "/" not in name
        assert name not in ("", ".", "..")
        assert len(f"{name}-99999") <= 255


def test_names_that_differ_in_dots_and_underscores_have_one_metric_name():
    assert metric_name("a.b_c") == metric_name("a_b.c")
    assert metric_name("a-b") != metric_name("a_b")
