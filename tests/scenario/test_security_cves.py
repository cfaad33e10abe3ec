"""Known holes of brokers, tried on a secured one: what Kafka, Redpanda and RocketMQ had to fix is tested here.

Where each is tested:

CVE-2022-34917, CVE-2026-111108, CVE-2026-111115 (lengths and counts that are believed before authentication)
    here: test_a_stranger_cannot_make_the_broker_believe_a_length, test_a_stranger_cannot_send_a_large_request;
    after authentication: test_bad_input_requests.py, tests/wire/test_hostile_bytes.py
CVE-2024-56128 (the SCRAM nonce)
    here: test_a_scram_login_with_another_nonce_is_refused, test_a_recorded_scram_login_cannot_be_replayed;
    tests/unit/security/sasl/test_mechanisms.py
CVE-2017-12610 (authzid)
    here: test_nobody_becomes_another_user_by_asking; tests/unit/security/sasl/test_mechanisms.py
CVE-2021-38153 (secrets compared with ==)
    tests/architecture/test_security_rules.py
CVE-2026-110985, CVE-2025-27817, CVE-2023-25194, CVE-2025-27818, CVE-2025-27819 (OAuth without a check, URLs and login
modules by configuration)
    tests/architecture/test_security_rules.py (no such option at run time),
    tests/unit/security/sasl/test_oauth_bearer.py,
    tests/unit/base/test_jaas.py (nothing is loaded)
CVE-2018-1288 (a follower's fetch by a client)
    here: test_a_client_is_no_follower
GHSA-47w3, CVE-2023-50976 (transactions without a check)
    here: test_no_request_of_transactions_is_served_without_rights; all APIs: test_permission_matrix.py
CVE-2024-31141, RocketMQ CVE-2023-33246 and CVE-2023-37582 (files, shells and modules by configuration)
    tests/architecture/test_security_rules.py; here: test_a_request_cannot_set_what_the_broker_trusts
CVE-2023-24619 (secrets in logs)
    here: test_no_secret_is_in_the_log_or_in_a_response
CVE-2026-82266, CVE-2026-123270 (an admin port without authentication)
    there is no other port; open listeners: tests/scenario/test_listeners.py
decompression bombs
    test_bad_input_batches.py, tests/unit/records/test_compression.py
"""

import base64
import random
import re
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.base.errors import ErrorCode
from skep.wire import apis
from skep.wire.apis import SERVED
from tests.fuzz import sasl_dialog
from tests.fuzz.doors import PASSWORD, USER
from tests.fuzz.requests import RequestMaker
from tests.fuzz.sasl_dialog import authenticate, begin, client_final, client_first, framed, scram_login, token_exchange
from tests.fuzz.scene import UNHURRIED, Scene
from tests.fuzz.secured import WITHOUT_RIGHTS, SecuredBroker, create_users, secured_broker
from tests.fuzz.witness import Witness
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, fetch_body
from tests.waiting import wait_until

TOPIC = "guarded"
PATIENCE_S = 60.0
MEBIBYTE = 1 << 20
WRONG_PASSWORD = "wrong-password-7f3a"
SASL_AUTHENTICATION_FAILED = 58
ALLOWED_TO_STRANGERS = {18, 17, 36}
"""ApiVersions, SaslHandshake, SaslAuthenticate."""


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    options = {
        **UNHURRIED,
        "skep.log.level": "DEBUG",
        # Many tests fail to log in, and none is about how long that takes.
        "connection.failed.authentication.delay.ms": "1",
    }
    with secured_broker(options) as broker:
        with RawClient(broker.broker.bootstrap_servers) as client:
            client.create_topic(TOPIC)
        yield broker


@pytest.fixture(scope="module")
def scene(secured: SecuredBroker) -> Iterator[Scene]:
    with Witness(secured.broker) as witness:
        yield Scene(secured.broker, witness)


def stranger(secured: SecuredBroker) -> RawClient:
    return RawClient(secured.bootstrap_servers, timeout_s=PATIENCE_S)


