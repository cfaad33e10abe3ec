"""The messages of PLAIN and OAUTHBEARER, and which client a mechanism has."""

import pytest

from skep.base.errors import OptionError
from skep.base.secret import Secret
from skep.wire.sasl.oauth_bearer import OAuthBearerClient, parse_bearer
from skep.wire.sasl.plain import PlainClient, parse_plain
from skep.wire.sasl.sasl_client import password_client
from skep.wire.sasl.sasl_error import SaslError
from skep.wire.sasl.scram_client import ScramClient


def test_plain_is_one_message():
    client = PlainClient("alice", Secret("pä=,ss"))
    login = parse_plain(client.first())
    assert (login.authzid, login.username, login.password.reveal()) == ("", "alice", "pä=,ss")
    assert client.next(b"") is None
    with pytest.raises(SaslError):
        client.next(b"more")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"alice\0secret",
        b"\0alice\0secret\0",
        b"\0\0secret",
        b"\0alice\0",
        b"\0\xff\0secret",
        b"\0" + b"a" * 256 + b"\0secret",
        b"a" * 256 + b"\0a\0secret",
        b"\0alice\0" + b"s" * 1025,
        b"s" * 100_000,
    ],
)
def test_a_malformed_plain_message_is_refused_and_not_repeated(message):
    with pytest.raises(SaslError) as caught:
        parse_plain(message)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_token_comes_with_its_extensions():
    client = OAuthBearerClient(Secret("abc.def.ghi"), {"traceId": "123"})
    assert client.first() == b"n,,\x01auth=Bearer abc.def.ghi\x01traceId=123\x01\x01"
    login = parse_bearer(client.first())
    assert (login.authzid, login.token.reveal(), login.extensions) == ("", "abc.def.ghi", {"traceId": "123"})
    assert client.next(b"") is None
    assert client.next(b'{"status":"invalid_token"}') == b"\x01"
    assert client.failure == '{"status":"invalid_token"}'


def test_a_token_may_name_whom_it_is_for():
    assert parse_bearer(b"n,a=al=2Cice,\x01auth=bearer x\x01\x01").authzid == "al,ice"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"p=x,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        b"n,,\x01auth=Bearer x\x01a\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"x" * 100_000 + b"\x01\x01",
    ],
)
def test_a_malformed_bearer_message_is_refused(message):
    with pytest.raises(SaslError):
        parse_bearer(message)


def test_a_mechanism_has_its_client():
    assert isinstance(password_client("PLAIN", "a", Secret("b")), PlainClient)
    assert isinstance(password_client("SCRAM-SHA-512", "a", Secret("b")), ScramClient)
    with pytest.raises(OptionError, match="unknown SASL mechanism 'GSSAPI'; known are PLAIN, SCRAM-SHA-256"):
        password_client("GSSAPI", "a", Secret("b"))
    with pytest.raises(OptionError, match="needs a token"):
        password_client("OAUTHBEARER", "a", Secret("b"))
