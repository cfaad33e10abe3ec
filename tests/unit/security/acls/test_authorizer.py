"""The authorizer against a naive model, and what the model does not say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.metadata.cluster_image import ACLS, ClusterImage
from skep.security.acls.acl import (
    Acl,
    AclFilter,
    ResourcePattern,
    Rule,
    canonical_host,
    check_acl,
    entry_name,
    fields_of,
    host_of,
    pattern_of,
)
from skep.security.acls.authorizer import Authorizer, parse_super_users
from skep.security.operations import Operation, PatternType, Permission, ResourceType
from skep.security.principal import Principal

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
CONCRETE = [one for one in Operation if one not in (Operation.ANY, Operation.ALL)]

NAMES = st.sampled_from(["a", "ab", "abc", "b", "ba"])
ACL = st.builds(
    lambda kind, name, is_prefix, who, host, operation, permission: Acl(
        ResourcePattern(kind, name, PREFIXED if is_prefix else LITERAL), Rule(who, host, operation, permission)
    ),
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from(["*", "a", "ab", "abc", "b"]),
    st.booleans(),
    st.sampled_from(["User:*", "User:alice", "User:bob"]),
    st.sampled_from(["*", "10.0.0.1", "10.0.0.0/8"]),
    st.sampled_from([Operation.ALL, *CONCRETE]),
    st.sampled_from([ALLOW, DENY]),
)


def image_of(acls):
    rules = {}
    for pattern, rule in acls:
        rules.setdefault(pattern, set()).add(rule)
    return ClusterImage.of("c", entries={ACLS: {entry_name(one): fields_of(some) for one, some in rules.items()}})


def authorizer(*acls, **options):
    found = Authorizer(**options)
    found.follow(image_of(acls))
    return found


def acl(name, who="User:alice", operation=Operation.READ, permission=ALLOW, *, kind=TOPIC, pattern=LITERAL, host="*"):
    return Acl(ResourcePattern(kind, name, pattern), Rule(who, host, operation, permission))


def naive(acls, everyone, who, host, operation, kind, name):
    """The rules as Kafka's documentation has them, over all ACLs."""

    def is_about(one):
        pattern = one.pattern
        if pattern.type is not kind:
            return False
        return name.startswith(pattern.name) if pattern.pattern_type is PREFIXED else pattern.name in ("*", name)

    def covers(rule):
        if rule.principal not in ("User:*", str(who)):
            return False
        if not (rule.host in ("*", host) or (rule.host == "10.0.0.0/8" and host.startswith("10."))):
            return False
        wanted = {operation, Operation.ALL}
        if rule.permission is ALLOW and operation is Operation.DESCRIBE:
            wanted |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
        if rule.permission is ALLOW and operation is Operation.DESCRIBE_CONFIGS:
            wanted |= {Operation.ALTER_CONFIGS}
        return rule.operation in wanted

    about = [one for one in acls if is_about(one)]
    if not about:
        return everyone
    covering = {one.rule.permission for one in about if covers(one.rule)}
    return DENY not in covering and ALLOW in covering


@given(
    st.lists(ACL, max_size=12),
    st.booleans(),
    st.sampled_from([Principal("alice"), Principal("bob"), Principal("eve")]),
    st.sampled_from(["10.0.0.1", "10.0.0.2", "192.0.2.1"]),
    st.sampled_from(CONCRETE),
    st.sampled_from([TOPIC, GROUP]),
    NAMES,
)
def test_it_decides_as_the_rules_read(acls, everyone, who, host, operation, kind, name):
    decision = authorizer(*acls, allow_everyone=everyone).decide(who, host, operation, kind, name)
    assert decision.is_allowed == naive(acls, everyone, who, host, operation, kind, name)


@given(st.lists(ACL, max_size=12), st.lists(ACL, max_size=12), st.sampled_from(CONCRETE), NAMES)
def test_an_index_that_was_changed_is_one_made_anew(before, after, operation, name):
    changed = authorizer(*before)
    changed.follow(image_of(after))
    anew = authorizer(*after)
    who = Principal("alice")
    assert changed.decide(who, "10.0.0.1", operation, TOPIC, name) == anew.decide(
        who, "10.0.0.1", operation, TOPIC, name
    )
    assert sorted(changed.index.acls()) == sorted(anew.index.acls())


@given(st.lists(ACL, max_size=8))
def test_what_is_allowed_on_a_topic_is_allowed_somewhere(acls):
    found, who = authorizer(*acls), Principal("alice")
    names = ["a", "ab", "abc", "b", "zz"]
    somewhere = found.decide_somewhere(who, "10.0.0.1", Operation.WRITE, TOPIC).is_allowed
    if any(found.decide(who, "10.0.0.1", Operation.WRITE, TOPIC, name).is_allowed for name in names):
        assert somewhere


def test_a_super_user_is_stronger_than_a_deny():
    found = authorizer(acl("*", "User:*", Operation.ALL, DENY), super_users=[Principal("alice")])
    assert found.decide(Principal("alice"), "h", Operation.READ, TOPIC, "t") == (True, "super.users")


