"""A certificate authority in a directory, for trying out TLS and for tests: ``skep tls`` and ``EmbeddedBroker``.

Each certificate and its private key are in one PEM file, ``NAME.pem``, which Kafka calls a keystore of type PEM. Every
client reads it: those that ask for two files are given the same one twice. Keys are ECDSA P-256 in PKCS #8, because a
handshake with them costs a broker a third of one with RSA. The authority's own certificate is ``ca.pem``, its key
``ca.key``; only the authority needs the key, and a broker should not have it.

Left out: revocation, intermediate authorities, encrypted keys. An organisation has its own authority for those.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from skep.base.extras import how_to_install

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DEFAULT_DAYS = 365
AUTHORITY_DAYS = 3650
"""An authority outlives what it signs: to replace it, every client must be given the new one."""
MOST_DAYS = 36_500
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
CERTIFICATE_FILE, KEY_FILE = "ca.pem", "ca.key"
_TOLERATED_CLOCK_SKEW = datetime.timedelta(hours=1)
_LONGEST_NAME = 64
"""Of a common name, RFC 5280 appendix A.1."""
_LONGEST_HOST = 253
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
_HOST = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?"
)


class CertificateProblem(Exception):
    """A certificate cannot be made or read. The message is one line for a user."""


class CertificateSummary(NamedTuple):
    """What a person wants to know of a certificate."""

    subject: str
    """As RFC 2253 writes it: the principal of a client without mapping rules."""
    issuer: str
    names: tuple[str, ...]
    """Host names and addresses that it is valid for (subject alternative names)."""
    not_before: datetime.datetime
    not_after: datetime.datetime
    is_authority: bool


class CertificateAuthority:
    """Signs certificates and writes them to its directory. Existing files are never overwritten, unless asked to."""

    def __init__(self, directory: Path, certificate: "x509.Certificate", key: "EllipticCurvePrivateKey") -> None:
        self.directory = directory
        self.certificate_file = directory / CERTIFICATE_FILE
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, directory: Path, *, days: int = AUTHORITY_DAYS) -> "CertificateAuthority":
        """Makes the key and the certificate of a new authority. Creates the directory, for its owner only."""
        _check_cryptography()
        from cryptography.hazmat.primitives.asymmetric import ec

        check_days(days)
        for file in (CERTIFICATE_FILE, KEY_FILE):
            _refuse_to_overwrite(directory / file)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(key, "skep authority", days)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CertificateProblem(f"cannot make the directory {directory}: {error.strerror}") from None
        _write(directory / KEY_FILE, _key_pem(key), mode=0o600)
        _write(directory / CERTIFICATE_FILE, _certificate_pem(certificate), mode=0o644)
        return cls(directory, certificate, key)

    @classmethod
    def load(cls, directory: Path) -> "CertificateAuthority":
        """Reads an authority that ``create`` has made."""
        _check_cryptography()
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        certificate = read_certificate(directory / CERTIFICATE_FILE)
        path = directory / KEY_FILE
        try:
            key = serialization.load_pem_private_key(_read(path), None)
        except (ValueError, TypeError):
            raise CertificateProblem(f"{path} is not an unencrypted private key in PEM") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise CertificateProblem(f"{path} is not the key of {directory / CERTIFICATE_FILE}")
        return cls(directory, certificate, key)

    def sign_broker(
        self, hosts: Sequence[str], *, name: str = "broker", days: int = DEFAULT_DAYS, renew: bool = False
    ) -> Path:
        """Writes ``NAME.pem`` for brokers at these host names and addresses, and for what they ask of each other."""
        return self._sign(name, hosts, days, renew)

    def sign_client(self, name: str, *, days: int = DEFAULT_DAYS, renew: bool = False) -> Path:
        """Writes ``NAME.pem`` for a client. Its principal, without mapping rules, is ``User:CN=NAME``."""
        return self._sign(name, (), days, renew)

    def _sign(self, name: str, hosts: Sequence[str], days: int, renew: bool) -> Path:
        from cryptography.hazmat.primitives.asymmetric import ec

        check_name(name)
        check_days(days)
        path = self.directory / f"{name}.pem"
        if not renew:
            _refuse_to_overwrite(path)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(key, name, days, hosts=hosts, issuer=self._certificate, issuer_key=self._key)
        _write(path, _key_pem(key) + _certificate_pem(certificate), mode=0o600)
        return path


def check_name(name: str) -> None:
    """Raises CertificateProblem for a name that cannot be a common name and a file name."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise CertificateProblem(f"name {name!r}: expected up to {_LONGEST_NAME} letters, digits and . _ @ + -")
    if name == Path(CERTIFICATE_FILE).stem:
        raise CertificateProblem(f"name {name!r} is taken by the authority itself")