def logged_in(secured: SecuredBroker, user: str) -> RawClient:
    client = stranger(secured)
    scram_login(client.socket, user, PASSWORD)
    return client


def is_closed(connection: socket.socket) -> bool:
    """Reads whatever still comes."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


# Before authentication.


@pytest.mark.parametrize("length", [524_289, 100 << 20, 2**31 - 1, 0, -1, -(2**31)])
def test_a_stranger_cannot_send_a_large_request(secured: SecuredBroker, scene: Scene, length: int) -> None:
    with scene.unharmed(8 * MEBIBYTE), stranger(secured) as client:
        client.socket.sendall(struct.pack(">i", length))
        assert is_closed(client.socket)


HUGE = b"\xff\xff\xff\xff\x07"
"""2^31 - 1 as a varint of Kafka."""
API_VERSIONS = struct.pack(">hhih", 18, 3, 1, -1)
AUTHENTICATE_2 = struct.pack(">hhih", 36, 2, 1, -1)
BELIEVED = {
    "tagged fields of a header": API_VERSIONS + HUGE,
    "tagged fields of ApiVersions": API_VERSIONS + b"\0\2x\2y" + HUGE,
    "a string of ApiVersions": API_VERSIONS + b"\0" + HUGE,
    "a tag of ApiVersions": API_VERSIONS + b"\0\2x\2y\1" + HUGE + HUGE,
    "a token": struct.pack(">hhihi", 36, 1, 1, -1, 2**31 - 1),
    "a negative token": struct.pack(">hhihi", 36, 1, 1, -1, -2),
    "a compact token": AUTHENTICATE_2 + b"\0" + HUGE,
    "tagged fields of SaslAuthenticate": AUTHENTICATE_2 + b"\0\2x" + HUGE,
    "a mechanism": struct.pack(">hhihh", 17, 1, 1, -1, 32767),
    "a client id": struct.pack(">hhih", 18, 0, 1, 32767),
    "empty tagged fields of ApiVersions": API_VERSIONS + b"\0\2x\2y" + b"\x80\x89\x7a" + b"\0\0" * 250_000,
}


@pytest.mark.parametrize("frame", BELIEVED.values(), ids=BELIEVED)
def test_a_stranger_cannot_make_the_broker_believe_a_length(secured: SecuredBroker, scene: Scene, frame: bytes) -> None:
    with scene.unharmed(8 * MEBIBYTE), stranger(secured) as client:
        if struct.unpack_from(">h", frame)[0] == apis.SASL_AUTHENTICATE.key:
            begin(client.socket, "PLAIN")
        client.socket.sendall(framed(frame))
        assert is_closed(client.socket)


def test_a_stranger_gets_no_response_but_to_a_login(secured: SecuredBroker, scene: Scene) -> None:
    """Whatever API it is, served or not: the connection ends, and nothing is said or done."""
    maker = RequestMaker(random.Random(7))
    with scene.unharmed():
        for api in SERVED.values():
            if api.key in ALLOWED_TO_STRANGERS:
                continue
            with stranger(secured) as client:
                client.send_frame(maker.frame(api, api.newest))
                assert client.is_closed(), api.name
    assert "fuzzed-a" not in topics(secured)


def topics(secured: SecuredBroker) -> set[str]:
    with RawClient(secured.broker.bootstrap_servers) as client:
        answer = client.ask(apis.METADATA, 12, topics=None, allow_auto_topic_creation=False)
        return {topic.name for topic in answer.topics}


def test_requests_that_are_sent_along_with_a_login_wait_for_its_success(secured: SecuredBroker) -> None:
    """CreateTopics behind a wrong password, in one packet."""
    with stranger(secured) as client:
        begin(client.socket, "PLAIN")
        token = sasl_dialog.plain_token(USER, WRONG_PASSWORD)
        create = RequestMaker(random.Random(7), ("smuggled",)).frame(apis.CREATE_TOPICS, 7)
        client.socket.sendall(framed(authenticate(token)) + framed(create))
        assert is_closed(client.socket)
    assert "smuggled" not in topics(secured)


# Logins.


def test_a_scram_login_with_another_nonce_is_refused(secured: SecuredBroker) -> None:
    """CVE-2024-56128: the proof is right, and about another nonce."""
    for change in (lambda nonce: nonce[:-1], lambda nonce: nonce + "x", lambda nonce: nonce[:8], lambda _: "x"):
        with stranger(secured) as client:
            begin(client.socket, "SCRAM-SHA-256")
            first, bare = client_first(USER, "client-nonce")
            _, challenge = token_exchange(client.socket, first)
            nonce = dict(part.split("=", 1) for part in challenge.decode().split(","))["r"]
            changed = challenge.replace(nonce.encode(), change(nonce).encode())
            error, _ = token_exchange(client.socket, client_final("SCRAM-SHA-256", PASSWORD, bare, changed))
            assert error == SASL_AUTHENTICATION_FAILED
            assert is_closed(client.socket)


def test_a_recorded_scram_login_cannot_be_replayed(secured: SecuredBroker) -> None:
    first, bare = client_first(USER, "recorded-nonce")
    with stranger(secured) as client:
        begin(client.socket, "SCRAM-SHA-256")
        _, challenge = token_exchange(client.socket, first)
        final = client_final("SCRAM-SHA-256", PASSWORD, bare, challenge)
        assert token_exchange(client.socket, final)[0] == 0
    with stranger(secured) as client:
        begin(client.socket, "SCRAM-SHA-256")
        _, second_challenge = token_exchange(client.socket, first)
        assert second_challenge != challenge
        assert token_exchange(client.socket, final)[0] == SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_nobody_becomes_another_user_by_asking(secured: SecuredBroker, mechanism: str) -> None:
    """CVE-2017-12610: a right password, and another user as authzid."""
    with stranger(secured) as client:
        begin(client.socket, mechanism)
        if mechanism == "PLAIN":
            token = sasl_dialog.plain_token(WITHOUT_RIGHTS, PASSWORD, USER)
        else:
            token = client_first(WITHOUT_RIGHTS, "nonce", f"a={USER}")[0]
        assert token_exchange(client.socket, token)[0] == SASL_AUTHENTICATION_FAILED
        assert is_closed(client.socket)


def test_a_failed_login_does_not_tell_whether_there_is_such_a_user(secured: SecuredBroker) -> None:
    def failure(user: str) -> tuple[bytes, list[str]]:
        with stranger(secured) as client:
            begin(client.socket, "SCRAM-SHA-512")
            first, bare = client_first(user, "same-nonce")
            _, challenge = token_exchange(client.socket, first)
            fields = sorted(part.split("=")[0] for part in challenge.decode().split(","))
            final = client_final("SCRAM-SHA-512", WRONG_PASSWORD, bare, challenge)
            client.socket.sendall(framed(authenticate(final)))
            return sasl_dialog.receive(client.socket), fields

    assert failure(USER) == failure("there-is-no-such-user")


def test_an_unknown_user_has_the_same_salt_each_time(secured: SecuredBroker) -> None:
    def salt(user: str) -> str:
        with stranger(secured) as client:
            begin(client.socket, "SCRAM-SHA-256")
            _, challenge = token_exchange(client.socket, client_first(user, "nonce")[0])
            return dict(part.split("=", 1) for part in challenge.decode().split(","))["s"]

    assert salt("nobody-1") == salt("nobody-1")
    assert salt("nobody-1") != salt("nobody-2")
    assert len(base64.b64decode(salt("nobody-1"))) == len(base64.b64decode(salt(USER)))


def test_another_user_cannot_take_over_a_connection(secured: SecuredBroker) -> None:
    """KIP-368: who logs in again on the same connection must be who they were."""
    with logged_in(secured, WITHOUT_RIGHTS) as client:
        begin(client.socket, "SCRAM-SHA-256")
        first, bare = client_first(USER, "another-user")
        error, challenge = token_exchange(client.socket, first)
        if error == 0:
            error, _ = token_exchange(client.socket, client_final("SCRAM-SHA-256", PASSWORD, bare, challenge))
        assert error == SASL_AUTHENTICATION_FAILED
        assert is_closed(client.socket)


# Rights.


def test_a_client_is_no_follower(secured: SecuredBroker) -> None:
    """CVE-2018-1288: a client that may read a topic fetches as broker 1, and moves no high watermark."""
    give(secured, "reader", "READ", TOPIC)
    with logged_in(secured, "reader") as client:
        assert client.fetch_one(Want(TOPIC, 0)).error_code is ErrorCode.none
        answer = client.ask(apis.FETCH, 12, **fetch_body([Want(TOPIC, 0)], 12), replica_id=1)
        codes = {partition.error_code for topic in answer.responses for partition in topic.partitions}
        assert codes <= {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed}
        assert codes or answer.error_code is ErrorCode.cluster_authorization_failed


def test_no_request_of_transactions_is_served_without_rights(secured: SecuredBroker) -> None:
    refused = ErrorCode.transactional_id_authorization_failed
    with logged_in(secured, WITHOUT_RIGHTS) as client:
        answer = client.ask(apis.INIT_PRODUCER_ID, 4, transactional_id="t", producer_id=-1, producer_epoch=-1)
        assert answer.error_code is refused
        assert answer.producer_id == -1
        answer = client.ask(apis.INIT_PRODUCER_ID, 4, transactional_id=None, producer_id=-1, producer_epoch=-1)
        assert answer.error_code is ErrorCode.cluster_authorization_failed
        transaction = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
        assert client.ask(apis.END_TXN, 3, **transaction, committed=True).error_code is refused
        answer = client.ask(apis.ADD_OFFSETS_TO_TXN, 3, **transaction, group_id="g")
        assert answer.error_code is refused
        partition = {"name": TOPIC, "partitions": [0]}
        answer = client.ask(
            apis.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[partition],
        )
        [[added]] = [topic.results_by_partition for topic in answer.results_by_topic_v3_and_below]
        assert added.partition_error_code is refused
        batch = batch_of(b"x", producer_id=1, producer_epoch=0, base_sequence=0)
        assert client.produce(TOPIC, batch).error_code is ErrorCode.topic_authorization_failed


def test_a_request_cannot_set_what_the_broker_trusts(secured: SecuredBroker) -> None:
    """Not even a super user's: whoever gets one for a minute would keep the cluster."""
    names = ("super.users", "authorizer.class.name", "sasl.jaas.config", "allow.everyone.if.no.acl.found", "log.dirs")
    with logged_in(secured, USER) as client:
        for name in (*names, "listener.name.sasl_plaintext.plain.sasl.jaas.config"):
            change = {"name": name, "config_operation": 0, "value": "User:stranger"}
            answer = client.ask(
                apis.INCREMENTAL_ALTER_CONFIGS,
                1,
                resources=[{"resource_type": 4, "resource_name": "1", "configs": [change]}],
                validate_only=False,
            )
            [resource] = answer.responses
            assert resource.error_code in (ErrorCode.invalid_request, ErrorCode.invalid_config), name


