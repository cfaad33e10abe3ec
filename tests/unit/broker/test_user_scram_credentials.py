"""DescribeUserScramCredentials and AlterUserScramCredentials, and the commands for users of PLAIN."""

import base64
import json

from skep.base.errors import ErrorCode
from skep.base.secret import Secret
from skep.metadata.cluster_image import USERS
from skep.security.audit.audit import Audit
from skep.wire import apis
from skep.wire.sasl.password_hash import hash_password
from tests.manual_clock import ManualClock

SALTED = bytes(range(32))


def upsert(name, mechanism=1, iterations=4096, salt=b"salt", salted_password=SALTED):
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted_password,
    }


def alter(broker, *upsertions, deletions=()):
    response = broker.ask(
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        upsertions=list(upsertions),
        deletions=[{"name": name, "mechanism": mechanism} for name, mechanism in deletions],
    )
    return {row.user: row.error_code for row in response.results}


def describe(broker, *names):
    response = broker.ask(
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": name} for name in names] if names else None
    )
    assert response.error_code is ErrorCode.none
    return {
        row.user: row.error_code
        if row.error_code is not ErrorCode.none
        else [(info.mechanism, info.iterations) for info in row.credential_infos]
        for row in response.results
    }


def test_credentials_are_set_described_and_deleted(broker):
    assert alter(broker, upsert("alice"), upsert("alice", 2, 16384), upsert("bob", 2)) == {
        "alice": ErrorCode.none,
        "bob": ErrorCode.none,
    }
    assert describe(broker) == {"alice": [(1, 4096), (2, 16384)], "bob": [(2, 4096)]}
    assert describe(broker, "bob", "nobody") == {"bob": [(2, 4096)], "nobody": ErrorCode.resource_not_found}
    assert describe(broker, "bob", "bob") == {"bob": ErrorCode.duplicate_resource}
    assert alter(broker, deletions=[("alice", 1), ("bob", 2)]) == {"alice": ErrorCode.none, "bob": ErrorCode.none}
    assert describe(broker) == {"alice": [(2, 16384)]}


def test_what_was_sent_is_not_what_is_stored(broker):
    alter(broker, upsert("alice"))
    stored = json.dumps(broker.image.entries_of(USERS)["alice"])
    assert base64.b64encode(SALTED).decode() not in stored


def test_each_user_has_its_own_refusal(broker):
    found = alter(
        broker,
        upsert("few", iterations=4095),
        upsert("many", iterations=16385),
        upsert("unsalted", salt=b""),
        upsert("empty", salted_password=b""),
        upsert("zero", mechanism=0),
        upsert("three", mechanism=3),
        upsert("twice"),
        upsert("twice"),
        upsert(""),
        upsert("good"),
        upsert("both"),
        deletions=[("nobody", 1), ("both", 1)],
    )
    assert found == {
        "few": ErrorCode.unacceptable_credential,
        "many": ErrorCode.unacceptable_credential,
        "unsalted": ErrorCode.unacceptable_credential,
        "empty": ErrorCode.unacceptable_credential,
        "zero": ErrorCode.unsupported_sasl_mechanism,
        "three": ErrorCode.unsupported_sasl_mechanism,
        "twice": ErrorCode.duplicate_resource,
        "": ErrorCode.unacceptable_credential,
        "good": ErrorCode.none,
        "nobody": ErrorCode.resource_not_found,
        "both": ErrorCode.duplicate_resource,
    }
    assert describe(broker) == {"good": [(1, 4096)]}


def command(broker, name, **arguments):
    response = broker.ask(apis.SKEP_COMMAND, command=name, arguments=json.dumps(arguments).encode())
    return response.error_code, json.loads(response.result or b"null")


def test_a_password_for_plain_is_set_as_a_hash(broker):
    hashed = hash_password(Secret("pencil")).fields()
    assert command(broker, "alter_plain_user", user="alice", hash=hashed) == (ErrorCode.none, {"user": "alice"})
    assert command(broker, "plain_users") == (ErrorCode.none, {"users": ["alice"], "next": None})
    assert broker.image.entries_of(USERS) == {"alice": {"PLAIN": hashed}}
    assert describe(broker, "alice") == {"alice": ErrorCode.resource_not_found}
    assert command(broker, "alter_plain_user", user="alice", hash=None)[0] is ErrorCode.none
    assert command(broker, "alter_plain_user", user="alice", hash=None)[0] is ErrorCode.resource_not_found
    assert broker.image.entries_of(USERS) == {}


def test_a_hash_with_other_parameters_is_refused(broker):
    """A cheap one is easy to break; one that takes gigabytes would stop the broker at each login."""
    hashed = hash_password(Secret("pencil")).fields()
    wrong = [
        {**hashed, "n": 2},
        {**hashed, "n": 1 << 30},
        {**hashed, "salt": "AA=="},
        {**hashed, "hash": 7},
        {**hashed, "salt": "%"},
        {**hashed, "more": 1},
        {"hash": "AA=="},
        {},
    ]
    codes = {command(broker, "alter_plain_user", user="alice", hash=one)[0] for one in wrong}
    assert codes == {ErrorCode.unacceptable_credential}
    assert command(broker, "alter_plain_user", user="alice", hash="x")[0] is ErrorCode.invalid_request
    assert broker.image.entries_of(USERS) == {}


class Recorder:
    def __init__(self):
        self.records = []

    def put(self, record):
        self.records.append({name: record[name] for name in ("principal", "api", "what", "name", "old", "new")})

    def close(self):
        pass


def test_changes_are_audited_without_keys(broker):
    recorder = Recorder()
    broker.services.security.audit = Audit(recorder, operations=(), refusals_per_second=1, clock=ManualClock())
    alter(broker, upsert("alice"), upsert("bad", iterations=1))
    alter(broker, upsert("alice"))
    command(broker, "alter_plain_user", user="alice", hash=hash_password(Secret("pencil")).fields())
    alter(broker, deletions=[("alice", 1)])
    assert {(one["principal"], one["what"], one["name"]) for one in recorder.records} == {
        ("User:ANONYMOUS", "user", "alice")
    }
    scram, both = {"SCRAM-SHA-256": 4096}, {"SCRAM-SHA-256": 4096, "PLAIN": None}
    assert [(one["old"]["mechanisms"], one["new"]) for one in recorder.records] == [
        (None, {"mechanisms": scram, "altered": ["SCRAM-SHA-256"]}),
        (scram, {"mechanisms": scram, "altered": ["SCRAM-SHA-256"]}),
        (scram, {"mechanisms": both, "altered": ["alter_plain_user"]}),
        (both, {"mechanisms": {"PLAIN": None}, "altered": ["SCRAM-SHA-256"]}),
    ]
