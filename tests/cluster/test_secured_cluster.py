"""Three brokers that speak SASL_SSL among themselves and to clients: a kill, and a rolling change from PLAINTEXT."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from skep.base.reserved_port import ReservedPort
from skep.security.tls.certificate_authority import LOCAL_HOSTS, CertificateAuthority
from skep.testing import EmbeddedBroker
from skep.zookeeper_server import ZooKeeperEnsemble

PATIENCE_S = 60.0
HOST = "127.0.0.1"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="hive" user_broker="hive" user_ann="wonderland";'
)
SQLITE, ZOOKEEPER = "sqlite", "zookeeper"
PLAIN_ONLY, BOTH, SECURE_TOO, SECURE_ONLY = range(4)
"""The steps of a rolling change: what is listened to, and what brokers use among themselves."""


class SecuredCluster:
    """Brokers 1 to 3 with two ports each. Owns their processes and certificates."""

    def __init__(self, directory: Path, step: int, store: str = SQLITE) -> None:
        self._zookeeper = ZooKeeperEnsemble(1) if store == ZOOKEEPER else None
        self.authority = CertificateAuthority.create(directory / "ca")
        self.keystore = self.authority.sign_broker(LOCAL_HOSTS)
        self._directory = directory
        self._ports = {i: (ReservedPort(HOST), ReservedPort(HOST)) for i in (1, 2, 3)}
        self.brokers = {i: self._broker(i, step) for i in (1, 2, 3)}

    def _broker(self, i: int, step: int) -> EmbeddedBroker:
        return EmbeddedBroker(data_dir=self._directory / f"broker-{i}", options=self._options(i, step))

    def _options(self, i: int, step: int) -> dict[str, str]:
        plain, secure = (port.number for port in self._ports[i])
        listeners = [f"PLAINTEXT://{HOST}:{plain}"] if step != SECURE_ONLY else []
        options = {
            "node.id": str(i),
            "skep.metadata": f"sqlite:{self._directory / 'metadata.sqlite'}",
            **({} if self._zookeeper is None else {"skep.metadata": f"{self._zookeeper.connect}/skep"}),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.num.partitions": "2",
            "zookeeper.session.timeout.ms": "2000",
        }
        if step != PLAIN_ONLY:
            listeners.append(f"SASL_SSL://{HOST}:{secure}")
            options |= {
                "ssl.keystore.location": str(self.keystore),
                "ssl.truststore.location": str(self.authority.certificate_file),
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
                "inter.broker.listener.name": "PLAINTEXT" if step == BOTH else "SASL_SSL",
            }
        if step == SECURE_ONLY:
            options |= {"authorizer.class.name": "skep", "super.users": "User:broker;User:ann"}
        return {**options, "listeners": ",".join(listeners)}

    def start(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.start()
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_until_ready()

    def change(self, i: int, step: int) -> None:
        """Restarts one broker with the options of a step."""
        broker = self.brokers[i]
        broker.shut_down()
        broker.options.clear()
        broker.options.update(self._options(i, step))
        broker.start()

    def plain(self) -> dict[str, object]:
        addresses = ",".join(f"{HOST}:{ports[0].number}" for ports in self._ports.values())
        return {"bootstrap.servers": addresses, "log_level": 0}

    def secure(self) -> dict[str, object]:
        return {
            "bootstrap.servers": ",".join(f"{HOST}:{ports[1].number}" for ports in self._ports.values()),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "wonderland",
            "ssl.ca.location": str(self.authority.certificate_file),
            "log_level": 0,
        }

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.stop()
        if self._zookeeper is not None:
            self._zookeeper.stop()
        for ports in self._ports.values():
            for port in ports:
                port.release()


def create(settings: dict[str, object], topic: str) -> None:
    admin, deadline = AdminClient(settings), time.monotonic() + PATIENCE_S
    while True:
        [done] = admin.create_topics([NewTopic(topic, 3, 3)], operation_timeout=30).values()
        try:
            done.result(PATIENCE_S)
            return
        except KafkaException:
            assert time.monotonic() < deadline
            time.sleep(0.1)


class Writer:
    """Writes numbers, and knows which of them were acknowledged."""

    def __init__(self, settings: dict[str, object], topic: str) -> None:
        self.acknowledged: list[int] = []
        self._topic = topic
        self._next = 0
        self._producer = Producer({**settings, "acks": "all", "enable.idempotence": True, "linger.ms": 5})

    def write(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            self._producer.produce(
                self._topic,
                str(number),
                partition=number % 3,
                on_delivery=lambda error, _, n=number: self._note(error, n),
            )
        self._next += count
        assert self._producer.flush(PATIENCE_S) == 0

    def _note(self, error: object, number: int) -> None:
        if error is None:
            self.acknowledged.append(number)


def read(settings: dict[str, object], topic: str) -> list[int]:
    consumer = Consumer({**settings, "group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
        found, ends, deadline = [], set(), time.monotonic() + PATIENCE_S
        while len(ends) < 3:
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                ends.add(message.partition())
            else:
                found.append(int(message.value()))
        return sorted(found)
    finally:
        consumer.close()


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SecuredCluster]:
    cluster = SecuredCluster(tmp_path, *request.param)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("cluster", [(SECURE_ONLY, SQLITE), (SECURE_ONLY, ZOOKEEPER)], indirect=True)
def test_a_killed_broker_loses_nothing(cluster: SecuredCluster) -> None:
    settings = cluster.secure()
    create(settings, "eggs")
    writer = Writer(settings, "eggs")
    writer.write(300)
    cluster.brokers[2].kill()
    writer.write(300)
    cluster.brokers[2].start()
    writer.write(300)
    assert len(writer.acknowledged) == 900
    assert read(settings, "eggs") == sorted(writer.acknowledged)


@pytest.mark.parametrize("cluster", [(PLAIN_ONLY,)], indirect=True)
def test_a_cluster_changes_to_sasl_ssl_without_a_pause(cluster: SecuredCluster) -> None:
    create(cluster.plain(), "eggs")
    plain = Writer(cluster.plain(), "eggs")
    plain.write(100)
    for step in (BOTH, SECURE_TOO):
        for i in cluster.brokers:
            cluster.change(i, step)
            plain.write(20)
    secure = Writer(cluster.secure(), "eggs")
    for i in cluster.brokers:
        cluster.change(i, SECURE_ONLY)
        secure.write(20)
    assert len(plain.acknowledged) == 220
    assert len(secure.acknowledged) == 60
    assert read(cluster.secure(), "eggs") == sorted([*plain.acknowledged, *secure.acknowledged])
