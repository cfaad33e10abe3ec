"""SCRAM against the examples of its RFCs, and its messages."""

import base64

import pytest

from skep.base.secret import Secret
from skep.wire.sasl import scram_keys
from skep.wire.sasl.sasl_error import SaslError
from skep.wire.sasl.scram_client import ScramClient
from skep.wire.sasl.scram_keys import SCRAM_SHA_256, SCRAM_SHA_512, Scram
from skep.wire.sasl.scram_messages import (
    auth_message,
    client_first_bare,
    parse_client_final,
    parse_client_first,
    parse_server_first,
)

SHA_1 = Scram("SCRAM-SHA-1", 0, "sha1")

RFC_5802 = (
    SHA_1,
    "fyko+d2lbbFgONRv9qkxdawL",
    b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    SCRAM_SHA_256,
    "rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


@pytest.mark.parametrize(("scram", "nonce", "server_first", "client_final", "server_final"), [RFC_5802, RFC_7677])
def test_a_login_is_that_of_the_rfc(scram, nonce, server_first, client_final, server_final):
    client = ScramClient(scram, "user", Secret("pencil"), nonce)
    assert client.first() == f"n,,n=user,r={nonce}".encode()
    assert client.next(server_first) == client_final
    assert not client.is_done
    assert client.next(server_final) is None
    assert client.is_done


@pytest.mark.parametrize(("scram", "nonce", "server_first", "client_final", "server_final"), [RFC_5802, RFC_7677])
def test_the_keys_of_a_server_verify_the_proof_of_the_rfc(scram, nonce, server_first, client_final, server_final):
    server = parse_server_first(server_first)
    keys = scram_keys.keys_of(scram, scram_keys.salted_password(scram, "pencil", server.salt, server.iterations))
    final = parse_client_final(client_final)
    message = auth_message(client_first_bare("user", nonce), server_first.decode(), final.without_proof)
    assert scram_keys.proves(scram, keys, message, final.proof)
    assert not scram_keys.proves(scram, keys, message, final.proof[:-1])
    assert not scram_keys.proves(scram, keys, message, final.proof[:-1] + bytes([final.proof[-1] ^ 1]))
    assert not scram_keys.proves(scram, keys, message + b"x", final.proof)
    signature = scram_keys.server_signature(scram, keys.server_key, message)
    assert b"v=" + base64.b64encode(signature) == server_final


def test_keys_do_not_show_themselves():
    keys = scram_keys.keys_of(SCRAM_SHA_512, scram_keys.salted_password(SCRAM_SHA_512, "pencil", b"salt", 4096))
    assert repr(keys) == str(keys) == "ScramKeys([hidden])"


def test_a_server_that_does_not_know_the_password_is_found_out():
    scram, nonce, server_first, _, _ = RFC_7677
    client = ScramClient(scram, "user", Secret("pencil"), nonce)
    client.next(server_first)
    with pytest.raises(SaslError, match="signature is wrong"):
        client.next(b"v=" + base64.b64encode(bytes(32)))
    assert not client.is_done


@pytest.mark.parametrize(
    ("server_first", "what"),
    [
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue"),
        (b"r=mine,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue"),
        (b"r=mine2,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095", "wants 4095 iterations"),
        (b"r=mine2,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=999999999", "iterations"),
        (b"r=mine2,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999999999999", "malformed"),
        (b"r=mine2,s=,i=4096", "salt is empty"),
        (b"r=mine2,s=!,i=4096", "not base64"),
        (b"m=x,r=mine2,s=AA==,i=4096", "mandatory"),
        (b"e=other-error", "incomplete"),
        (b"\xff", "UTF-8"),
        (b"r=" + b"x" * 5000, "too long"),
    ],
)
def test_a_client_refuses_a_challenge(server_first, what):
    client = ScramClient(SCRAM_SHA_256, "user", Secret("pencil"), "mine")
    with pytest.raises(SaslError, match=what):
        client.next(server_first)


def test_a_login_that_the_server_refused_is_told_as_such():
    client = ScramClient(SCRAM_SHA_256, "user", Secret("pencil"), "rOprNGfwEbeRWgbNEkqO")
    client.next(RFC_7677[2])
    with pytest.raises(SaslError, match="the server refused the login"):
        client.next(b"e=invalid-proof")


@pytest.mark.parametrize("name", ["alice", "a,b", "a=b", "=2C", "ünïcode", "CN=a,O=b"])
def test_any_name_comes_through_its_escapes(name):
    first = parse_client_first(b"n,," + client_first_bare(name, "nonce").encode())
    assert (first.username, first.nonce, first.authzid, first.gs2_header) == (name, "nonce", "", "n,,")


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (b"", "channel binding"),
        (b"y,,n=a,r=b", "channel binding"),
        (b"p=tls-unique,,n=a,r=b", "channel binding"),
        (b"n,,n=a", "incomplete"),
        (b"n,x,n=a,r=b", "GS2"),
        (b"n,,m=a,n=a,r=b", "mandatory"),
        (b"n,,n=,r=b", "name of the user is malformed"),
        (b"n,,n=a=b,r=b", "name of the user is malformed"),
        (b"n,,n=a,r=", "nonce"),
        (b"n,,n=a,r=\x01", "nonce"),
        (b"n,,r=b,n=a", "no n="),
        (b"n,,n=a,r=b,x", "extension"),
        (b"n,,n=a,r=b,tokenauth=true", "delegation tokens"),
        (b"n,,n=" + b"a" * 256 + b",r=b", "too long"),
        (b"n,,n=a,r=" + b"b" * 5000, "too long"),
        (b"n,,n=\xff,r=b", "UTF-8"),
    ],
)
def test_a_malformed_first_message_is_refused(message, what):
    with pytest.raises(SaslError, match=what):
        parse_client_first(message)


def test_unknown_extensions_are_ignored():
    first = parse_client_first(b"n,,n=a,r=b,x=y,z=1=2")
    assert first.bare == "n=a,r=b,x=y,z=1=2"
