"""DeleteTopics: by name, by id, and every refusal."""

from uuid import UUID

import pytest

from skep.base.errors import ErrorCode, StoreUnavailable
from skep.broker.handlers import delete_topics
from skep.security.operations import Operation
from skep.security.principal import Principal
from skep.wire.apis import DELETE_TOPICS

BY_NAME = range(DELETE_TOPICS.oldest, 6)


def codes(response):
    return {topic.name: topic.error_code for topic in response.responses}


@pytest.mark.parametrize("version", BY_NAME)
def test_topics_are_deleted_by_name(broker, version):
    for name in "abc":
        broker.create(name)
    assert codes(broker.ask(DELETE_TOPICS, version, topic_names=["a", "c"])) == {"a": 0, "c": 0}
    assert set(broker.image.topics) == {"b"}


def test_topics_are_deleted_by_name_or_id_and_answered_with_both(broker):
    a, b = broker.create("a"), broker.create("b")
    response = broker.ask(DELETE_TOPICS, topics=[{"name": "a"}, {"topic_id": b.topic_id}])
    assert [(r.name, r.topic_id, r.error_code) for r in response.responses] == [
        ("a", a.topic_id, 0),
        ("b", b.topic_id, 0),
    ]
    assert not broker.image.topics


def test_unknown_topics_are_told_as_they_were_named(broker):
    unknown = UUID(int=5)
    response = broker.ask(DELETE_TOPICS, topics=[{"name": "a"}, {"name": "a/b"}, {"topic_id": unknown}])
    assert [(r.name, r.topic_id, r.error_code) for r in response.responses] == [
        ("a", None, ErrorCode.unknown_topic_or_partition),
        ("a/b", None, ErrorCode.unknown_topic_or_partition),
        (None, unknown, ErrorCode.unknown_topic_id),
    ]


def test_a_topic_named_twice_is_not_deleted(broker):
    broker.create("a")
    broker.create("b")
    response = broker.ask(DELETE_TOPICS, 5, topic_names=["a", "a", "b"])
    assert codes(response) == {"a": ErrorCode.invalid_request, "b": ErrorCode.none}
    assert set(broker.image.topics) == {"a"}


def test_a_topic_named_once_by_name_and_once_by_id_is_not_deleted(broker):
    a = broker.create("a")
    response = broker.ask(DELETE_TOPICS, topics=[{"name": "a"}, {"topic_id": a.topic_id}])
    assert [topic.error_code for topic in response.responses] == [ErrorCode.invalid_request] * 2
    assert set(broker.image.topics) == {"a"}


def test_name_and_id_together_or_neither_is_refused(broker):
    a = broker.create("a")
    response = broker.ask(DELETE_TOPICS, topics=[{"name": "a", "topic_id": a.topic_id}, {"name": None}])
    assert [topic.error_code for topic in response.responses] == [ErrorCode.invalid_request] * 2
    assert set(broker.image.topics) == {"a"}


@pytest.mark.parametrize("version", BY_NAME)
def test_deletion_can_be_switched_off(start_broker, version):
    broker = start_broker({"delete.topic.enable": "false"})
    broker.create("a")
    code = ErrorCode.topic_deletion_disabled if version >= 3 else ErrorCode.invalid_request
    assert codes(broker.ask(DELETE_TOPICS, version, topic_names=["a"])) == {"a": code}
    assert set(broker.image.topics) == {"a"}


def test_one_that_the_store_does_not_delete_leaves_the_others_answered_as_they_are(broker, monkeypatch):
    broker.create("a")
    broker.create("b")
    delete = broker.services.catalog.delete_topic

    async def unavailable_for_b(name, topic_id):
        if name == "b":
            raise StoreUnavailable("disk full")
        return await delete(name, topic_id)

    monkeypatch.setattr(broker.services.catalog, "delete_topic", unavailable_for_b)
    response = broker.ask(DELETE_TOPICS, 5, topic_names=["a", "b"])
    assert codes(response) == {"a": ErrorCode.none, "b": ErrorCode.coordinator_not_available}


def test_an_id_is_not_used_for_the_topic_that_took_its_name(start_broker, monkeypatch):
    """The id is looked up in the image; before the store is asked, another broker deletes and creates the topic."""
    broker = start_broker()
    broker.create("a")
    old_id = broker.services.catalog.image.topics["a"].topic_id
    catalog = broker.services.catalog
    delete = catalog.delete_topic

    async def recreated_meanwhile(name, topic_id):
        await delete(name)
        await catalog.create_topic(name, [[broker.services.node.id]])
        return await delete(name, topic_id)

    monkeypatch.setattr(catalog, "delete_topic", recreated_meanwhile)
    response = broker.ask(DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": old_id}])
    assert response.responses[0].error_code is ErrorCode.unknown_topic_id
    assert "a" in catalog.image.topics


class MayRead:
    """A client that may READ, and so DESCRIBE, and nothing else."""

    principal = Principal("consumer")
    is_limited = True

    def allows(self, operation, resource, name):
        return operation in (Operation.READ, Operation.DESCRIBE)

    really_allows = allows

    def asked(self, request, operation, resource, name):
        return self.allows(operation, resource, name)


def test_a_topic_that_this_broker_has_not_heard_of_is_not_deleted_without_the_right(broker):
    """Another broker has created it: the store has it, the image has not."""
    broker.create("orders")
    catalog = broker.services.catalog
    stale = catalog.image.without_topic("orders")
    request = broker.request(DELETE_TOPICS, 6, topics=[{"name": "orders"}])
    request.access = MayRead()
    catalog._current.image = stale
    response = broker.run(delete_topics.handle(broker.services, request))
    assert [one["error_code"] for one in response["responses"]] == [ErrorCode.unknown_topic_or_partition]
    broker.run(catalog.reload())
    assert set(broker.image.topics) == {"orders"}
