"""Which entities a filter of DescribeClientQuotas matches."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.security.quotas.quota_filter import Component, Match, checked_filter

ENTITIES = (
    {"user": "alice"},
    {"user": None},
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"client-id": "app"},
    {"ip": "10.0.0.7"},
)


def matched(*components, strict=False):
    found = checked_filter([Component(*one) for one in components], is_strict=strict)
    return [number for number, entity in enumerate(ENTITIES) if found.matches(entity)]


def test_all_components_must_match():
    assert matched() == [0, 1, 2, 3, 4, 5]
    assert matched(("user", Match.EXACT, "alice")) == [0, 2, 3]
    assert matched(("user", Match.DEFAULT)) == [1]
    assert matched(("user", Match.ANY)) == [0, 1, 2, 3]
    assert matched(("user", Match.EXACT, "alice"), ("client-id", Match.ANY)) == [2, 3]
    assert matched(("ip", Match.EXACT, "10.0.0.7")) == [5]


def test_a_strict_filter_matches_no_entity_of_more_types():
    assert matched(strict=True) == []
    assert matched(("user", Match.EXACT, "alice"), strict=True) == [0]
    assert matched(("user", Match.ANY), ("client-id", Match.ANY), strict=True) == [2, 3]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 2)], ErrorCode.invalid_request),
        ([("user", 2), ("user", 1)], ErrorCode.invalid_request),
        ([("team", 2)], ErrorCode.unsupported_version),
        ([("user", 3)], ErrorCode.invalid_request),
        ([("user", 0)], ErrorCode.invalid_request),
        ([("user", 1, "a")], ErrorCode.invalid_request),
        ([("user", 2, "a")], ErrorCode.invalid_request),
        ([("user", 2), ("ip", 2)], ErrorCode.invalid_request),
    ],
)
def test_a_filter_that_cannot_be_is_refused(components, code):
    with pytest.raises(KafkaError) as refused:
        matched(*components)
    assert refused.value.code is code
