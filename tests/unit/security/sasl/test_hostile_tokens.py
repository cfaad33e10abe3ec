"""SASL messages of strangers: whatever they send, a login ends with a challenge, success or a refusal."""

import asyncio
import inspect

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skep.base.secret import Secret
from skep.metadata.cluster_image import ClusterImage
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed
from skep.security.sasl.oauth_bearer_mechanism import OAuthBearerMechanism
from skep.security.sasl.password_checks import PasswordChecks
from skep.security.sasl.plain_mechanism import PlainMechanism
from skep.security.sasl.scram_mechanism import ScramMechanism
from skep.security.sasl.token_validator import TokenValidator
from skep.security.users import Users
from skep.wire.sasl import plain, scram_messages
from skep.wire.sasl.oauth_bearer import parse_bearer
from skep.wire.sasl.plain import parse_plain
from skep.wire.sasl.sasl_error import SaslError
from skep.wire.sasl.scram_client import ScramClient
from skep.wire.sasl.scram_keys import SCRAM_SHA_256, SCRAM_SHA_512
from skep.wire.sasl.scram_messages import (
    parse_client_final,
    parse_client_first,
    parse_server_final,
    parse_server_first,
)
from tests.manual_clock import ManualClock

PARSERS = (parse_plain, parse_bearer, parse_client_first, parse_server_first, parse_client_final, parse_server_final)
PIECES = st.sampled_from(
    [
        *(b"n,,", b"y,,", b"p=tls,,", b"n,a=bob,", b"n=alice", b"r=nonce", b"r=", b"s=c2FsdA==", b"i=4096", b"i=-1"),
        *(b"c=biws", b"p=AAAA", b"v=AAAA", b"e=x", b"m=x", b",", b"=", b"=2C", b"=3D", b"\x00", b"\x01", b"\xff", b"x"),
        *(b"auth=Bearer ", b"auth=Bearer a.b.c", b"i=99999999999999999999", "ü".encode(), b"tokenauth=true"),
    ]
)
MESSAGES = st.one_of(
    st.binary(max_size=200), st.lists(PIECES, max_size=12).map(b"".join), st.lists(PIECES, max_size=12).map(b",".join)
)
USERS = Users(lambda: ClusterImage.of("c", (), ()))


class NoKeys:
    keys = None

    def key_is_missing(self):
        pass


class Unused:
    """No password is checked by scrypt here: it takes long, and nothing hostile comes so far."""

    async def check(self, username, password, listed):
        return False

    def knows(self, username):
        return False


def mechanisms():
    validator = TokenValidator(NoKeys(), ManualClock(), issuer="i", audiences=["a"])
    yield PlainMechanism(Unused())
    yield ScramMechanism(SCRAM_SHA_256, USERS)
    yield ScramMechanism(SCRAM_SHA_512, USERS)
    yield OAuthBearerMechanism(validator)


@given(MESSAGES)
@example(b"n,,n=a,r=b" + b",x=y" * 1000)
@example(b"," * 5000)
@example(b"\x00" * 5000)
@example(b"n,," + b"\x01" * 70_000)
def test_no_message_breaks_a_parser(message):
    for parse in PARSERS:
        try:
            parse(message)
        except SaslError as error:
            assert len(str(error)) < 200


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_no_messages_log_in_or_break_a_mechanism(messages):
    async def talk():
        for mechanism in mechanisms():
            for message in messages:
                try:
                    result = mechanism.step(message)
                    result = await result if inspect.isawaitable(result) else result
                except AuthenticationFailed as error:
                    assert len(error.reason) < 400
                    continue
                assert isinstance(result, bytes)
                assert len(result) < 2000

    asyncio.run(talk())