def test_each_decision_names_its_rule():
    found = authorizer(acl("pay", pattern=PREFIXED), acl("pays", permission=DENY))
    who = Principal("alice")
    assert found.decide(who, "h", Operation.READ, TOPIC, "payments").rule == (
        "ALLOW READ to User:alice from * on TOPIC:PREFIXED:pay"
    )
    assert found.decide(who, "h", Operation.READ, TOPIC, "pays").rule == (
        "DENY READ to User:alice from * on TOPIC:LITERAL:pays"
    )
    assert found.decide(who, "h", Operation.READ, TOPIC, "other") == (False, "no ACL allows it")
    assert authorizer(allow_everyone=True).decide(who, "h", Operation.READ, TOPIC, "t").rule == (
        "allow.everyone.if.no.acl.found"
    )


def test_the_version_changes_with_the_acls_only():
    found = authorizer(acl("t"))
    image, version = image_of([acl("t")]), found.version
    found.follow(image)
    assert found.version == version + 1
    found.follow(image)
    assert found.version == version + 1


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ([], False),
        ([acl("t", operation=Operation.WRITE)], True),
        ([acl("t", operation=Operation.READ)], False),
        ([acl("t", operation=Operation.WRITE), acl("*", operation=Operation.WRITE, permission=DENY)], False),
        ([acl("t", operation=Operation.WRITE), acl("t", operation=Operation.ALL, permission=DENY)], False),
        ([acl("ta", operation=Operation.ALL), acl("t", permission=DENY, pattern=PREFIXED)], True),
        (
            [acl("ta", operation=Operation.ALL), acl("t", operation=Operation.ALL, permission=DENY, pattern=PREFIXED)],
            False,
        ),
    ],
)
def test_an_idempotent_producer_needs_write_on_some_topic(acls, is_allowed):
    found = authorizer(*acls)
    assert found.decide_somewhere(Principal("alice"), "h", Operation.WRITE, TOPIC).is_allowed is is_allowed


def test_an_ipv4_client_of_an_ipv6_socket_has_its_ipv4_address():
    assert host_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert host_of("2001:db8:0::1") == "2001:db8::1"
    assert host_of("fe80::1%eth0") == "fe80::1"
    assert host_of("192.0.2.1") == "192.0.2.1"


@pytest.mark.parametrize(
    ("host", "canonical", "client"),
    [
        ("2001:DB8::1", "2001:db8::1", "2001:db8::1"),
        ("0:0:0:0:0:0:0:1", "::1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1", "fe80::1"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8", "::ffff:10.1.2.3"),
        ("::ffff:0:0/96", "0.0.0.0/0", "192.0.2.1"),
        ("2001:DB8::1/32", "2001:db8::/32", "2001:db8:1::1"),
        ("10.1.2.3/8", "10.0.0.0/8", "10.0.0.1"),
    ],
)
def test_a_host_in_any_form_is_the_one_of_the_client(host, canonical, client):
    assert canonical_host(host) == canonical
    check_acl(acl("t", host=canonical))
    # Also in a store that has it in the other form.
    assert authorizer(acl("t", host=host)).decide(Principal("alice"), host_of(client), Operation.READ, TOPIC, "t")[0]


@pytest.mark.parametrize("host", ["*", "10.0.0.1", "::/0", "::fffe:0:0/95", "a host", "2001:::1", "10.0.0.0/99"])
def test_a_host_that_is_canonical_or_not_valid_stays_as_it_is(host):
    assert canonical_host(host) == host


def test_super_users_have_semicolons_between():
    assert parse_super_users("User:CN=a,O=b; User:c;") == [Principal("CN=a,O=b"), Principal("c")]
    with pytest.raises(OptionError, match=r"super\.users"):
        parse_super_users("alice")


@given(ACL)
def test_a_pattern_survives_its_name_in_the_store(one):
    assert pattern_of(entry_name(one.pattern)) == one.pattern


def test_a_name_with_colons_survives_too():
    pattern = ResourcePattern(GROUP, "a:b::c", PREFIXED)
    assert pattern_of(entry_name(pattern)) == pattern


@pytest.mark.parametrize(
    "bad",
    [
        acl("t", kind=ResourceType.ANY),
        acl("t", pattern=PatternType.ANY),
        acl("t", pattern=PatternType.MATCH),
        acl("t", operation=Operation.ANY),
        acl("t", permission=Permission.ANY),
        acl(""),
        acl("cluster", kind=CLUSTER),
        acl("t", who="alice"),
        acl("t", who="User:"),
        acl("t", who=":alice"),
        acl("t", host=""),
        acl("t", host="10.0.0.0/99"),
        acl("t", host="[::1]"),
        acl("t", host="2001:::1"),
        acl("t" * 1001),
        acl("t", who="User:" + "a" * 1000),
    ],
)
def test_an_acl_that_cannot_be_is_refused(bad):
    with pytest.raises(KafkaError) as caught:
        check_acl(bad)
    assert caught.value.code is ErrorCode.invalid_request


def test_a_filter_with_match_finds_all_patterns_that_concern_a_name():
    acls = [acl("orders"), acl("ord", pattern=PREFIXED), acl("*"), acl("o"), acl("orders", kind=GROUP)]
    found = authorizer(*acls).index
    wanted = AclFilter(TOPIC, "orders", PatternType.MATCH)
    assert sorted(one.pattern.name for one in found.acls(wanted)) == ["*", "ord", "orders"]
    assert [one.pattern.name for one in found.acls(wanted._replace(pattern_type=LITERAL))] == ["orders"]
    assert len(list(found.acls(AclFilter()))) == 5
    assert len(list(found.acls(AclFilter(permission=DENY)))) == 0
