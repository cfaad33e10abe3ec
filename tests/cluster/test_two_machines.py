"""``skep serve --brokers N`` on two machines with one ZooKeeper: one cluster, and copies of everything on both.

The machines are host names (UTS namespaces) on this one, or racks. It needs ``unshare`` (util-linux), and either root
or user namespaces.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from skep.wire import apis
from skep.zookeeper_server import ZooKeeperServer
from tests.raw_client import RawClient
from tests.scenario.test_serve_brokers import Served, is_gone, known_brokers
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

BROKERS = 2
PARTITIONS = 8
IDS = {"m1": [10, 11], "m2": [20, 21]}
HOSTS = {"m1": "127.0.0.1", "m2": "127.0.0.2"}
UNSHARE = ["unshare", "--uts"] if os.geteuid() == 0 else ["unshare", "--uts", "--map-root-user"]
PATIENCE_S = 120


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


def named(host_name: str) -> list[str]:
    """Runs the command behind it with this as the name of the machine."""
    return [*UNSHARE, "sh", "-c", 'hostname "$0" && exec "$@"', host_name]


class Machines:
    """Groups of brokers, each started by a command of its own; ``metadata`` is all that they have in common."""

    def __init__(self, metadata: str, data_dir: Path) -> None:
        self._metadata = metadata
        self._data_dir = data_dir
        self.served: dict[str, Served] = {}

    def start(
        self,
        machine: str,
        *arguments: object,
        within: Sequence[str] = (),
        first_id: int | None = None,
        session_timeout_ms: int = 30_000,
    ) -> None:
        """Returns at once; what the command says is in ``served``."""
        self.served[machine] = Served(
            *("--brokers", BROKERS, "--node-id", IDS[machine][0] if first_id is None else first_id),
            *("--metadata", self._metadata, "--data-dir", self._data_dir / machine, "--listen", f"{HOSTS[machine]}:0"),
            # Brokers whose parent is killed stop and say so, and a busy machine is to end no session meanwhile.
            *("--set", f"zookeeper.session.timeout.ms={session_timeout_ms}", "--set", "min.insync.replicas=1"),
            *arguments,
            within=within,
        )

    def wait_until_known(self) -> list[str]:
        """The addresses of all brokers, when every broker knows all of them, each under its id."""
        addresses = {
            i: address
            for machine, served in self.served.items()
            for i, address in zip(IDS[machine], served.wait_until_ready().addresses, strict=True)
        }
        for address in addresses.values():
            wait_until(lambda address=address: known_brokers(address) == addresses, f"{address} knows {addresses}")
        return list(addresses.values())


@pytest.fixture
def machines(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Machines]:
    """Each test has a cluster of its own, apart from the others in the same ZooKeeper."""
    started = Machines(f"{zookeeper.connect}/{tmp_path.name}", tmp_path)
    yield started
    for served in started.served.values():
        served.end()


def replicas_of(address: str, topic: str) -> list[list[int]]:
    with RawClient(address) as client:
        [row] = client.ask(apis.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
    return [list(partition.replica_nodes) for partition in row.partitions]


def leaders_of(address: str, topic: str) -> set[int]:
    with RawClient(address) as client:
        [row] = client.ask(apis.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
    return {partition.leader_id for partition in row.partitions}


def acknowledged(addresses: Sequence[str], topic: str, partition: int) -> bool:
    """Whether a record is taken by all that are in sync."""
    told: list[object] = []
    producer = Producer({"bootstrap.servers": ",".join(addresses), "acks": "all", "log_level": 0})
    producer.produce(topic, b"x", partition=partition, on_delivery=lambda error, _: told.append(error))
    producer.flush(PATIENCE_S)
    return told == [None]


@pytest.mark.parametrize("what_differs", ["host name", "rack"])
def test_brokers_of_two_machines_are_one_cluster_with_a_copy_of_everything_on_each(
    machines: Machines, what_differs: str
) -> None:
    for machine in IDS:
        if what_differs == "host name":
            machines.start(machine, within=named(machine))
        else:
            machines.start(machine, "--set", f"broker.rack={machine}")
    addresses = machines.wait_until_known()
    assert len(addresses) == 2 * BROKERS
    admin = AdminClient({"bootstrap.servers": addresses[0], "log_level": 0})
    admin.create_topics([NewTopic("eggs", PARTITIONS, 2)])["eggs"].result(PATIENCE_S)
    wait_until(lambda: len(replicas_of(addresses[-1], "eggs")) == PARTITIONS, "the other machine knows the topic")
    where = {i: machine for machine, ids in IDS.items() for i in ids}
    placed = replicas_of(addresses[-1], "eggs")
    assert [{where[i] for i in replicas} for replicas in placed] == [{"m1", "m2"}] * PARTITIONS, placed
    assert {i for replicas in placed for i in replicas} == set(where), "and all brokers have some"
    # The whole machine is gone, and nothing with it.
    lost = machines.served["m1"]
    lost.process.kill()
    wait_until(lambda: all(is_gone(broker) for broker in lost.children.values()), "its brokers are gone")
    left = machines.served["m2"].addresses
    wait_until(lambda: leaders_of(left[0], "eggs") == set(IDS["m2"]), "the other machine leads everything")
    assert all(acknowledged(left, "eggs", partition) for partition in range(PARTITIONS))


def test_brokers_of_one_machine_hold_copies_of_the_same_when_there_is_no_other(machines: Machines) -> None:
    machines.start("m1", within=named("m1"))
    [first, _] = machines.wait_until_known()
    admin = AdminClient({"bootstrap.servers": first, "log_level": 0})
    admin.create_topics([NewTopic("eggs", 1, 2)])["eggs"].result(PATIENCE_S)
    # The other one, which is the controller, may have made it.
    placed = wait_until(lambda: replicas_of(first, "eggs"), "the first knows the topic")
    assert [sorted(replicas) for replicas in placed] == [[10, 11]]


def test_a_second_machine_with_the_ids_of_the_first_does_not_start_and_says_whose_they_are(machines: Machines) -> None:
    machines.start("m1")
    addresses = machines.wait_until_known()
    # So long it waits for the session of a dead process with its id to end.
    machines.start("m2", first_id=IDS["m1"][0], session_timeout_ms=2_000)
    second = machines.served["m2"]
    assert second.process.wait(PATIENCE_S) == 2
    told = [line for line in second.log.splitlines() if line.startswith("skep: ")]
    assert any(line.startswith("skep: broker 10: ") and addresses[0] in line for line in told), told
    assert set(known_brokers(addresses[0]).values()) == set(addresses), "the first machine goes on"
