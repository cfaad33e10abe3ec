"""The names of security settings, of Java and of librdkafka, and what is refused."""

import pickle
from pathlib import Path

import pytest
import trustme

from skep.client.errors import BadSetting
from skep.client.security.client_properties import is_secret, librdkafka_properties
from skep.client.security.client_security import PLAINTEXT, ClientSecurity

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_login_of_java_becomes_a_user_and_a_password() -> None:
    found = librdkafka_properties(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="a=b;c";',
            "ssl.endpoint.identification.algorithm": "",
            "ssl.truststore.type": "PEM",
            "client.id": "mine",
        }
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "a=b;c",
        "ssl.endpoint.identification.algorithm": "none",
        "client.id": "mine",
    }


def test_pem_stores_of_java_become_locations(tmp_path: Path) -> None:
    pem = tmp_path / "store.pem"
    pem.write_bytes(trustme.CA().cert_pem.bytes())
    found = librdkafka_properties({"ssl.truststore.location": str(pem), "ssl.keystore.location": str(pem)})
    assert found == dict.fromkeys(("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"), str(pem))
    inline = {"ssl.truststore.certificates": "a", "ssl.keystore.certificate.chain": "b", "ssl.keystore.key": "c"}
    assert librdkafka_properties(inline) == {"ssl.ca.pem": "a", "ssl.certificate.pem": "b", "ssl.key.pem": "c"}


@pytest.mark.parametrize(
    ("name", "begin", "command"),
    [
        ("ssl.truststore.location", b"\xfe\xed\xfe\xed", "keytool -list -rfc -keystore"),
        ("ssl.keystore.location", b"\xfe\xed\xfe\xed", "keytool -importkeystore"),
        ("ssl.keystore.location", b"\x30\x82", "openssl pkcs12 -in"),
    ],
)
def test_a_store_of_java_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, name: str, begin: bytes, command: str
) -> None:
    (tmp_path / "store.jks").write_bytes(begin + bytes(100))
    with pytest.raises(BadSetting, match=command):
        librdkafka_properties({name: str(tmp_path / "store.jks")})


LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "p4ss",
}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: expected one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        (LOGIN | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI: expected one of PLAIN"),
        (
            LOGIN | {"sasl.jass.config": "x"},
            "no such setting; did you mean sasl.jaas.config?",
        ),
        (LOGIN | {"sasl.username": ""}, "needs sasl.username"),
        (LOGIN | {"sasl.jaas.config": "some.other.Module required;"}, "unknown login module"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"},
            "ssl.ca.location=/nowhere/ca.pem: No such",
        ),
        ({"security.protocol": "SSL", "ssl.ca.pem": "nothing"}, "ssl.ca.pem has no certificate"),
        ({"security.protocol": "SSL", "ssl.ca.location": __file__}, "has no certificate in PEM"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/nowhere"}, "ssl.truststore.location=/nowhere: No"),
        ({"security.protocol": "SSL", "ssl.certificate.location": "/nowhere"}, "ssl.certificate.location=/nowhere: No"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "dns"}, "expected https, or none"),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "NULL-OF-NOTHING"}, "OpenSSL knows none of them"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises(BadSetting) as refused:
        ClientSecurity.of(settings)
    assert words in str(refused.value)
    assert "p4ss" not in str(refused.value)


def test_a_key_that_is_encrypted_needs_its_password(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    mine = trustme.CA().issue_cert("client@skep.test")
    key = load_pem_private_key(mine.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"k3y"))
    settings = {
        "security.protocol": "SSL",
        "ssl.certificate.pem": mine.cert_chain_pems[0].bytes().decode(),
        "ssl.key.pem": encrypted.decode(),
    }
    assert ClientSecurity.of({**settings, "ssl.key.password": "k3y"}).wants_tls
    with pytest.raises(BadSetting, match=r"ssl\.key\.pem is encrypted: set ssl\.key\.password"):
        ClientSecurity.of(settings)
    with pytest.raises(BadSetting, match=r"cannot be decrypted with ssl\.key\.password"):
        ClientSecurity.of({**settings, "ssl.key.password": "wrong"})
    other = trustme.CA().issue_cert("client@skep.test").private_key_pem.bytes().decode()
    with pytest.raises(BadSetting, match=r"ssl\.key\.pem is not the key of ssl\.certificate\.pem"):
        ClientSecurity.of({**settings, "ssl.key.pem": other})


def test_settings_are_compared_and_pickled_and_show_no_secret() -> None:
    security = ClientSecurity.of({**LOGIN, "client.id": "ignored"})
    assert security == ClientSecurity.of(LOGIN) == pickle.loads(pickle.dumps(security))
    assert hash(security) == hash(ClientSecurity.of(LOGIN))
    assert security != ClientSecurity.of({**LOGIN, "sasl.password": "other"})
    assert repr(security) == "ClientSecurity(SASL_PLAINTEXT, PLAIN, u)"
    assert ClientSecurity.of({"bootstrap.servers": "h:1"}) == PLAINTEXT


@pytest.mark.parametrize(
    ("name", "hidden"),
    [("sasl.jaas.config", True), ("sasl.password", True), ("ssl.key.pem", True), ("sasl.username", False)],
)
def test_secrets_are_known_by_their_names(name: str, hidden: bool) -> None:
    assert is_secret(name) is hidden
