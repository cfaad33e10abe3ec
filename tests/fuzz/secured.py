"""A broker with a listener of each kind and some users, for tests of what strangers and users may do to it."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from skep.base.reserved_port import ReservedPort
from skep.security.tls.certificate_authority import LOCAL_HOSTS, CertificateAuthority
from skep.testing import EmbeddedBroker
from tests.fuzz.doors import PASSWORD, USER

HOST = "127.0.0.1"
WITHOUT_RIGHTS = "without-rights"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ITERATIONS = 4096


class SecuredBroker(NamedTuple):
    broker: EmbeddedBroker
    """Its ``bootstrap_servers`` is the listener without authentication, where everybody may do everything."""
    sasl_plaintext: tuple[str, int]
    sasl_ssl: tuple[str, int]
    authority: Path
    users: tuple[str, ...]
    """One with all rights and one with none; the password of all is ``PASSWORD``."""

    @property
    def bootstrap_servers(self) -> str:
        """Of the listener with SASL and without TLS."""
        host, port = self.sasl_plaintext
        return f"{host}:{port}"

    @property
    def ssl_bootstrap_servers(self) -> str:
        host, port = self.sasl_ssl
        return f"{host}:{port}"


@contextlib.contextmanager
def secured_broker(options: Mapping[str, str] | None = None) -> Iterator[SecuredBroker]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skep-tls-")))
        authority = CertificateAuthority.create(directory / "tls")
        ports = [ReservedPort(HOST) for _ in range(3)]
        for port in ports:
            stack.callback(port.release)
        names = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL")
        listeners = [f"{name}://{HOST}:{port.number}" for name, port in zip(names, ports, strict=True)]
        secured = {
            "listeners": ",".join(listeners),
            "security.inter.broker.protocol": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.location": str(authority.sign_broker(LOCAL_HOSTS)),
            "ssl.truststore.location": str(authority.certificate_file),
            "authorizer.class.name": AUTHORIZER,
            "connections.max.reauth.ms": "3600000",
            "super.users": f"User:ANONYMOUS;User:{USER}",
        }
        broker = stack.enter_context(EmbeddedBroker(options={**secured, **(options or {})}))
        create_users(broker.bootstrap_servers, USER, WITHOUT_RIGHTS)
        _, sasl_plaintext, sasl_ssl = ((HOST, port.number) for port in ports)
        yield SecuredBroker(broker, sasl_plaintext, sasl_ssl, authority.certificate_file, (USER, WITHOUT_RIGHTS))


def create_users(bootstrap_servers: str, *names: str, password: str = PASSWORD) -> None:
    """For every mechanism of SCRAM."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    alterations = [
        UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, ITERATIONS), password.encode())
        for name in names
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for future in admin.alter_user_scram_credentials(alterations).values():
        future.result(timeout=60)