def check_host(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the address, None for a name. Raises CertificateProblem for what is neither."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    if not _HOST.fullmatch(host) or len(host) > _LONGEST_HOST:
        raise CertificateProblem(f"host {host!r}: expected a host name or an address, without a port")
    return None


def check_days(days: int) -> None:
    """Raises CertificateProblem for a time that is too short or too long."""
    if not 1 <= days <= MOST_DAYS:
        raise CertificateProblem(f"days {days}: expected 1 to {MOST_DAYS}")


def summary_of(path: Path) -> CertificateSummary:
    """Reads the first certificate of a PEM file."""
    _check_cryptography()
    from cryptography import x509

    certificate = read_certificate(path)
    extensions = certificate.extensions
    names: list[str] = []
    is_authority = False
    try:
        alternatives = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [str(one.value) for one in alternatives if isinstance(one, x509.DNSName | x509.IPAddress)]
    except x509.ExtensionNotFound:
        pass
    try:
        is_authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        pass
    return CertificateSummary(
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        tuple(names),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        is_authority,
    )


def read_certificate(path: Path) -> "x509.Certificate":
    """Reads the first certificate of a PEM file, which may have a key before it."""
    from cryptography import x509

    content = _read(path)
    if content.startswith((b"\xfe\xed\xfe\xed", b"0\x82")):
        raise CertificateProblem(
            f"{path} is not PEM but a keystore of Java or DER; convert it: keytool -importkeystore -srckeystore {path} "
            "-destkeystore store.p12 -deststoretype PKCS12 && openssl pkcs12 -in store.p12 -nodes -out store.pem"
        )
    try:
        return x509.load_pem_x509_certificates(content)[0]
    except ValueError:
        raise CertificateProblem(f"{path} has no certificate in PEM") from None


def _certificate(
    key: "EllipticCurvePrivateKey",
    name: str,
    days: int,
    *,
    hosts: Sequence[str] = (),
    issuer: "x509.Certificate | None" = None,
    issuer_key: "EllipticCurvePrivateKey | None" = None,
) -> "x509.Certificate":
    """Returns a certificate, signed by ``issuer`` or, without one, an authority's own.

    The extensions are those that Python 3.13 insists on (VERIFY_X509_STRICT).
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = (issuer_key or key).public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _TOLERATED_CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), critical=True
        )
        .add_extension(_key_usage(authority=issuer is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )
    if issuer is not None:
        # Brokers are clients of each other.
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
        builder = builder.add_extension(x509.ExtendedKeyUsage([*uses, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_general_name, hosts))), critical=False)
    return builder.sign(issuer_key or key, hashes.SHA256())


def _key_usage(*, authority: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    address = check_host(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def _key_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate_pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _check_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        how = how_to_install("tls")
        raise CertificateProblem(f"certificates need cryptography, which is not installed: {how}") from None


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists():
        raise CertificateProblem(f"{path} exists already and is not overwritten")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateProblem(f"cannot read {path}: {error.strerror}") from None


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Writes a file that is never readable by others, not for a moment, and replaces an old one in one step."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        temporary.rename(path)
    except OSError as error:
        raise CertificateProblem(f"cannot write {path}: {error.strerror}") from None
