"""PLAIN and SCRAM of a server, against the clients of Skep and against impostors."""

import asyncio
import base64

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.secret import Secret
from skep.security.principal import Principal
from skep.security.sasl.mechanism import Authenticated, AuthenticationFailed, Mechanism
from skep.security.sasl.mechanisms import Mechanisms
from skep.security.sasl.password_checks import PasswordChecks
from skep.security.sasl.plain_mechanism import PlainMechanism
from skep.security.sasl.scram_mechanism import ScramCredential, ScramLookup, ScramMechanism
from skep.wire.sasl import scram_keys
from skep.wire.sasl.password_hash import PasswordHash, hash_password
from skep.wire.sasl.sasl_client import SaslClient, password_client
from skep.wire.sasl.scram_client import ScramClient
from skep.wire.sasl.scram_keys import SCRAM_SHA_256, SCRAM_SHA_512, Scram, ScramKeys


class MemoryUsers:
    """Passwords in memory, for PLAIN and SCRAM."""

    def __init__(self, **passwords: str) -> None:
        self.passwords = passwords

    def password_hash(self, username: str) -> PasswordHash | None:
        return HASHES.get(username)

    def scram_credential(self, scram: Scram, username: str) -> ScramLookup:
        if username not in self.passwords:
            return ScramLookup(ScramCredential(b"made up", 4096, ScramKeys(bytes(32), bytes(32))), False)
        salted = scram_keys.salted_password(scram, self.passwords[username], b"salt", 4096)
        return ScramLookup(ScramCredential(b"salt", 4096, scram_keys.keys_of(scram, salted)), True)


USERS = MemoryUsers(alice="secret", bob="sesame")
HASHES = {name: hash_password(Secret(password)) for name, password in USERS.passwords.items()}
PASSWORDS = PasswordChecks(USERS)


async def login(client: SaslClient, server: Mechanism) -> Authenticated:
    token: bytes | None = client.first()
    for _ in range(10):
        assert token is not None
        result = server.step(token)
        if not isinstance(result, bytes | Authenticated):
            result = await result
        token = client.next(result.response if isinstance(result, Authenticated) else result)
        if isinstance(result, Authenticated):
            assert token is None
            return result
    raise AssertionError("no end")


def begin(name: str) -> Mechanism:
    return Mechanisms(
        {
            "PLAIN": lambda: PlainMechanism(PASSWORDS),
            "SCRAM-SHA-256": lambda: ScramMechanism(SCRAM_SHA_256, USERS),
            "SCRAM-SHA-512": lambda: ScramMechanism(SCRAM_SHA_512, USERS),
        }
    ).begin(name)


