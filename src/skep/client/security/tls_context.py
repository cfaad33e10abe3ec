"""TLS contexts out of PEM, in files or inline, and their sockets.

A key that is inline is passed to OpenSSL as a file in memory: Python's ``ssl`` reads certificates from files only, and
a secret must not be written to a disk.
"""

import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from skep.client.errors import BadSetting

MAX_JOINED_BYTES = 64 * 1024


class TlsSocket(ssl.SSLSocket):
    """Raises BlockingIOError where OpenSSL has to wait, and has ``sendmsg``.

    After BlockingIOError of a send the same bytes must come again, at the same place: OpenSSL has encrypted them and
    remembers how many. More may follow behind them.
    """

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        try:
            return super().recv_into(*arguments, **options)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Sends the first buffer, or several that are short: each call costs a record of TLS."""
        joined = bytearray()
        try:
            for buffer in buffers:
                if not joined and len(buffer) >= MAX_JOINED_BYTES:
                    return self.send(buffer)
                joined += buffer[: MAX_JOINED_BYTES - len(joined)]
                if len(joined) >= MAX_JOINED_BYTES:
                    break
            return self.send(joined)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


def client_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Returns the context of a client. ``settings`` have the names of librdkafka. Raises BadSetting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = TlsSocket
    # A certificate in the file is trusted as it is, without its issuer: so it is with Java and librdkafka.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    algorithm = settings.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm not in ("https", "none"):
        raise BadSetting(
            f"ssl.endpoint.identification.algorithm={algorithm}: expected https, or none to skip the check"
        )
    context.check_hostname = algorithm == "https"
    verified = settings.get("enable.ssl.certificate.verification", "true").strip().lower()
    if verified not in ("true", "false"):
        raise BadSetting(f"enable.ssl.certificate.verification={verified}: expected true or false")
    if verified == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load_trusted(context, settings)
    if "ssl.certificate.location" in settings or "ssl.certificate.pem" in settings:
        load_certificate(context, settings)
    if ciphers := settings.get("ssl.cipher.suites"):
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError:
            raise BadSetting(f"ssl.cipher.suites={ciphers}: OpenSSL knows none of them") from None
    return context


def _load_trusted(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    location, pem = settings.get("ssl.ca.location", ""), settings.get("ssl.ca.pem", "")
    if not location and not pem:
        context.load_default_certs()
        return
    load_trusted(context, location, pem)


def load_trusted(context: ssl.SSLContext, location: str, pem: str) -> None:
    """Trusts the certificates of a file, of a folder or of a text."""
    try:
        if pem:
            context.load_verify_locations(cadata=pem.replace("\\n", "\n"))
        if location in ("", "probe"):
            return
        if os.path.isdir(location):
            context.load_verify_locations(capath=location)
        else:
            context.load_verify_locations(cafile=location)
    except ssl.SSLError:
        name = "ssl.ca.pem" if pem else f"ssl.ca.location={location}"
        raise BadSetting(f"{name} has no certificate in PEM (-----BEGIN CERTIFICATE-----)") from None
    except OSError as error:
        raise BadSetting(f"ssl.ca.location={location}: {error.strerror}") from None


def load_certificate(context: ssl.SSLContext, settings: Mapping[str, str]) -> None:
    """Loads the own certificate, its chain, and its key. Raises BadSetting."""
    with (
        _file_of(settings, "ssl.certificate") as (certificate, certificate_name),
        _file_of(settings, "ssl.key", otherwise=certificate) as (key, key_name),
    ):
        password = settings.get("ssl.key.password", "")

        def asked() -> str:
            # Called only for a key that is encrypted. Without it OpenSSL would ask at the terminal.
            if not password:
                raise BadSetting(f"{key_name} is encrypted: set ssl.key.password")
            return password

        try:
            context.load_cert_chain(certificate, key, asked)
        except ssl.SSLError as error:
            raise BadSetting(_why_refused(error, certificate_name, key_name, bool(password))) from None
        except OSError as error:
            missing = certificate_name if not os.access(certificate, os.R_OK) else key_name
            raise BadSetting(f"{missing}: {error.strerror}") from None


def _why_refused(error: ssl.SSLError, certificate_name: str, key_name: str, has_password: bool) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{key_name} is not the key of {certificate_name}"
    if has_password and error.reason in ("BAD_DECRYPT", "BAD_PASSWORD_READ", "PKCS12_CIPHERFINAL_ERROR", None):
        return f"{key_name} cannot be decrypted with ssl.key.password, or is not a key in PEM"
    return (
        f"{certificate_name} and {key_name} are not a certificate and its key in PEM ({error.reason or 'unreadable'})"
    )


@contextmanager
def _file_of(settings: Mapping[str, str], name: str, otherwise: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path of a file with ``name``.location or ``name``.pem, and what to call it in an error."""
    location, pem = settings.get(f"{name}.location", ""), settings.get(f"{name}.pem", "")
    if location:
        yield location, f"{name}.location={location}"
        return
    if not pem:
        if not otherwise:
            raise BadSetting(f"{name}.location or {name}.pem is needed")
        yield otherwise, f"{name}.location"
        return
    descriptor = os.memfd_create(name)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(pem.replace("\\n", "\n").encode())
        yield f"/proc/self/fd/{descriptor}", f"{name}.pem"
    finally:
        os.close(descriptor)
