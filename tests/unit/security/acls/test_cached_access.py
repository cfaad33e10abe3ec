"""The rights of one connection: what is kept, when it is forgotten, what the audit hears."""

from types import SimpleNamespace

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.metadata.cluster_image import ClusterImage
from skep.security.access import FullAccess
from skep.security.acls import cached_access
from skep.security.acls.authorizer import Authorizer
from skep.security.acls.cached_access import CachedAccess
from skep.security.audit.audit import Audit
from skep.security.operations import Operation, Permission, ResourceType
from skep.security.principal import ANONYMOUS, Principal
from skep.security.security import Security
from tests.manual_clock import ManualClock
from tests.unit.security.acls.test_authorizer import acl, authorizer, image_of

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, ALTER = Operation.READ, Operation.WRITE, Operation.ALTER
ALICE = Principal("alice")


class Records:
    """A sink that keeps what it gets."""

    def __init__(self):
        self.all = []

    def put(self, record):
        self.all.append(record)

    def close(self):
        pass


def actor(access):
    return SimpleNamespace(api=SimpleNamespace(name="Fetch"), client_id="c", client_host="10.0.0.1", access=access)


def counted(monkeypatch, found):
    calls = []
    decide = found.decide

    def counting(*arguments):
        calls.append(arguments)
        return decide(*arguments)

    monkeypatch.setattr(found, "decide", counting)
    return calls


def test_a_decision_is_made_once_until_acls_change(monkeypatch):
    found = authorizer(acl("t"))
    access = CachedAccess(found, ALICE, "10.0.0.1")
    calls = counted(monkeypatch, found)
    assert all(access.allows(READ, TOPIC, "t") for _ in range(5))
    assert len(calls) == 1
    found.follow(image_of([acl("t", permission=Permission.DENY)]))
    assert not access.allows(READ, TOPIC, "t")
    assert len(calls) == 2


def test_the_decisions_of_a_connection_are_bounded(monkeypatch):
    monkeypatch.setattr(cached_access, "MAX_DECISIONS", 10)
    access = CachedAccess(authorizer(acl("*")), ALICE, "h")
    for number in range(100):
        assert access.allows(READ, TOPIC, f"t{number}")
    assert len(access._known) <= 10


def test_a_group_with_an_odd_name_is_not_some_group():
    access = CachedAccess(authorizer(acl("g", kind=GROUP)), ALICE, "h")
    assert access.really_allows_somewhere(READ, GROUP)
    assert not access.allows(READ, GROUP, "")
    assert not access.allows(READ, GROUP, "\0")


def test_a_refusal_is_recorded_with_its_rule():
    records = Records()
    access = CachedAccess(authorizer(), ALICE, "10.0.0.1", "SASL", Audit(records))
    assert not access.asked(actor(access), READ, TOPIC, "t")
    [record] = records.all
    assert record.pop("time").endswith("Z")
    assert record == {
        "event": "access",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "client_id": "c",
        "listener": "SASL",
        "api": "Fetch",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource": "t",
        "decision": "denied",
        "rule": "no ACL allows it",
    }


def test_allowed_operations_are_recorded_if_they_are_listed():
    records = Records()
    found = authorizer(acl("t", operation=Operation.ALL))
    access = CachedAccess(found, ALICE, "h", "", Audit(records, operations=[ALTER]))
    assert access.asked(actor(access), READ, TOPIC, "t")
    assert records.all == []
    assert access.asked(actor(access), ALTER, TOPIC, "t")
    assert [(one["operation"], one["decision"]) for one in records.all] == [("ALTER", "allowed")]


def test_a_flood_of_refusals_is_counted_and_not_written():
    records = Records()
    audit = Audit(records, refusals_per_second=1)
    access = CachedAccess(authorizer(), ALICE, "h", "", audit)
    for _ in range(1000):
        access.asked(actor(access), READ, TOPIC, "t")
    audit.close()
    written = [one for one in records.all if one["event"] == "access"]
    dropped = sum(one["count"] for one in records.all if one["event"] == "dropped")
    assert len(written) + dropped == 1000
    assert len(written) < 100


def test_a_mode_that_only_logs_refuses_nothing_and_says_what_it_would():
    records = Records()
    access = CachedAccess(authorizer(only_logs=True), ALICE, "h", "", Audit(records))
    assert access.allows(READ, TOPIC, "t")
    assert access.asked(actor(access), READ, TOPIC, "t")
    assert not access.really_allows(READ, TOPIC, "t")
    assert not access.really_allows_somewhere(WRITE, TOPIC)
    assert [one["decision"] for one in records.all] == ["would be denied"]


def test_without_an_audit_log_the_mode_that_only_logs_uses_the_log(caplog):
    access = CachedAccess(authorizer(only_logs=True), ALICE, "h")
    assert access.asked(actor(access), READ, TOPIC, "t")
    assert "User:alice would be refused READ on TOPIC 't'" in caplog.text


def security(**texts):
    config = read_broker_config({name.replace("_", "."): text for name, text in texts.items()})
    return Security(CurrentConfig(config), lambda: image_of([acl("t")]), ManualClock())


def test_without_an_authorizer_everybody_may_do_everything():
    access = security().access(ANONYMOUS, "h")
    assert isinstance(access, FullAccess)
    assert not access.is_limited
    assert access.allows(READ, TOPIC, "t")


def test_with_an_authorizer_a_client_has_the_rights_of_the_image():
    access = security(authorizer_class_name="skep").access(ALICE, "::ffff:10.0.0.1", "SASL")
    assert access.is_limited
    assert (access.principal, access.host, access.listener) == (ALICE, "10.0.0.1", "SASL")
    assert access.allows(READ, TOPIC, "t")
    assert not access.allows(WRITE, TOPIC, "t")


def test_an_empty_image_allows_nothing():
    found = Authorizer()
    found.follow(ClusterImage.of("c"))
    assert not CachedAccess(found, ALICE, "h").allows(READ, TOPIC, "t")
