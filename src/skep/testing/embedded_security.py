"""The security of brokers for tests: an authority, a user, the options of brokers and the settings of clients.

===================  ================================================================================================
``sasl_ssl``         TLS; the user ``admin`` logs in with PLAIN
``sasl_plaintext``   the same without TLS
``ssl``              TLS; clients show a certificate, that of ``admin`` is ``User:CN=admin``
===================  ================================================================================================

``admin`` and the brokers' own user are super users, which matters with an authorizer. Passwords are new each time.
"""

import secrets
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from skep.client.security.client_security import ClientSecurity

PROTOCOLS = ("sasl_ssl", "ssl", "sasl_plaintext")
ADMIN, BROKER = "admin", "broker"
MECHANISM = "PLAIN"
_PASSWORD_BYTES = 18


class EmbeddedSecurity:
    """Owns a temporary folder with an authority and what it signed, until ``close``. Brokers of a cluster share it."""

    def __init__(self, protocol: str) -> None:
        """Raises ValueError for an unknown protocol, CertificateProblem, with the extra, without cryptography."""
        if protocol.lower() not in PROTOCOLS:
            raise ValueError(f"security={protocol!r}: expected one of {', '.join(PROTOCOLS)}")
        self.protocol = protocol.upper()
        self.user = ADMIN
        self.password = secrets.token_urlsafe(_PASSWORD_BYTES)
        self._options = {"security.inter.broker.protocol": self.protocol}
        self._client = {"security.protocol": self.protocol}
        if self.protocol.startswith("SASL_"):
            self._add_users()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if self.protocol.endswith("SSL"):
            self._folder = tempfile.TemporaryDirectory(prefix="skep-tls-")
            self._add_certificates(Path(self._folder.name))

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns the options of a broker. Those that are given win."""
        return {**self._options, **given}

    def client_config(self, bootstrap_servers: str) -> dict[str, str]:
        """Returns the settings of a client under the names of librdkafka: a new dictionary each time."""
        return {"bootstrap.servers": bootstrap_servers, **self._client}

    @cached_property
    def of_client(self) -> ClientSecurity:
        """The same for Skep's own client."""
        return ClientSecurity.of(self._client)

    def _add_users(self) -> None:
        of_broker = secrets.token_urlsafe(_PASSWORD_BYTES)
        users = {ADMIN: self.password, BROKER: of_broker}
        listed = " ".join(f'user_{name}="{password}"' for name, password in users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        self._options |= {
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.{self.protocol.lower()}.{MECHANISM.lower()}.sasl.jaas.config": (
                f'{module} required username="{BROKER}" password="{of_broker}" {listed};'
            ),
            "super.users": f"User:{ADMIN};User:{BROKER}",
        }
        self._client |= {"sasl.mechanism": MECHANISM, "sasl.username": ADMIN, "sasl.password": self.password}

    def _add_certificates(self, folder: Path) -> None:
        # Imported here: cryptography is needed for this alone.
        from skep.security.tls.certificate_authority import LOCAL_HOSTS, CertificateAuthority

        authority = CertificateAuthority.create(folder)
        certificates = str(authority.certificate_file)
        self._options |= {
            "ssl.keystore.location": str(authority.sign_broker(LOCAL_HOSTS, name=BROKER)),
            "ssl.truststore.location": certificates,
        }
        self._client["ssl.ca.location"] = certificates
        if self.protocol == "SSL":
            self._options |= {"ssl.client.auth": "required", "super.users": f"User:CN={ADMIN};User:CN={BROKER}"}
            own = str(authority.sign_client(ADMIN))
            self._client |= {"ssl.certificate.location": own, "ssl.key.location": own}