def test_rights_that_are_taken_away_end_on_open_connections(secured: SecuredBroker) -> None:
    give(secured, "leaving", "READ", TOPIC)
    with logged_in(secured, "leaving") as client:
        assert client.fetch_one(Want(TOPIC, 0)).error_code is ErrorCode.none
        take(secured, "leaving")
        wait_until(
            lambda: client.fetch_one(Want(TOPIC, 0)).error_code is ErrorCode.topic_authorization_failed,
            "the end of the rights",
        )


def give(secured: SecuredBroker, user: str, operation: str, topic: str) -> None:
    """A new user with one right."""
    create_users(secured.broker.bootstrap_servers, user)
    rule = {
        "resource_type": 2,
        "resource_name": topic,
        "resource_pattern_type": 3,
        "principal": f"User:{user}",
        "host": "*",
        "operation": {"READ": 3, "WRITE": 4}[operation],
        "permission_type": 3,
    }
    with RawClient(secured.broker.bootstrap_servers) as client:
        [result] = client.ask(apis.CREATE_ACLS, 3, creations=[rule]).results
        assert result.error_code is ErrorCode.none, result.error_message


def take(secured: SecuredBroker, user: str) -> None:
    everything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": f"User:{user}",
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    with RawClient(secured.broker.bootstrap_servers) as client:
        [result] = client.ask(apis.DELETE_ACLS, 3, filters=[everything]).filter_results
        assert result.error_code is ErrorCode.none, result.error_message
        assert result.matching_acls


