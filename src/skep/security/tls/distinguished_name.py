"""The subject of a certificate as text, in the form of RFC 2253 as Java writes it: ``CN=alice,OU=hive,O=Skep``.

Kafka's principals and mapping rules have this form. Python's ``ssl`` gives names in another order and without types,
so the certificate is read with ``cryptography``, of the extra ``tls``.
"""

import datetime

from skep.base.errors import StartupError
from skep.base.extras import how_to_install

_SHORT_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED = frozenset(',=+<>#;"\\')


def check_installed() -> None:
    """Raises StartupError, with the command that installs it, if certificates cannot be read."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise StartupError(
            f"ssl.client.auth needs cryptography, to read the certificates of clients: {how_to_install('tls')}"
        ) from None


def subject_of(certificate: bytes) -> str:
    """Returns the subject of a certificate in DER form. The last part of the name comes first, as RFC 2253 has it."""
    from cryptography import x509

    subject = x509.load_der_x509_certificate(certificate).subject
    return ",".join(
        "+".join(_attribute(attribute) for attribute in sorted(rdn, key=lambda one: one.oid.dotted_string))
        for rdn in reversed(list(subject.rdns))
    )


def expiry_of(certificates: bytes) -> datetime.datetime:
    """Returns when the first certificate of a PEM text ends to be valid. Raises ValueError."""
    from cryptography import x509

    return x509.load_pem_x509_certificates(certificates)[0].not_valid_after_utc


def _attribute(attribute: "object") -> str:
    from cryptography import x509

    assert isinstance(attribute, x509.NameAttribute)
    oid = attribute.oid.dotted_string
    short = _SHORT_NAMES.get(oid)
    if short is None or isinstance(attribute.value, bytes):
        return f"{oid}=#{_value_in_der(x509.RelativeDistinguishedName([attribute]))}"
    return f"{short}={_escaped(attribute.value)}"


def _escaped(value: str) -> str:
    text = "".join(f"\\{char}" if char in _ESCAPED else "\\00" if char == "\0" else char for char in value)
    if value.startswith(" "):
        text = "\\" + text
    if value.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text


def _value_in_der(rdn: "object") -> str:
    """Returns the value of the only attribute, with its type, as hex digits."""
    from cryptography import x509

    assert isinstance(rdn, x509.RelativeDistinguishedName)
    der = x509.Name([rdn]).public_bytes()
    # A sequence of a set of a sequence of an object identifier and the value.
    position = 0
    for _ in range(3):
        position = _content(der, position)[0]
    return der[_content(der, position)[1] :].hex()


def _content(der: bytes, position: int) -> tuple[int, int]:
    """Returns where the content of the element at ``position`` begins and ends."""
    length, begin = der[position + 1], position + 2
    if length >= 0x80:
        size = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + size], "big"), begin + size
    return begin, begin + length
