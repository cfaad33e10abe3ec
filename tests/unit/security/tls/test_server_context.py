"""TLS contexts out of a listener's options: files and inline PEM, encrypted keys, and what cannot be used."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import OptionError
from skep.security.tls.certificate_authority import LOCAL_HOSTS, CertificateAuthority
from skep.security.tls.listener_tls import ListenerTls
from skep.security.tls.server_context import server_context


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "ca")


@pytest.fixture
def keystore(authority: CertificateAuthority) -> Path:
    return authority.sign_broker(LOCAL_HOSTS)


def refusal(**options: object) -> str:
    with pytest.raises(OptionError) as raised:
        server_context(SecurityConfig(**options))
    return str(raised.value)


def key_and_chain(keystore: Path, password: bytes | None = None) -> tuple[str, str]:
    text = keystore.read_bytes()
    key = serialization.load_pem_private_key(text, None)
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    chain = text[text.index(b"-----BEGIN CERTIFICATE") :]
    return pem.decode(), chain.decode()


def test_key_and_certificate_may_be_in_one_file_or_inline(keystore: Path) -> None:
    assert server_context(SecurityConfig(ssl_keystore_location=str(keystore)))
    key, chain = key_and_chain(keystore)
    assert server_context(SecurityConfig(ssl_keystore_key=key, ssl_keystore_certificate_chain=chain))
    one_line = {
        "ssl_keystore_key": key.replace("\n", " ").strip(),
        "ssl_keystore_certificate_chain": chain.replace("\n", " ").strip(),
    }
    assert server_context(SecurityConfig(**one_line))


def test_an_encrypted_key_needs_its_password(keystore: Path) -> None:
    key, chain = key_and_chain(keystore, b"wonderland")
    given = {"ssl_keystore_key": key, "ssl_keystore_certificate_chain": chain}
    assert server_context(SecurityConfig(**given, ssl_key_password="wonderland"))
    assert "set ssl.key.password" in refusal(**given)
    wrong = refusal(**given, ssl_key_password="looking-glass")
    assert "is ssl.key.password right?" in wrong
    assert "looking-glass" not in wrong


def test_what_cannot_be_used_is_named(authority: CertificateAuthority, keystore: Path, tmp_path: Path) -> None:
    assert "set ssl.keystore.location to a PEM file" in refusal()
    assert "no such file" in refusal(ssl_keystore_location=str(tmp_path / "none.pem"))
    assert "not a file" in refusal(ssl_keystore_location="/dev/ptmx")
    assert "private key and a certificate" in refusal(ssl_keystore_location=str(authority.certificate_file))
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    assert "keytool -importkeystore -srckeystore" in refusal(ssl_keystore_location=str(tmp_path / "store.jks"))
    (tmp_path / "store.p12").write_bytes(b"\x30\x82\0\0")
    assert "openssl pkcs12 -in" in refusal(ssl_keystore_location=str(tmp_path / "store.p12"))
    key, _ = key_and_chain(keystore)
    _, other_chain = key_and_chain(authority.sign_client("other"))
    swapped = refusal(ssl_keystore_key=key, ssl_keystore_certificate_chain=other_chain)
    assert "the key does not belong to the certificate" in swapped


def test_clients_are_checked_by_authorities_that_are_given(authority: CertificateAuthority, keystore: Path) -> None:
    given = {"ssl_keystore_location": str(keystore), "ssl_client_auth": "required"}
    assert "set ssl.truststore.location" in refusal(**given)
    pem = authority.certificate_file.read_text()
    assert server_context(SecurityConfig(**given, ssl_truststore_certificates=pem)).get_ca_certs()
    assert server_context(SecurityConfig(**given, ssl_truststore_location=str(authority.certificate_file)))


def test_suites_have_the_names_of_java_or_of_openssl(keystore: Path) -> None:
    def suites(*names: str) -> set[str]:
        context = server_context(SecurityConfig(ssl_keystore_location=str(keystore), ssl_cipher_suites=names))
        return {one["name"] for one in context.get_ciphers() if one["protocol"] != "TLSv1.3"}

    assert suites("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384") == {
        "ECDHE-ECDSA-AES128-GCM-SHA256"
    }
    assert suites("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256") == {"ECDHE-RSA-CHACHA20-POLY1305"}
    assert suites("ECDHE-RSA-AES256-GCM-SHA384") == {"ECDHE-RSA-AES256-GCM-SHA384"}
    assert "OpenSSL knows none" in refusal(ssl_keystore_location=str(keystore), ssl_cipher_suites=("ROT13",))


def test_the_end_of_a_certificate_is_told_once_for_each_step(keystore: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    tls = ListenerTls("A", SecurityConfig(ssl_keystore_location=str(keystore)))
    end = datetime.now(UTC) + timedelta(days=365)

    def days_before(days: float) -> list[str]:
        caplog.clear()
        tls.warn_of_expiry(end - timedelta(days=days))
        return caplog.messages

    assert days_before(40) == []
    assert days_before(29.5) == ["the certificate of listener A expires in 29 days (ssl.keystore.location)"]
    assert days_before(20) == []
    assert "in 6 days" in days_before(6.5)[0]
    assert "in 12 hours" in days_before(0.53)[0] or "in 11 hours" in days_before(0.5)[0]
    assert "has expired" in days_before(-1)[0]
