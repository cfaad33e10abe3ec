"""Values of quotas as people write and read them."""

import pytest

from skep.cli.failures import UsageError
from skep.cli.quotas.quota_values import check_key, quota_value, shown_value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("producer_byte_rate", "1048576", 1048576),
        ("producer_byte_rate", "1MB/s", 1_000_000),
        ("producer_byte_rate", "1 MiB/s", 1 << 20),
        ("consumer_byte_rate", "0.3kB", 300),
        ("consumer_byte_rate", "2g", 2_000_000_000),
        ("consumer_byte_rate", "100b/s", 100),
        ("consumer_byte_rate", "-5", -5),
        ("request_percentage", "25%", 25),
        ("request_percentage", "0.5", 0.5),
        ("controller_mutation_rate", "5/s", 5),
    ],
)
def test_values_may_have_units(key, text, value):
    assert quota_value(key, text) == value


@pytest.mark.parametrize("text", ["", "fast", "1MB/min", "1 parsec", "--", "1e", "nan", "inf", "1kk"])
@pytest.mark.parametrize("key", ["producer_byte_rate", "request_percentage"])
def test_what_is_no_number_is_refused_with_an_example(key, text):
    with pytest.raises(UsageError, match="for example"):
        quota_value(key, text)


def test_an_unknown_quota_is_refused_with_those_that_there_are():
    assert check_key("connection_creation_rate") == "connection_creation_rate"
    with pytest.raises(UsageError, match="producer_byte_rate"):
        check_key("producer_bytes")


def test_values_are_shown_with_units():
    assert shown_value("producer_byte_rate", 1_000_000) == "1.00 MB/s"
    assert shown_value("request_percentage", 12.5) == "12.5 %"
    assert shown_value("controller_mutation_rate", 5) == "5 /s"