# Limits.


def test_half_open_connections_are_bounded_and_do_not_stay() -> None:
    limits = {"skep.max.unauthenticated.connections": "20", "skep.handshake.timeout.ms": "500"}
    with secured_broker({**UNHURRIED, **limits}) as secured, Witness(secured.broker) as witness:
        waiting = [socket.create_connection(secured.sasl_ssl, PATIENCE_S) for _ in range(20)]
        further = [socket.create_connection(secured.sasl_plaintext, PATIENCE_S) for _ in range(10)]
        assert all(is_closed(connection) for connection in further)
        witness.go_on()
        assert all(is_closed(connection) for connection in waiting), "they sent nothing, and their time is up"
        with logged_in(secured, USER) as client:
            assert client.ask(apis.METADATA, 12, topics=[], allow_auto_topic_creation=False).brokers
        witness.go_on()
        for connection in (*waiting, *further):
            connection.close()


def test_wrong_passwords_do_not_keep_good_clients_waiting(secured: SecuredBroker, scene: Scene) -> None:
    """While wrong passwords are hashed, another client goes on and a good one gets in."""
    unanswered = threading.Semaphore(0)
    guessers = [stranger(secured) for _ in range(60)]

    def guess(client: RawClient) -> None:
        try:
            begin(client.socket, "PLAIN")
            token_exchange(client.socket, sasl_dialog.plain_token(USER, WRONG_PASSWORD))
        except (OSError, struct.error):
            pass  # too many at a time are refused at once
        finally:
            unanswered.release()

    threads = [threading.Thread(target=guess, args=(client,)) for client in guessers]
    with scene.unharmed(200 * MEBIBYTE):
        before = scene.witness.rounds
        for thread in threads:
            thread.start()
        with logged_in(secured, USER) as client:
            assert client.fetch_one(Want(TOPIC, 0)).error_code is ErrorCode.none
        for thread in threads:
            thread.join()
        assert scene.witness.rounds > before
    for client in guessers:
        client.close()


