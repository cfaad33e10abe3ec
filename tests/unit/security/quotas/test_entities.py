"""Who can have which quotas, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError
from skep.security.quotas.entities import (
    CLIENT_KEYS,
    ENTITY_TYPES,
    addresses_of,
    changed,
    checked_changes,
    checked_entity,
    entity_name,
    entity_of,
    values_of,
)

NAMES = st.none() | st.text(min_size=1)


@given(st.dictionaries(st.sampled_from(ENTITY_TYPES), NAMES, min_size=1))
def test_the_name_of_an_entry_says_whom_it_is_for(entity):
    assert entity_of(entity_name(entity)) == entity


@given(st.lists(st.dictionaries(st.sampled_from(ENTITY_TYPES), NAMES, min_size=1), min_size=2, max_size=2))
def test_two_entities_have_two_names(entities):
    first, second = entities
    assert (entity_name(first) == entity_name(second)) == (first == second)


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ([], "empty client quota entity"),
        ([("team", "a")], "Unhandled client quota entity type: team"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("client-id", "")], "Empty client-id not supported"),
        ([("ip", "10.0.0.1"), ("user", "a")], "ip cannot be combined"),
    ],
)
def test_an_entity_that_cannot_have_quotas_is_refused(pairs, problem):
    with pytest.raises(KafkaError, match=problem) as refused:
        checked_entity(pairs)
    assert refused.value.code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("entity", "key", "value", "problem"),
    [
        ({"user": "a"}, "producer_byte_rate", -5, "producer_byte_rate must be greater than 0, not -5"),
        ({"user": "a"}, "request_percentage", 0, "must be greater than 0"),
        ({"user": "a"}, "request_percentage", math.nan, "must be greater than 0, not nan"),
        ({"user": "a"}, "request_percentage", math.inf, "must be greater than 0, not inf"),
        ({"user": "a"}, "consumer_byte_rate", 1.5, "cannot be a fractional value"),
        ({"user": "a"}, "consumer_byte_rate", 1e30, "too large"),
        ({"user": "a"}, "producer_bytes", 1, "Invalid configuration key producer_bytes"),
        ({"user": "a"}, "connection_creation_rate", 1, "Invalid configuration key connection_creation_rate"),
        ({"ip": None}, "producer_byte_rate", 1, "this entity can have connection_creation_rate"),
        ({"ip": None}, "connection_creation_rate", 2.0**31, "too large"),
    ],
)
def test_a_quota_that_cannot_be_is_refused(entity, key, value, problem):
    with pytest.raises(KafkaError, match=problem) as refused:
        checked_changes(entity, [(key, value)])
    assert refused.value.code is ErrorCode.invalid_request


def test_a_quota_twice_is_refused():
    with pytest.raises(KafkaError, match="Duplicate quota key"):
        checked_changes({"user": "a"}, [("producer_byte_rate", 1), ("producer_byte_rate", None)])


def test_an_unknown_quota_can_be_removed():
    assert checked_changes({"user": "a"}, [("of_older_days", None)]) == {"of_older_days": None}


@given(st.lists(st.dictionaries(st.sampled_from(sorted(CLIENT_KEYS)), st.none() | st.integers(1, 2**40)), max_size=5))
def test_changes_add_up_and_none_removes(steps):
    fields, expected = None, {}
    for step in steps:
        fields = changed(fields, step)
        expected = {key: value for key, value in {**expected, **step}.items() if value is not None}
        assert (fields is None) == (not expected)
        assert values_of(fields or {}) == expected


def test_the_addresses_of_a_host_name_are_kept():
    fields = changed(None, {"connection_creation_rate": 1.0}, {"10.0.0.2", "10.0.0.1"})
    assert addresses_of(fields) == ["10.0.0.1", "10.0.0.2"]
