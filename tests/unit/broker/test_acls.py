"""DescribeAcls, CreateAcls and DeleteAcls, in all versions, and what the audit hears of them."""

import json

import pytest

from skep.base.errors import ErrorCode
from skep.security.acls.acl import Acl, ResourcePattern, Rule
from skep.security.operations import Operation, PatternType, Permission, ResourceType
from skep.wire.apis import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS, INCREMENTAL_ALTER_CONFIGS

VERSIONS = range(1, 4)


@pytest.fixture
def broker(start_broker, tmp_path):
    return start_broker({"authorizer.class.name": "skep", "skep.audit.log": str(tmp_path / "audit.jsonl")})


def creation(name="orders", **fields):
    return {
        "resource_type": ResourceType.TOPIC,
        "resource_name": name,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    } | fields


def wanted(**fields):
    return {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": Permission.ANY,
    } | fields


def create(broker, *creations, version=3):
    return [one.error_code for one in broker.ask(CREATE_ACLS, version, creations=list(creations)).results]


def described(broker, version=3, **fields):
    response = broker.ask(DESCRIBE_ACLS, version, **wanted(**fields))
    assert response.error_code == 0
    return {
        Acl(
            ResourcePattern(ResourceType(one.resource_type), one.resource_name, PatternType(one.pattern_type)),
            Rule(acl.principal, acl.host, Operation(acl.operation), Permission(acl.permission_type)),
        )
        for one in response.resources
        for acl in one.acls
    }


ORDERS = Acl(ResourcePattern(ResourceType.TOPIC, "orders"), Rule("User:alice", "*", Operation.READ, Permission.ALLOW))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_created_is_described_and_deleted(broker, version):
    assert create(broker, creation(), version=version) == [ErrorCode.none]
    assert described(broker, version) == {ORDERS}
    [result] = broker.ask(DELETE_ACLS, version, filters=[wanted(resource_name_filter="orders")]).filter_results
    assert [(one.resource_name, one.principal) for one in result.matching_acls] == [("orders", "User:alice")]
    assert described(broker, version) == set()
    assert broker.image.entries_of("acls") == {}


def test_creating_an_acl_again_is_no_error(broker):
    assert create(broker, creation(), creation()) == [ErrorCode.none] * 2
    assert create(broker, creation()) == [ErrorCode.none]
    assert described(broker) == {ORDERS}


def test_each_acl_has_its_own_result(broker):
    bad = [
        creation(operation=Operation.ANY),
        creation(resource_pattern_type=PatternType.MATCH),
        creation(principal="alice"),
        creation("cluster", resource_type=ResourceType.CLUSTER),
        creation(""),
        creation(operation=77),
    ]
    assert create(broker, *bad, creation()) == [ErrorCode.invalid_request] * 6 + [ErrorCode.none]
    assert described(broker) == {ORDERS}


@pytest.mark.parametrize(
    ("host", "stored"),
    [
        ("2001:DB8::1", "2001:db8::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
    ],
)
def test_a_host_is_stored_and_found_as_clients_have_it(broker, host, stored):
    assert create(broker, creation(host=host), creation(host=stored)) == [ErrorCode.none] * 2
    assert {acl.rule.host for acl in described(broker)} == {stored}
    assert len(described(broker, host_filter=host)) == len(described(broker, host_filter=stored)) == 1
    broker.ask(DELETE_ACLS, filters=[wanted(host_filter=host)])
    assert described(broker) == set()


def test_the_rules_of_a_pattern_are_one_entry(broker):
    create(broker, *(creation(principal=f"User:u{number}") for number in range(5)))
    assert list(broker.image.entries_of("acls")) == ["topic:literal:orders"]
    assert len(described(broker)) == 5


def test_one_acl_matches_two_filters_and_is_deleted_once(broker):
    create(broker, creation(), creation("other"))
    filters = [wanted(resource_name_filter="orders"), wanted(), wanted(operation=99)]
    first, second, third = broker.ask(DELETE_ACLS, filters=filters).filter_results
    assert [one.resource_name for one in first.matching_acls] == ["orders"]
    assert {one.resource_name for one in second.matching_acls} == {"orders", "other"}
    assert third.error_code is ErrorCode.invalid_request
    assert described(broker) == set()


def test_acls_are_bounded(start_broker):
    broker = start_broker({"authorizer.class.name": "skep", "skep.max.acls": "3", "skep.max.acls.per.resource": "2"})
    assert create(broker, *(creation(principal=f"User:u{number}") for number in range(3))) == (
        [ErrorCode.policy_violation] * 3
    )
    assert create(broker, creation(), creation(principal="User:b")) == [ErrorCode.none] * 2
    assert create(broker, creation("a"), creation("b")) == [ErrorCode.none, ErrorCode.policy_violation]
    assert create(broker, creation()) == [ErrorCode.none]


def test_without_an_authorizer_there_are_no_acls(start_broker):
    broker = start_broker()
    assert create(broker, creation()) == [ErrorCode.security_disabled]
    assert broker.ask(DESCRIBE_ACLS, **wanted()).error_code is ErrorCode.security_disabled
    [result] = broker.ask(DELETE_ACLS, filters=[wanted()]).filter_results
    assert result.error_code is ErrorCode.security_disabled


def test_the_audit_has_changes_with_old_and_new_value(broker, tmp_path):
    create(broker, creation())
    create(broker, creation(principal="User:bob"))
    broker.ask(DELETE_ACLS, filters=[wanted()])
    broker.create("t")
    configs = [{"name": "retention.ms", "value": "5000", "config_operation": 0}]
    resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
    broker.ask(INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    broker.services.security.close()
    alice, bob = "ALLOW READ to User:alice from *", "ALLOW READ to User:bob from *"
    name = "topic:literal:orders"
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(one["what"], one["name"], one["old"], one["new"]) for one in lines if one["event"] == "change"] == [
        ("acls", name, None, [alice]),
        ("acls", name, [alice], [alice, bob]),
        ("acls", name, [alice, bob], None),
        ("config of topic", "t", {}, {"retention.ms": "5000"}),
    ]
    assert {one["principal"] for one in lines} == {"User:ANONYMOUS"}
    assert {one["host"] for one in lines} == {"192.0.2.1"}


def test_the_value_of_a_sensitive_option_is_not_in_the_audit(broker, tmp_path):
    from skep.broker.config.config_changes import BROKER_OPTIONS

    sensitive = [name for name, option in BROKER_OPTIONS.items() if option.is_sensitive and option.dynamic]
    for name in sensitive:
        configs = [{"name": name, "value": "geheim", "config_operation": 0}]
        resource = {"resource_type": 4, "resource_name": "", "configs": configs}
        broker.ask(INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    broker.services.security.close()
    path = tmp_path / "audit.jsonl"
    assert not path.exists() or "geheim" not in path.read_text()
