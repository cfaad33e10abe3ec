import datetime
import ssl
import stat
from pathlib import Path

import pytest

from skep.security.tls import certificate_authority
from skep.security.tls.certificate_authority import CertificateAuthority, CertificateProblem, summary_of


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "tls")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A whole handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    at_server = server.wrap_bio(to_server, to_client, server_side=True)
    at_client = client.wrap_bio(to_client, to_server, server_hostname=host)
    done = 0
    for _ in range(10):
        for side in (at_client, at_server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
        if done >= 4:
            return at_server, at_client
    raise AssertionError("no end of the handshake")


def server_context(authority: CertificateAuthority, keystore: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate_file))
    context.load_cert_chain(keystore)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def client_context(authority: CertificateAuthority, keystore: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate_file))
    context.load_cert_chain(keystore)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "broker.example.org"])
def test_a_broker_and_a_client_of_one_authority_trust_each_other(authority: CertificateAuthority, host: str) -> None:
    broker = authority.sign_broker(["localhost", "127.0.0.1", "broker.example.org"])
    alice = authority.sign_client("alice")
    server, _ = handshake(server_context(authority, broker), client_context(authority, alice), host)
    assert server.getpeercert()["subject"] == ((("commonName", "alice"),),)


def test_another_host_is_not_trusted(authority: CertificateAuthority) -> None:
    broker = authority.sign_broker(["localhost"])
    alice = authority.sign_client("alice")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server_context(authority, broker), client_context(authority, alice), "evil.example.org")


def test_a_client_cannot_play_the_broker(authority: CertificateAuthority) -> None:
    alice = authority.sign_client("alice")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(authority, alice), client_context(authority, alice), "localhost")


def test_another_authority_is_not_trusted(authority: CertificateAuthority, tmp_path: Path) -> None:
    other = CertificateAuthority.create(tmp_path / "other")
    server = server_context(authority, authority.sign_broker(["localhost"]))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client_context(other, other.sign_client("alice")), "localhost")


def test_keys_are_for_their_owner_only(authority: CertificateAuthority) -> None:
    authority.sign_broker(["localhost"])
    authority.sign_client("alice")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in authority.directory.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "broker.pem": 0o600, "alice.pem": 0o600}
    assert stat.S_IMODE(authority.directory.stat().st_mode) == 0o700


def test_nothing_is_overwritten(authority: CertificateAuthority) -> None:
    path = authority.sign_client("alice")
    before = path.read_bytes()
    with pytest.raises(CertificateProblem, match="exists already"):
        authority.sign_client("alice")
    with pytest.raises(CertificateProblem, match="exists already"):
        CertificateAuthority.create(authority.directory)
    assert path.read_bytes() == before


def test_a_loaded_authority_renews_a_certificate(authority: CertificateAuthority) -> None:
    first = authority.sign_broker(["localhost"], days=1)
    loaded = CertificateAuthority.load(authority.directory)
    before = summary_of(first)
    assert loaded.sign_broker(["localhost"], days=30, renew=True) == first
    after = summary_of(first)
    assert after.not_after - before.not_after > datetime.timedelta(days=28)
    assert (after.issuer, after.names) == (before.issuer, before.names)
    assert stat.S_IMODE(first.stat().st_mode) == 0o600


def test_the_summary_names_what_a_person_looks_for(authority: CertificateAuthority) -> None:
    summary = summary_of(authority.sign_broker(["localhost", "::1", "*.example.org"], days=10))
    assert summary.subject == "CN=broker"
    assert summary.names == ("localhost", "::1", "*.example.org")
    assert not summary.is_authority
    assert summary_of(authority.certificate_file).is_authority


@pytest.mark.parametrize("name", ["", "../alice", "a/b", "ca", ".hidden", "a" * 65, "two words", "line\n"])
def test_a_name_that_is_no_file_name_is_refused(authority: CertificateAuthority, name: str) -> None:
    with pytest.raises(CertificateProblem, match="name"):
        authority.sign_client(name)


@pytest.mark.parametrize("host", ["", "a b", "host:9093", "-x", "a..b", "http://x", "höst"])
def test_a_host_that_is_no_host_is_refused(authority: CertificateAuthority, host: str) -> None:
    with pytest.raises(CertificateProblem, match="expected a host name"):
        authority.sign_broker([host])
    assert not (authority.directory / "broker.pem").exists()


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_impossible_days_are_refused(authority: CertificateAuthority, days: int) -> None:
    with pytest.raises(CertificateProblem, match="expected 1 to 36500"):
        authority.sign_client("alice", days=days)


def test_a_keystore_of_java_is_named_with_the_command_that_converts_it(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(CertificateProblem, match=r"keytool -importkeystore .* openssl pkcs12"):
        summary_of(store)


@pytest.mark.parametrize(("content", "message"), [(b"", "no certificate"), (None, "cannot read"), (b"x", "no cert")])
def test_what_is_no_certificate_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CertificateProblem, match=message):
        summary_of(path)


def test_a_key_of_another_authority_is_refused(authority: CertificateAuthority, tmp_path: Path) -> None:
    other = CertificateAuthority.create(tmp_path / "other")
    (authority.directory / "ca.key").write_bytes((other.directory / "ca.key").read_bytes())
    with pytest.raises(CertificateProblem, match="is not the key of"):
        CertificateAuthority.load(authority.directory)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(certificate_authority.CertificateProblem, match=r"\[tls\]"):
        CertificateAuthority.create(tmp_path / "tls")