# Secrets. The last test: it reads what all the others have left in the log.


def test_no_secret_is_in_the_log_or_in_a_response(secured: SecuredBroker) -> None:
    new_password = "changed-password-91c2"
    create_users(secured.broker.bootstrap_servers, "changing", password=new_password)
    with stranger(secured) as client:
        begin(client.socket, "PLAIN")
        token_exchange(client.socket, sasl_dialog.plain_token(WRONG_PASSWORD, WRONG_PASSWORD))
    with logged_in(secured, USER) as client:
        client.ask(
            apis.INCREMENTAL_ALTER_CONFIGS,
            1,
            resources=[
                {
                    "resource_type": 4,
                    "resource_name": "",
                    "configs": [{"name": "ssl.key.password", "config_operation": 0, "value": new_password}],
                }
            ],
            validate_only=True,
        )
        client.send(
            apis.DESCRIBE_CONFIGS,
            4,
            resources=[{"resource_type": 4, "resource_name": "1", "configuration_keys": None}],
            include_synonyms=True,
        )
        described = client.receive_frame()
    process = Path(f"/proc/{secured.broker.pid}")
    arguments = (process / "cmdline").read_text() + (process / "environ").read_text()
    for place in (secured.broker.log, described.decode(errors="replace"), arguments):
        for secret in (PASSWORD, WRONG_PASSWORD, new_password):
            assert secret not in place
        assert not re.search(r"p=[A-Za-z0-9+/]{40}", place), "the proof of a SCRAM login"
    assert "BEGIN PRIVATE KEY" not in described.decode(errors="replace")
