"""The options that Spark hands to the data source, read into a table of declared options.

Spark passes option names in lower case, whatever the user wrote, so names are compared without regard to case.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import TypeVar

from skep.base.config.option import declared, meant
from skep.base.environment_variables import COMMAND_CONFIG
from skep.base.errors import OptionError
from skep.client.errors import BadSetting
from skep.client.security.client_properties import is_security_setting
from skep.client.security.client_security import ClientSecurity
from skep.client.security.properties_file import read_properties

C = TypeVar("C")

_log = logging.getLogger(__name__)
_JVM = "it is a setting of Kafka's Java clients and has no meaning here"
_KAFKA = "kafka."

SECURITY = {
    "kafka.security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Tasks connect as the driver does.",
    "kafka.sasl.mechanism": "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
    "kafka.sasl.jaas.config": "The user and the password, as Java's clients have them.",
    "kafka.sasl.username": "The user, instead of kafka.sasl.jaas.config; the password is kafka.sasl.password.",
    "kafka.ssl.ca.location": "A PEM file with the certificates to trust, on the driver and all executors; also under "
    "Java's name kafka.ssl.truststore.location. Inline: kafka.ssl.ca.pem or kafka.ssl.truststore.certificates.",
    "kafka.ssl.certificate.location": "A PEM file with the client's certificate; the key is in kafka.ssl.key.location. "
    "Java's kafka.ssl.keystore.location has both. Inline: kafka.ssl.certificate.pem and kafka.ssl.key.pem.",
    "kafka.ssl.key.password": "The password of an encrypted key.",
    "kafka.ssl.endpoint.identification.algorithm": "https checks that the certificate is for the broker's host name; "
    "none, or an empty text, does not.",
}
"""What the docs say of security settings. All names of Java's clients and of librdkafka work, after ``kafka.``."""


def parse_options(config: C, given: Mapping[str, str], refused: Mapping[str, str]) -> C:
    """Returns ``config`` with the given options set. Raises OptionError for an option that is unknown or refused."""
    known = declared(config)
    spelled = {name.lower(): name for name in known}
    reasons = {name.lower(): (name, why) for name, why in refused.items()}
    values = {}
    for name, text in given.items():
        lower = name.lower()
        if lower in spelled:
            row = known[spelled[lower]]
            values[row.field] = row.parse(text)
        elif lower in reasons:
            raise OptionError("option {} is not supported: {}".format(*reasons[lower]))
        elif lower.startswith(_KAFKA) and is_security_setting(lower.removeprefix(_KAFKA)):
            continue
        elif lower.startswith(_KAFKA):
            raise OptionError(f"option {name} is not supported: {_JVM}{meant(lower, spelled)}")
        else:
            raise OptionError(f"{name}: there is no such option{_meant(lower, spelled)}")
    changed: C = dataclasses.replace(config, **values)  # type: ignore[type-var]
    return changed


def security_of(given: Mapping[str, str]) -> ClientSecurity:
    """Returns the security of the connections: of the options, and of the file that COMMAND_CONFIG names.

    What the file says need not be an option of the query, and so it is in no plan that Spark shows. Options win.
    """
    path = os.environ.get(COMMAND_CONFIG)
    try:
        settings = {} if path is None else read_properties(path)
        lowered = {name.lower().removeprefix(_KAFKA): text for name, text in given.items()}
        return ClientSecurity.of(settings | {name: text for name, text in lowered.items() if is_security_setting(name)})
    except BadSetting as error:
        raise OptionError(f"{_KAFKA}{error}" if is_security_setting(str(error)) else str(error)) from None


def warn_without_effect(given: Mapping[str, str], reasons: Mapping[str, str]) -> None:
    """Logs a warning for each given option that ``reasons`` names."""
    lowered = {name.lower() for name in given}
    for name, why in reasons.items():
        if name.lower() in lowered:
            _log.warning("option %s has no effect: %s", name, why)


def _meant(lower: str, spelled: Mapping[str, str]) -> str:
    hint = meant(lower, spelled)
    for name in spelled:
        hint = hint.replace(f" {name}?", f" {spelled[name]}?")
    return hint
