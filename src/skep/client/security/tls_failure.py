"""Errors of TLS as sentences: what was wrong, and what to do."""

import ssl

from skep.client.errors import ClientError, SecurityFailure, Unreachable

_WRONG_HOST = {62, 64}
_EXPIRED = {9, 10}
"""Verification codes of OpenSSL: not yet valid, expired."""
_NOT_TLS = {
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
}
_NEEDS_CERTIFICATE = {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"}
_CERTIFICATE_REFUSED = {
    "TLSV1_ALERT_UNKNOWN_CA",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "TLSV1_ALERT_DECRYPT_ERROR",
    "TLSV1_ALERT_ACCESS_DENIED",
}
TLS_EXPECTED = "does this port want TLS? then set security.protocol=SSL or SASL_SSL"
NO_TLS_THERE = "is it a port without TLS? then set security.protocol=PLAINTEXT or SASL_PLAINTEXT, or use another port"


def tls_failure(address: str, error: OSError) -> ClientError:
    """Returns the error to raise for one that happened in a handshake, or for a later ``ssl.SSLError``."""
    if isinstance(error, TimeoutError):
        return Unreachable(f"no TLS handshake with {address} (timed out; {NO_TLS_THERE})")
    if isinstance(error, ssl.SSLCertVerificationError):
        return SecurityFailure(_untrusted(address, error))
    # A reset, or an end of the stream: the broker may be stopping, so another attempt is worth it.
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Unreachable(f"{address} closed the connection in the TLS handshake ({NO_TLS_THERE})")
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return SecurityFailure(f"{address} does not answer with TLS ({NO_TLS_THERE})")
    if reason in _NEEDS_CERTIFICATE:
        return SecurityFailure(
            f"{address} wants a certificate of the client: set ssl.certificate.location and ssl.key.location"
        )
    if reason in _CERTIFICATE_REFUSED:
        return SecurityFailure(
            f"{address} does not accept the certificate of this client ({_words(reason)}): "
            "it must be valid and signed by a CA that the broker trusts"
        )
    if reason in ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"):
        return SecurityFailure(f"{address} has neither TLS 1.2 nor 1.3")
    return SecurityFailure(f"the TLS handshake with {address} failed ({_words(reason) or 'no reason is given'})")


def _untrusted(address: str, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _WRONG_HOST:
        return (
            f"the certificate of {address} is for another host ({error.verify_message.rstrip('.')}): connect by a name "
            "that is in it, or set ssl.endpoint.identification.algorithm=none to skip this check"
        )
    if error.verify_code in _EXPIRED:
        return f"the certificate of {address} is not valid now ({error.verify_message}): renew it, or check the clock"
    return (
        f"the certificate of {address} is not trusted ({error.verify_message}): "
        "set ssl.ca.location to the PEM file of the CA that signed it"
    )


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