@given(st.data())
def test_no_change_of_a_proof_logs_in(data):
    """One byte of the right final message is another one, or is missing, or comes twice."""
    users = Users(lambda: ClusterImage.of("c", (), (), entries={"users": {"alice": ALICE}}))
    server = ScramMechanism(SCRAM_SHA_256, users)
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("secret"))
    final = client.next(server.step(client.first()))
    place = data.draw(st.integers(0, len(final) - 1))
    kind = data.draw(st.sampled_from(["change", "drop", "double"]))
    new = {
        "change": bytes([final[place] ^ data.draw(st.integers(1, 255))]),
        "drop": b"",
        "double": final[place:][:1] * 2,
    }
    changed = final[:place] + new[kind] + final[place + 1 :]
    # The last letter of base64 has bits that mean nothing; the same bytes may be written in several ways.
    try:
        same = parse_client_final(changed)[:3] == parse_client_final(final)[:3]
    except SaslError:
        same = False
    try:
        result = server.step(changed)
    except AuthenticationFailed:
        return
    assert isinstance(result, Authenticated)
    assert same


ALICE = {}


@pytest.fixture(autouse=True, scope="module")
def alice():
    from skep.security.users import scram_fields
    from skep.wire.sasl.scram_keys import salted_password

    salted = salted_password(SCRAM_SHA_256, "secret", b"salt", 4096)
    ALICE["SCRAM-SHA-256"] = scram_fields(SCRAM_SHA_256, b"salt", 4096, salted)


def test_what_a_stranger_makes_the_broker_keep_is_bounded():
    assert scram_messages.MAX_MESSAGE_BYTES <= 4096
    assert plain.MAX_NAME_BYTES + plain.MAX_PASSWORD_BYTES < 2000


# PLAIN: the same work whoever logs in.


class CountedHash:
    """Stands for a stored hash, and counts how often it is checked."""

    def __init__(self, password):
        self.password, self.checks = password, 0

    def matches(self, password):
        self.checks += 1
        return password.reveal() == self.password


def test_each_wrong_login_costs_one_hash_whoever_it_names(monkeypatch):
    nobody, alice = CountedHash(None), CountedHash("secret")
    monkeypatch.setattr("skep.security.sasl.password_checks._NOBODY", nobody)

    class Two:
        def password_hash(self, username):
            return alice if username == "alice" else None

    checks, listed = PasswordChecks(Two()), {"broker": Secret("inter")}

    async def talk():
        assert not await checks.check("alice", Secret("wrong"), listed)
        assert (alice.checks, nobody.checks) == (1, 0)
        assert not await checks.check("ghost", Secret("wrong"), listed)
        assert (alice.checks, nobody.checks) == (1, 1)
        assert not await checks.check("broker", Secret("wrong"), listed)
        assert (alice.checks, nobody.checks) == (1, 2)
        assert await checks.check("broker", Secret("inter"), listed)
        assert await checks.check("alice", Secret("secret"), listed)
        # A listed password that is right costs none.
        assert (alice.checks, nobody.checks) == (2, 2)
        # A password that was right before is recognized without the hash, a wrong one still costs one.
        assert await checks.check("alice", Secret("secret"), listed)
        assert alice.checks == 2
        assert not await checks.check("alice", Secret("wrong"), listed)
        assert alice.checks == 3

    asyncio.run(talk())
    checks.close()


def test_a_changed_password_is_not_remembered():
    hashes = {"alice": CountedHash("old")}

    class One:
        def password_hash(self, username):
            return hashes.get(username)

    checks = PasswordChecks(One())

    async def talk():
        assert await checks.check("alice", Secret("old"), {})
        hashes["alice"] = CountedHash("new")
        assert not await checks.check("alice", Secret("old"), {})
        assert await checks.check("alice", Secret("new"), {})
        del hashes["alice"]
        assert not await checks.check("alice", Secret("new"), {})

    asyncio.run(talk())
    checks.close()


def test_too_many_checks_at_a_time_are_refused(monkeypatch):
    monkeypatch.setattr("skep.security.sasl.password_checks.MAX_WAITING", 0)

    class Nobody:
        def password_hash(self, username):
            return None

    checks = PasswordChecks(Nobody())
    with pytest.raises(AuthenticationFailed) as caught:
        asyncio.run(checks.check("alice", Secret("x"), {}))
    assert "wait to be checked" in caught.value.reason
    checks.close()
