"""Brokers that speak with ZooKeeper over TLS, each side showing its certificate, and log in by name and password."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from skep.base.errors import ErrorCode
from skep.base.reserved_port import ReservedPort
from skep.testing import EmbeddedBroker
from skep.wire import apis
from skep.zookeeper_server import HOST, ZooKeeperServer
from tests.cluster.certificates import Authority, Signed
from tests.cluster.scenes import run_broker
from tests.raw_client import RawClient
from tests.raw_requests import create_topics_body

pytestmark = pytest.mark.xdist_group(__name__)


class Secure:
    """A server that has a port for TLS, and that asks for certificates of this authority there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.reserved = ReservedPort(HOST)
        self.port = self.reserved.number
        settings = [
            f"secureClientPort={self.port}",
            "secureClientPortAddress=" + HOST,
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
            "ssl.clientAuth=need",
            f"ssl.keyStore.location={self.authority.sign('zookeeper').both}",
            f"ssl.trustStore.location={self.authority.certificate}",
        ]
        self.server = ZooKeeperServer(directory / "zookeeper", settings=settings)

    def options(self, shown: Signed | None, trusted: Path) -> dict[str, str]:
        """Of a broker that shows this certificate and believes that authority."""
        options = {
            "node.id": "1",
            "listeners": f"{HOST}:0",
            "log.dirs": str(self.directory / "data"),
            "skep.metadata": f"zk://{HOST}:{self.port}/skep",
            "skep.zookeeper.ssl": "true",
            "skep.zookeeper.ca": str(trusted),
            "skep.zookeeper.auth": "digest:skep:secret",
            "zookeeper.connection.timeout.ms": "60000",
        }
        if shown is not None:
            options |= {"skep.zookeeper.certfile": str(shown.certificate), "skep.zookeeper.keyfile": str(shown.key)}
        return options


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    one = Secure(tmp_path_factory.mktemp("secure"))
    with one.server:
        yield one
    one.reserved.release()


def test_a_broker_is_a_member_and_keeps_its_metadata_there_for_itself(secure: Secure, tmp_path: Path) -> None:
    options = secure.options(secure.authority.sign("broker"), secure.authority.certificate)
    with EmbeddedBroker(data_dir=tmp_path / "data", options=options) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            [created] = client.ask(apis.CREATE_TOPICS, 7, **create_topics_body("eggs")).topics
            assert created.error_code is ErrorCode.none
        stranger = KazooClient(hosts=secure.server.address)
        stranger.start(60)
        try:
            with pytest.raises(NoAuthError):
                stranger.get("/skep/topics/eggs")
        finally:
            stranger.stop()
            stranger.close()


@pytest.mark.parametrize("wrong", ["no certificate", "a certificate of others", "an authority of others"])
def test_who_shows_or_believes_the_wrong_certificate_does_not_get_in(
    wrong: str, secure: Secure, tmp_path: Path
) -> None:
    others, right = Authority(tmp_path, "others"), secure.authority
    shown = {"no certificate": None, "a certificate of others": others.sign("stranger")}.get(
        wrong, right.sign("broker")
    )
    trusted = others if wrong == "an authority of others" else right
    options = secure.options(shown, trusted.certificate)
    code, log = run_broker(options | {"log.dirs": str(tmp_path / "data"), "zookeeper.connection.timeout.ms": "3000"})
    assert code == 2, log
    assert "Traceback" not in log
    [line] = [line for line in log.splitlines() if line.startswith("skep: ")]
    assert f"{HOST}:{secure.port}" in line
