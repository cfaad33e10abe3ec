"""A broker with several listeners, each on a port of its own that the test knows."""

from collections.abc import Mapping
from pathlib import Path

from skep.base.reserved_port import ReservedPort
from skep.security.tls.certificate_authority import LOCAL_HOSTS, CertificateAuthority
from skep.testing import EmbeddedBroker

HOST = "127.0.0.1"


class ListeningBroker:
    """Owns the broker, its ports, and an authority whose certificates are in ``directory``."""

    def __init__(self, directory: Path, protocols: Mapping[str, str], options: Mapping[str, str]) -> None:
        """``protocols`` are those of the listeners by name; the first is for clients in general and for brokers."""
        self.directory = directory
        self.authority = CertificateAuthority.create(directory)
        self.keystore = self.authority.sign_broker(LOCAL_HOSTS)
        self._reserved = {name: ReservedPort(HOST) for name in protocols}
        given = {
            "listeners": ",".join(f"{name}://{self.at(name)}" for name in protocols),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "inter.broker.listener.name": next(iter(protocols)),
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.location": str(self.authority.certificate_file),
        }
        self.broker = EmbeddedBroker(options={**given, **options})

    def at(self, listener: str) -> str:
        return f"{HOST}:{self.port(listener)}"

    def port(self, listener: str) -> int:
        return self._reserved[listener].number

    def client(self, listener: str, protocol: str = "PLAINTEXT", **settings: object) -> dict[str, object]:
        """Returns the settings of a client of confluent-kafka."""
        common = {"bootstrap.servers": self.at(listener), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            common["ssl.ca.location"] = str(self.authority.certificate_file)
        return {**common, **{name.replace("_", "."): value for name, value in settings.items()}}

    def certificate(self, name: str) -> dict[str, object]:
        """Returns the settings of a client that shows a certificate of this name."""
        path = self.directory / f"{name}.pem"
        if not path.exists():
            self.authority.sign_client(name)
        return {"ssl_certificate_location": str(path), "ssl_key_location": str(path)}

    def stop(self) -> None:
        self.broker.stop()
        for port in self._reserved.values():
            port.release()
