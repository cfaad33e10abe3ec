"""The TLS context of a listener, out of its options. Keys and certificates are in PEM form, in files or inline.

An inline key is passed to OpenSSL as a file in memory: Python's ``ssl`` reads certificates from files only, and a
secret must not be written to a disk.
"""

import contextlib
import os
import re
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from skep.base.config.security_config import SecurityConfig
from skep.base.errors import OptionError

_JKS, _PKCS12 = b"\xfe\xed\xfe\xed", b"\x30"
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_JAVA_SUITE = re.compile(r"TLS_(?P<exchange>\w+)_WITH_(?P<cipher>\w+)")


def server_context(security: SecurityConfig) -> ssl.SSLContext:
    """Raises OptionError, with the option, for what cannot be read or does not belong together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[name] for name in security.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.verify_mode = _CLIENT_AUTH[security.ssl_client_auth]
    _set_ciphers(context, security.ssl_cipher_suites)
    _load_certificate(context, security)
    if security.ssl_client_auth != "none":
        _load_trusted(context, security)
    return context


def certificate_chain(security: SecurityConfig) -> bytes:
    """Returns the PEM text with the broker's certificate."""
    if security.ssl_keystore_location:
        return Path(security.ssl_keystore_location).read_bytes()
    return _pem(security.ssl_keystore_certificate_chain).encode()


def first_certificate(pem: bytes) -> str:
    """Returns the first certificate of a PEM text, which may have a key before it."""
    found = re.search(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", pem.decode(), re.DOTALL)
    if found is None:
        raise OptionError("ssl.keystore.location: there is no certificate in PEM form")
    return found[0]


def _load_certificate(context: ssl.SSLContext, security: SecurityConfig) -> None:
    location, password = security.ssl_keystore_location, security.ssl_key_password

    def key_password() -> str:
        # Called only for a key that is encrypted. Without it OpenSSL would ask at the terminal.
        if not password:
            raise OptionError("the private key of the broker is encrypted: set ssl.key.password")
        return password

    if location:
        _check_readable("ssl.keystore.location", location)
        name = f"ssl.keystore.location={location}"
    elif security.ssl_keystore_key and security.ssl_keystore_certificate_chain:
        name = "ssl.keystore.key and ssl.keystore.certificate.chain"
    else:
        raise OptionError(
            "a listener with TLS needs the broker's key and certificate: set ssl.keystore.location to a PEM file with "
            "both (skep tls makes one for trying it out)"
        )
    try:
        if location:
            context.load_cert_chain(location, password=key_password)
        else:
            with (
                _file(security.ssl_keystore_certificate_chain) as chain,
                _file(security.ssl_keystore_key) as key,
            ):
                context.load_cert_chain(chain, key, key_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OptionError(f"{name}: the key does not belong to the certificate") from None
        if password:
            raise OptionError(f"{name}: cannot be read; is ssl.key.password right?") from None
        raise OptionError(f"{name}: there must be a private key and a certificate in PEM form") from None


def _load_trusted(context: ssl.SSLContext, security: SecurityConfig) -> None:
    location, pem = security.ssl_truststore_location, security.ssl_truststore_certificates
    if not location and not pem:
        raise OptionError(
            f"ssl.client.auth={security.ssl_client_auth} needs the CAs that clients are checked by: set "
            "ssl.truststore.location to a PEM file with their certificates"
        )
    name = f"ssl.truststore.location={location}" if location else "ssl.truststore.certificates"
    if location:
        _check_readable("ssl.truststore.location", location)
    try:
        context.load_verify_locations(cafile=location or None, cadata=None if location else _pem(pem))
    except ssl.SSLError:
        raise OptionError(f"{name}: there must be certificates in PEM form") from None


def _check_readable(option: str, location: str) -> None:
    try:
        # A device or a pipe could block the event loop.
        if not stat.S_ISREG(os.stat(location).st_mode):
            raise OptionError(f"{option}={location}: not a file")
        with open(location, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise OptionError(f"{option}={location}: {(error.strerror or str(error)).lower()}") from None
    if start == _JKS:
        raise OptionError(
            f"{option}={location}: a JKS file; only PEM is supported. Convert it with keytool -importkeystore "
            f"-srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12, then openssl pkcs12 -in store.p12 "
            "-out broker.pem"
        )
    if start[:1] == _PKCS12:
        raise OptionError(
            f"{option}={location}: a PKCS12 or DER file; only PEM is supported. Convert it with openssl pkcs12 -in "
            f"{location} -out broker.pem"
        )


def _set_ciphers(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    # OpenSSL has the suites of TLS 1.3 (TLS_AES_256_GCM_SHA384) always on, and Python cannot change that.
    names = [_openssl_name(suite) for suite in suites if not re.fullmatch(r"TLS_(AES|CHACHA20)_\w+", suite)]
    if not names:
        return
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        raise OptionError(f"ssl.cipher.suites={','.join(suites)}: OpenSSL knows none of them") from None


def _openssl_name(suite: str) -> str:
    """Returns ``ECDHE-RSA-AES128-GCM-SHA256`` for ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    found = _JAVA_SUITE.fullmatch(suite)
    if found is None:
        return suite
    cipher = re.sub(r"AES_(\d+)", r"AES\1", found["cipher"]).removesuffix("_SHA256" if "POLY1305" in suite else "")
    cipher = cipher.replace("_CBC", "")
    exchange = "" if found["exchange"] == "RSA" else found["exchange"].replace("_", "-") + "-"
    return exchange + cipher.replace("_", "-")


def _pem(text: str) -> str:
    """Returns PEM text with lines. In a file of options it may have been written as one, with spaces between."""
    if "\n" in text:
        return text
    return re.sub(
        r"(-----BEGIN [A-Z0-9 ]+-----)(.*?)(-----END [A-Z0-9 ]+-----)",
        lambda part: f"{part[1]}\n{part[2].strip().replace(' ', chr(10))}\n{part[3]}\n",
        text.replace("\\n", "\n"),
        flags=re.DOTALL,
    )


@contextlib.contextmanager
def _file(pem: str) -> Iterator[str]:
    descriptor = os.memfd_create("pem")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(_pem(pem).encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
