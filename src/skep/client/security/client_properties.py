"""The names of security settings: Java's and librdkafka's become one set of names, that of librdkafka.

=====================================  ======================================================================
Java                                   librdkafka
=====================================  ======================================================================
sasl.mechanism                         sasl.mechanisms
sasl.jaas.config                       sasl.username and sasl.password, or sasl.oauthbearer.client.id ...
ssl.truststore.location, PEM           ssl.ca.location
ssl.truststore.certificates            ssl.ca.pem
ssl.keystore.location, PEM             ssl.certificate.location and ssl.key.location: one file has both
ssl.keystore.certificate.chain         ssl.certificate.pem
ssl.keystore.key                       ssl.key.pem
ssl.endpoint.identification.algorithm  the same; the empty text of Java is ``none``
=====================================  ======================================================================

Stores of Java (JKS, PKCS12) are refused with the command that converts them. No error shows a value that may be secret.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from skep.base.errors import OptionError
from skep.base.jaas import OAUTHBEARER, parse_jaas
from skep.base.unknown_names import did_you_mean
from skep.client.errors import BadSetting

SECRETS = frozenset(
    {
        "sasl.jaas.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
"""Settings that are never shown. ``is_secret`` knows others by their names too."""

_RENAMED = {
    "sasl.mechanism": "sasl.mechanisms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    # Kafka's names since 4.1 (KIP-1139).
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
_ONLY_JAVA = frozenset(
    {
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "ssl.enabled.protocols",
        "ssl.keymanager.algorithm",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Read by Java only. What a login or a store needs of them has been read before they are dropped."""
_JAAS_OAUTH = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}


_READ = frozenset(
    {
        "enable.ssl.certificate.verification",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "security.providers",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
    }
)
_VERIFICATION = "enable.ssl.certificate.verification"
_FAMILIES = ("https.ca.", "sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.", "ssl.engine.")


def check_known(names: Iterable[str]) -> None:
    """Raises BadSetting for a name that looks like a setting of security and is none, such as ``sasl.jass.config``."""
    known = {*_READ, *_RENAMED, *_ONLY_JAVA, *SECRETS, "ssl.truststore.location", "ssl.keystore.location"}
    for name in names:
        if name not in known and not name.startswith(_FAMILIES):
            raise BadSetting(f"{name}: there is no such setting{did_you_mean(name, known, most=1)}")


def is_security_setting(name: str) -> bool:
    return name.startswith(("security.", "sasl.", "ssl.", "https.ca.")) or name == _VERIFICATION


def is_secret(name: str) -> bool:
    """Whether the value must not be shown: also for a name that is not known, if it sounds like a secret."""
    return name in SECRETS or any(word in name.lower() for word in ("password", "secret", "jaas", "token.value"))


def librdkafka_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all properties, those of security under librdkafka's names. Raises BadSetting.

    Of two names for the same the later one wins: what the command line says comes behind what a file says.
    """
    found: dict[str, Any] = {}
    for name, value in properties.items():
        if name not in _ONLY_JAVA:
            found.update(_translated(name, value))
    if str(found.get("sasl.oauthbearer.token.endpoint.url", "")).startswith("http"):
        # librdkafka asks an endpoint only if it is told to.
        found.setdefault("sasl.oauthbearer.method", "oidc")
    return found


def _translated(name: str, value: Any) -> dict[str, Any]:
    match name:
        case "sasl.jaas.config":
            return _login(value) if value else {}
        case "ssl.truststore.location":
            return {"ssl.ca.location": _pem_file(name, value)} if value else {}
        case "ssl.keystore.location":
            return (
                dict.fromkeys(("ssl.certificate.location", "ssl.key.location"), _pem_file(name, value)) if value else {}
            )
        case "ssl.endpoint.identification.algorithm":
            return {name: value.strip().lower() or "none"}
        case "security.protocol":
            return {name: value.strip().upper()}
    return {_RENAMED.get(name, name): value}


def _login(text: str) -> dict[str, str]:
    try:
        jaas = parse_jaas(text)
    except OptionError as error:
        raise BadSetting(str(error)) from None
    if jaas.login == OAUTHBEARER:
        return {name: jaas.options[option].reveal() for option, name in _JAAS_OAUTH.items() if option in jaas.options}
    if not jaas.username or not jaas.password:
        raise BadSetting("sasl.jaas.config has no username or no password")
    return {"sasl.username": jaas.username, "sasl.password": jaas.password.reveal()}


def _pem_file(name: str, location: str) -> str:
    """Returns the location if the file is PEM; raises BadSetting with the command that converts a store of Java."""
    try:
        if Path(location).exists() and not Path(location).is_file():
            raise BadSetting(f"{name}={location}: not a file")
        with Path(location).open("rb") as file:
            begin = file.read(4096)
    except OSError as error:
        raise BadSetting(f"{name}={location}: {error.strerror}") from None
    if b"-----BEGIN" in begin:
        return location
    pem = Path(location).with_suffix(".pem").name
    if name == "ssl.truststore.location":
        convert = f"keytool -list -rfc -keystore {location} > {pem}"
    elif begin[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
        convert = (
            f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12 && "
            f"openssl pkcs12 -in store.p12 -nodes -out {pem}"
        )
    else:
        convert = f"openssl pkcs12 -in {location} -nodes -out {pem}"
    raise BadSetting(f"{name}={location} is a store of Java, and PEM is needed; convert it with: {convert}")
