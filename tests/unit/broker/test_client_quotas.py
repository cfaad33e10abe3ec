"""DescribeClientQuotas and AlterClientQuotas, and the quota of partitions that a client creates and deletes."""

import pytest

from skep.base.errors import ErrorCode
from skep.broker.dispatch import HANDLERS
from skep.metadata.cluster_image import QUOTAS
from skep.security.principal import ANONYMOUS
from skep.security.quotas.client_quotas import Throttle
from skep.wire.apis import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    METADATA,
)

OK, INVALID = ErrorCode.none, ErrorCode.invalid_request


def entry(entity, **quotas):
    """``None`` removes a quota."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()],
    }


def alter(broker, *entries, version=1, validate_only=False):
    response = broker.ask(ALTER_CLIENT_QUOTAS, version, entries=list(entries), validate_only=validate_only)
    return [(one.error_code, one.error_message) for one in response.entries]


def describe(broker, *components, version=1, strict=False):
    asked = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    response = broker.ask(DESCRIBE_CLIENT_QUOTAS, version, components=asked, strict=strict)
    assert response.error_code is OK, response.error_message
    return {
        tuple((part.entity_type, part.entity_name) for part in one.entity): {
            value.key: value.value for value in one.values
        }
        for one in response.entries
    }


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed(broker, version):
    odd = "alice/ä;client-id=\0 ..%2f"
    entries = (
        entry([("user", odd)], producer_byte_rate=1024.0, request_percentage=12.5),
        entry([("client-id", None), ("user", None)], consumer_byte_rate=2.0**40),
    )
    assert alter(broker, *entries, version=version) == [(OK, None), (OK, None)]
    assert describe(broker, version=version) == {
        (("user", odd),): {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        (("user", None), ("client-id", None)): {"consumer_byte_rate": 2.0**40},
    }
    assert describe(broker, ("user", 1, None), version=version, strict=True) == {}
    assert list(describe(broker, ("user", 0, odd), version=version, strict=True)) == [(("user", odd),)]
    alter(broker, entry([("user", odd)], producer_byte_rate=None, consumer_byte_rate=None), version=version)
    assert describe(broker, ("user", 0, odd)) == {(("user", odd),): {"request_percentage": 12.5}}
    alter(broker, entry([("user", odd)], request_percentage=None))
    assert describe(broker, ("user", 0, odd)) == {}


def test_what_is_only_validated_is_not_set(broker):
    assert alter(broker, entry([("user", "a")], producer_byte_rate=1.0), validate_only=True) == [(OK, None)]
    ((code, message),) = alter(broker, entry([("user", "a")], producer_byte_rate=-5.0), validate_only=True)
    assert (code, message) == (INVALID, "Quota producer_byte_rate must be greater than 0, not -5")
    assert describe(broker) == {}


def test_entities_are_changed_on_their_own_and_as_a_whole(broker):
    results = alter(
        broker,
        entry([("user", "a")], producer_byte_rate=1.0, consumer_byte_rate=0.0),
        entry([("user", "b")], producer_byte_rate=1.0),
        entry([("user", "b")], producer_byte_rate=2.0),
        entry([("team", "c")], producer_byte_rate=1.0),
    )
    assert [code for code, _ in results] == [INVALID, OK, INVALID, INVALID]
    assert describe(broker) == {(("user", "b"),): {"producer_byte_rate": 1.0}}


def test_addresses_are_checked_and_host_names_resolved(broker):
    rate = {"connection_creation_rate": 5.0}
    results = alter(
        broker,
        entry([("ip", "127.0.0.1")], **rate),
        entry([("ip", "localhost")], **rate),
        entry([("ip", "no such host")], **rate),
        entry([("ip", "a" * 100 + ".invalid")], **rate),
        entry([("ip", None)], **rate),
    )
    assert [code for code, _ in results] == [OK, OK, INVALID, INVALID, OK]
    assert results[2][1] == "no such host is not a valid IP or resolvable host."
    stored = broker.image.entries_of(QUOTAS)
    assert "addresses" not in stored["ip=127.0.0.1"]
    assert "127.0.0.1" in stored["ip=localhost"]["addresses"]


def test_a_filter_that_cannot_be_is_refused(broker):
    component = {"entity_type": "user", "match_type": 0, "match": None}
    response = broker.ask(DESCRIBE_CLIENT_QUOTAS, components=[component], strict=False)
    assert (response.error_code, response.entries) == (INVALID, None)
    assert "null" in response.error_message


def ask_throttled(broker, api, version, **body):
    """Returns the response as the handler made it, and its throttle time."""
    request = broker.request(api, version, **body)
    quotas = broker.services.security.quotas
    quotas.image_changed(broker.image)
    request.throttle = Throttle(quotas.of(ANONYMOUS, "test"), 0)
    return broker.run(HANDLERS[api.key].handle(broker.services, request)), request.throttle.ms


def topic(name, partitions=1):
    return {"name": name, "num_partitions": partitions, "replication_factor": 1}


@pytest.mark.parametrize(("version", "is_strict"), [(5, False), (6, True)])
def test_topics_are_created_up_to_the_quota(broker, version, is_strict):
    alter(broker, entry([("client-id", None)], controller_mutation_rate=1.0))
    topics = [topic("a", 13), topic("b")]
    response, throttle_ms = ask_throttled(broker, CREATE_TOPICS, version, topics=topics)
    codes = [one["error_code"] for one in response["topics"]]
    assert codes == [OK, ErrorCode.throttling_quota_exceeded if is_strict else OK]
    assert throttle_ms == (2000 if is_strict else 3000)  # a burst of eleven is free
    assert ("b" in broker.image.topics) is not is_strict


def test_partitions_and_deletions_count_too(broker):
    broker.create("a", 5)
    broker.create("b", 5)
    alter(broker, entry([("client-id", None)], controller_mutation_rate=1.0))
    grown, throttle_ms = ask_throttled(broker, CREATE_PARTITIONS, 3, topics=[{"name": "a", "count": 15}])
    assert (grown["results"][0]["error_code"], throttle_ms) == (OK, 0)
    deleted, throttle_ms = ask_throttled(broker, DELETE_TOPICS, 4, topic_names=["b"])
    assert (deleted["responses"][0]["error_code"], throttle_ms) == (OK, 4000)
    for api, version, body, results in (
        (CREATE_PARTITIONS, 3, {"topics": [{"name": "a", "count": 16}]}, "results"),
        (DELETE_TOPICS, 5, {"topic_names": ["a"]}, "responses"),
    ):
        refused, throttle_ms = ask_throttled(broker, api, version, **body)
        assert refused[results][0]["error_code"] is ErrorCode.throttling_quota_exceeded
        assert throttle_ms == 4000
    assert len(broker.image.topics["a"].partitions) == 15


def test_topics_that_are_created_by_being_asked_for_are_throttled_only(broker):
    alter(broker, entry([("client-id", None)], controller_mutation_rate=0.01))
    for name in ("a", "b"):
        response, throttle_ms = ask_throttled(broker, METADATA, 9, topics=[{"name": name}])
        assert response["topics"][0]["error_code"] is OK
    assert throttle_ms > 100_000
