"""What skep.authorizer.mode=log says where one of several rights is enough."""

from types import SimpleNamespace

import pytest

from skep.broker.handlers import delete_topics
from skep.broker.permissions import allowed, check_request, may_create_topic
from skep.broker.request import Request
from skep.metadata.cluster_image import ClusterImage
from skep.security.acls.cached_access import CachedAccess
from skep.security.operations import CLUSTER_NAME, Operation, ResourceType
from skep.security.principal import Principal
from skep.wire import apis
from tests.unit.security.acls.test_authorizer import acl, authorizer

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


def request_of(api, *acls, **body):
    access = CachedAccess(authorizer(*acls, only_logs=True), Principal("alice"), "h")
    return Request(api, api.newest, 7, "c", "192.0.2.1", SimpleNamespace(**body), access=access)


def on_cluster(operation):
    return acl(CLUSTER_NAME, operation=operation, kind=CLUSTER)


def said(caplog):
    return [message.partition("would be refused ")[2].partition(":")[0] for message in caplog.messages]


@pytest.mark.parametrize(
    ("api", "operation"),
    [
        (apis.METADATA, "DESCRIBE"),
        (apis.LIST_OFFSETS, "DESCRIBE"),
        (apis.OFFSET_FOR_LEADER_EPOCH, "DESCRIBE"),
        (apis.DESCRIBE_PRODUCERS, "READ"),
    ],
)
def test_the_missing_right_on_a_topic_is_logged_where_brokers_need_none(caplog, api, operation):
    assert allowed(request_of(api), TOPIC, "t")
    assert said(caplog) == [f"{operation} on TOPIC 't'"]
    caplog.clear()
    assert allowed(request_of(api, on_cluster(Operation.CLUSTER_ACTION)), TOPIC, "t")
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("request_", "lines"),
    [
        (request_of(apis.INIT_PRODUCER_ID, transactional_id=None), ["IDEMPOTENT_WRITE on CLUSTER 'kafka-cluster'"]),
        (request_of(apis.INIT_PRODUCER_ID, acl("t", operation=Operation.WRITE), transactional_id=None), []),
        (request_of(apis.WRITE_TXN_MARKERS), ["CLUSTER_ACTION on CLUSTER 'kafka-cluster'"]),
        (request_of(apis.WRITE_TXN_MARKERS, on_cluster(Operation.ALTER)), []),
    ],
)
def test_a_request_that_needs_one_of_two_rights_is_logged_without_either(caplog, request_, lines):
    check_request(request_)
    assert said(caplog) == lines


@pytest.mark.parametrize(
    ("acls", "lines"),
    [
        ([], ["CREATE on TOPIC 't'"]),
        ([acl("t", operation=Operation.CREATE)], []),
        ([on_cluster(Operation.CREATE)], []),
    ],
)
def test_create_on_the_topic_or_on_the_cluster_is_enough_to_create_it(caplog, acls, lines):
    assert may_create_topic(request_of(apis.CREATE_TOPICS, *acls), "t")
    assert said(caplog) == lines


@pytest.mark.parametrize(
    ("acls", "lines"),
    [
        ([], ["DELETE on TOPIC 't'"]),
        ([acl("t", operation=Operation.DELETE)], []),
        ([on_cluster(Operation.DELETE)], []),
        # It gets UNKNOWN_TOPIC_OR_PARTITION, which is no refusal.
        ([acl("t", operation=Operation.DESCRIBE)], []),
    ],
)
def test_delete_on_the_topic_or_on_the_cluster_is_enough_to_delete_it(caplog, acls, lines):
    delete_topics._check_allowed(request_of(apis.DELETE_TOPICS, *acls), ClusterImage.of("c"), "t")
    assert said(caplog) == lines