@pytest.mark.parametrize("name", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_with_the_right_password_is_who_it_says(name):
    result = asyncio.run(login(password_client(name, "alice", Secret("secret")), begin(name)))
    assert (result.principal, result.expires_at_ms) == (Principal("alice"), None)


@pytest.mark.parametrize("name", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_and_an_unknown_user_look_the_same_to_the_client(name):
    texts = set()
    for user, password in [("alice", "wrong"), ("nobody", "secret")]:
        with pytest.raises(AuthenticationFailed) as caught:
            asyncio.run(login(password_client(name, user, Secret(password)), begin(name)))
        texts.add(str(caught.value))
        assert password not in caught.value.reason.replace("wrong password", "")
        assert "nobody" not in caught.value.reason
    assert texts == {f"Authentication failed with SASL mechanism {name}: invalid credentials"}


def test_another_mechanism_is_refused_with_the_list():
    offered = Mechanisms({"PLAIN": lambda: PlainMechanism(PASSWORDS)})
    assert offered.names == ["PLAIN"]
    with pytest.raises(KafkaError, match="enabled SASL mechanisms are PLAIN") as caught:
        offered.begin("GSSAPI")
    assert caught.value.code is ErrorCode.unsupported_sasl_mechanism


def test_plain_lets_nobody_act_as_another():
    """CVE-2017-12610."""
    assert asyncio.run(PlainMechanism(PASSWORDS).step(b"alice\0alice\0secret")).principal == Principal("alice")
    with pytest.raises(AuthenticationFailed):
        asyncio.run(PlainMechanism(PASSWORDS).step(b"bob\0alice\0secret"))


def test_plain_takes_one_message():
    server = PlainMechanism(PASSWORDS)
    asyncio.run(server.step(b"\0alice\0secret"))
    with pytest.raises(AuthenticationFailed):
        asyncio.run(server.step(b"\0alice\0secret"))


def test_scram_lets_nobody_act_as_another():
    """CVE-2017-12610."""
    with pytest.raises(AuthenticationFailed):
        ScramMechanism(SCRAM_SHA_256, USERS).step(b"n,a=bob,n=alice,r=nonce")
    assert isinstance(ScramMechanism(SCRAM_SHA_256, USERS).step(b"n,a=alice,n=alice,r=nonce"), bytes)


def final_of(first: bytes, server: ScramMechanism, nonce: str = "mine") -> bytes:
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("secret"), nonce)
    challenge = server.step(first)
    assert isinstance(challenge, bytes)
    final = client.next(challenge)
    assert final is not None
    return final


def test_a_login_that_was_recorded_is_refused_when_it_is_replayed():
    """CVE-2024-56128: only the nonce of the server makes two logins differ."""
    first, recorded = b"n,,n=alice,r=mine", ScramMechanism(SCRAM_SHA_256, USERS)
    final = final_of(first, recorded)
    assert isinstance(recorded.step(final), Authenticated)
    replayed = ScramMechanism(SCRAM_SHA_256, USERS)
    replayed.step(first)
    with pytest.raises(AuthenticationFailed) as caught:
        replayed.step(final)
    assert "nonce" in caught.value.reason


def final_with(server: ScramMechanism, changed: str) -> bytes:
    """The final message with another nonce, and a proof over it: so that nothing else is wrong."""
    challenge = server.step(b"n,,n=alice,r=mine")
    assert isinstance(challenge, bytes)
    salted = scram_keys.salted_password(SCRAM_SHA_256, "secret", b"salt", 4096)
    without_proof = f"c=biws,r={changed}"
    message = f"n=alice,r=mine,{challenge.decode()},{without_proof}".encode()
    proof = base64.b64encode(scram_keys.client_proof(SCRAM_SHA_256, salted, message)).decode()
    return f"{without_proof},p={proof}".encode()


@pytest.mark.parametrize(
    "changed",
    ["mineSERVE", "mineSERVERS", "mine", "SERVER", "mineSERVERmine", "minemine", "otherSERVER", "minmineSERVER"],
)
def test_the_whole_nonce_is_verified(changed):
    """CVE-2024-56128."""
    server = ScramMechanism(SCRAM_SHA_256, USERS, "SERVER")
    with pytest.raises(AuthenticationFailed) as caught:
        server.step(final_with(server, changed))
    assert "nonce" in caught.value.reason


def test_a_client_may_put_its_nonce_before_once_more():
    """librdkafka before 2.6.1 does, and so does the kcat of Debian."""
    server = ScramMechanism(SCRAM_SHA_256, USERS, "SERVER")
    assert isinstance(server.step(final_with(server, "minemineSERVER")), Authenticated)


def test_a_changed_header_is_refused():
    server = ScramMechanism(SCRAM_SHA_256, USERS)
    final = final_of(b"n,,n=alice,r=mine", server)
    with pytest.raises(AuthenticationFailed) as caught:
        server.step(final.replace(b"c=biws", b"c=" + base64.b64encode(b"y,,")))
    assert "header" in caught.value.reason


def test_a_first_message_is_taken_once():
    server = ScramMechanism(SCRAM_SHA_256, USERS)
    server.step(b"n,,n=alice,r=mine")
    for _ in range(2):
        with pytest.raises(AuthenticationFailed):
            server.step(b"n,,n=alice,r=mine")


def test_a_second_proof_is_not_tried():
    server = ScramMechanism(SCRAM_SHA_256, USERS)
    final = final_of(b"n,,n=alice,r=mine", server)
    with pytest.raises(AuthenticationFailed):
        server.step(final[:-8] + b"AAAAAAA=")
    with pytest.raises(AuthenticationFailed) as caught:
        server.step(final)
    assert "after the end" in caught.value.reason


def test_nothing_follows_a_login():
    server = ScramMechanism(SCRAM_SHA_256, USERS)
    final = final_of(b"n,,n=alice,r=mine", server)
    server.step(final)
    with pytest.raises(AuthenticationFailed):
        server.step(final)


def test_nobody_logs_in_as_a_user_that_does_not_exist_with_made_up_keys():
    """Somebody who guesses the made-up keys still is nobody."""
    scram = SCRAM_SHA_256
    salted = scram_keys.salted_password(scram, "any", b"salt", 4096)
    users = MemoryUsers()
    users.scram_credential = lambda *_: ScramLookup(  # type: ignore[method-assign]
        ScramCredential(b"salt", 4096, scram_keys.keys_of(scram, salted)), False
    )
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        asyncio.run(login(ScramClient(scram, "ghost", Secret("any")), ScramMechanism(scram, users)))


def test_a_credential_does_not_show_itself():
    found = USERS.scram_credential(SCRAM_SHA_256, "alice")
    assert "salt'" not in repr(found)
    assert "[hidden]" in repr(found)


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_credential_that_is_changed_during_a_login_of_scram_ends_it(name):
    users = MemoryUsers(carol="old")
    scram = scram_keys.SCRAMS[name]
    client, server = password_client(name, "carol", Secret("old")), ScramMechanism(scram, users)
    challenge = server.step(client.first())
    users.passwords["carol"] = "new"
    with pytest.raises(AuthenticationFailed) as failed:
        server.step(client.next(challenge))
    assert failed.value.reason == "the credential of user 'carol' was changed meanwhile"


def test_a_password_that_is_changed_while_it_is_checked_is_not_accepted():
    stored = {"carol": hash_password(Secret("old"))}

    class Users:
        def password_hash(self, username):
            return stored.pop(username, None)  # deleted right after the first look

    checks = PasswordChecks(Users())
    assert not asyncio.run(checks.check("carol", Secret("old"), {}))
    checks.close()


def test_a_listed_password_is_accepted_while_too_many_others_wait():
    checks = PasswordChecks(USERS)
    checks._waiting = 1 << 30
    assert asyncio.run(checks.check("broker", Secret("own"), {"broker": Secret("own")}))
    with pytest.raises(AuthenticationFailed):
        asyncio.run(checks.check("broker", Secret("guess"), {"broker": Secret("own")}))
    checks.close()
