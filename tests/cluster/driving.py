"""What the tests of the cluster do with one: make topics, look at partitions, send, read, compare the copies."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from skep.base.errors import ErrorCode
from skep.client.errors import ClientError
from skep.testing import EmbeddedCluster
from skep.wire import apis
from skep.wire.apis import Api
from tests.cluster.replica_bytes import differences
from tests.raw_client import RawClient
from tests.raw_requests import seconds
from tests.waiting import wait_until

PATIENCE_S = 60.0
FEW_INTERNAL_PARTITIONS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
}
"""The cluster's own topics as small as they can be, for they are made and kept in sync in every test run."""
LONG_SESSIONS = {"zookeeper.session.timeout.ms": "60000"}
"""For clusters on SQLite in which no broker is frozen: one that dies is noticed at once, and a busy machine ends no
session."""
LATEST, EARLIEST = -1, -2


class State(NamedTuple):
    """A partition as the metadata of one broker has it."""

    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: set[int]


def unused_name(cluster: EmbeddedCluster) -> str:
    """For a topic of one test. All brokers are there when it is given: a test before may have ended with one down."""
    for i in cluster.brokers:
        if i not in cluster.running:
            cluster.restart(i)
    cluster.wait_until_ready()
    return f"topic-{uuid4().hex[:8]}"


def ask(cluster: EmbeddedCluster, i: int, api: Api, version: int, /, **body: Any) -> Any:
    """What broker ``i`` answers."""
    with RawClient(cluster.brokers[i]) as client:
        return client.ask(api, version, **body)


def create(cluster: EmbeddedCluster, topic: str, assignment: Sequence[Sequence[int]], **configs: Any) -> UUID:
    """``create_only``, and returns when all replicas that run are in sync."""
    topic_id = create_only(cluster, topic, assignment, **configs)
    for index, replicas in enumerate(assignment):
        wait_for_isr(cluster, topic, set(replicas) & set(cluster.running), partition=index)
    return topic_id


def create_only(cluster: EmbeddedCluster, topic: str, assignment: Sequence[Sequence[int]], **configs: Any) -> UUID:
    """A topic on these brokers; ``min_insync_replicas=2`` stands for ``min.insync.replicas``."""
    body = {
        "name": topic,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [
            {"partition_index": index, "broker_ids": replicas} for index, replicas in enumerate(assignment)
        ],
        "configs": [{"name": name.replace("_", "."), "value": str(value)} for name, value in configs.items()],
    }

    def response() -> Any:
        answer = ask(cluster, cluster.running[0], apis.CREATE_TOPICS, 7, topics=[body], timeout=seconds(30))
        # On a busy machine a broker of the assignment may have lost its session a moment ago.
        return None if answer.topics[0].error_code is ErrorCode.invalid_replica_assignment else answer.topics[0]

    created = wait_until(response, f"all brokers of {assignment} are registered", PATIENCE_S)
    assert created.error_code is ErrorCode.none, created
    return UUID(int=created.topic_id.int)


def state(cluster: EmbeddedCluster, topic: str, partition: int = 0, *, seen_by: int | None = None) -> State | None:
    """The partition as one broker knows it; None when it does not."""
    broker = cluster.running[0] if seen_by is None else seen_by
    try:
        [row] = ask(cluster, broker, apis.METADATA, 9, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
    except (OSError, ClientError):
        return None
    for one in row.partitions:
        if one.partition_index == partition:
            return State(one.leader_id, one.leader_epoch, list(one.replica_nodes), set(one.isr_nodes))
    return None


def wait_for_isr(cluster: EmbeddedCluster, topic: str, isr: Iterable[int], *, partition: int = 0) -> None:
    """Until every running broker knows the ISR to be this, with one of it leading."""
    wanted = set(isr)

    def is_so() -> bool:
        known = [state(cluster, topic, partition, seen_by=i) for i in cluster.running]
        return all(one is not None and one.isr == wanted and one.leader in wanted for one in known)

    wait_until(
        is_so, lambda: f"the ISR of {topic}-{partition} is {wanted}: {state(cluster, topic, partition)}", PATIENCE_S
    )


def wait_for_leader(cluster: EmbeddedCluster, topic: str, *, other_than: int, partition: int = 0) -> int:
    """The broker that leads, known to all that run, when it is a running one and not this."""

    def found() -> int:
        leaders = {one and one.leader for one in (state(cluster, topic, partition, seen_by=i) for i in cluster.running)}
        leader = leaders.pop() if len(leaders) == 1 else None
        return leader if leader in cluster.running and leader != other_than else 0

    return wait_until(found, lambda: f"another leads {topic}-{partition}: {state(cluster, topic)}", PATIENCE_S)


def send(
    cluster: EmbeddedCluster, topic: str, values: Iterable[bytes], *, partition: int = 0, **options: Any
) -> list[int]:
    """The offsets at which the records were acknowledged, by all in sync unless ``acks`` says otherwise."""
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "linger.ms": 5,
        "delivery.timeout.ms": 60_000,
        "log_level": 0,
    }
    producer = Producer({**settings, **{name.replace("_", "."): value for name, value in options.items()}})
    told: list[tuple[Any, Any]] = []
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda *both: told.append(both))
    assert producer.flush(PATIENCE_S) == 0
    assert {str(error) for error, _ in told if error is not None} == set()
    return [message.offset() for _, message in told]


def read(cluster: EmbeddedCluster, topic: str, count: int, *, partition: int = 0, **options: Any) -> list[bytes]:
    """So many records from the beginning, and what else comes with them."""
    consumer = Consumer(consumer_settings(cluster, **options))
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        return read_more(consumer, count)
    finally:
        consumer.close()


def consumer_settings(cluster: EmbeddedCluster, **options: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "readers",
        "enable.auto.commit": False,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in options.items()},
    }


def read_more(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} records came"
        for message in consumer.consume(count, 0.2):
            if message.error() is None:
                values.append(message.value())
    return values


def offset_of(cluster: EmbeddedCluster, topic: str, timestamp: int, *, partition: int = 0, isolation: int = 0) -> int:
    """What the leader answers to ListOffsets, as soon as it knows."""

    def ask_leader() -> Any:
        leader = cluster.leader_of(topic, partition)
        if leader not in cluster.running:
            return None
        with RawClient(cluster.brokers[leader]) as client:
            found = client.list_offset(topic, timestamp, partition=partition, isolation_level=isolation)
        return found if found.error_code is ErrorCode.none else None

    return int(wait_until(ask_leader, f"the leader of {topic}-{partition} tells its offsets").offset)


def wait_until_configured(cluster: EmbeddedCluster, group: str, option: str, value: str) -> None:
    """Until every running broker knows the option of the group; the one that was told is the first to."""
    resources = [{"resource_type": 32, "resource_name": group, "configuration_keys": [option]}]

    def all_know() -> bool:
        answers = [ask(cluster, i, apis.DESCRIBE_CONFIGS, 4, resources=resources) for i in cluster.running]
        return all([entry.value for entry in answer.results[0].configs] == [value] for answer in answers)

    wait_until(all_know, f"all brokers know {option}={value} of {group}", PATIENCE_S)


def files_of(cluster: EmbeddedCluster, topic: str, *, partition: int = 0) -> dict[int, Path]:
    """The directory of the partition on each broker, whether it is there or not."""
    return {i: cluster.broker(i).data_dir / f"{topic}-{partition}" for i in cluster.brokers}


def wait_until_equal(
    cluster: EmbeddedCluster, topic: str, brokers: Iterable[int], *, end: int, partition: int = 0
) -> None:
    """Until the copies on these brokers are the same to the byte, and hold everything below ``end``."""
    paths = files_of(cluster, topic, partition=partition)
    copies: Mapping[int, Path] = {i: paths[i] for i in brokers}
    wait_until(lambda: not differences(copies, end), lambda: "; ".join(differences(copies, end)), PATIENCE_S)


def leftovers(cluster: EmbeddedCluster, i: int, topic: str) -> list[str]:
    """What broker ``i`` still has of a topic, directories that are being deleted or were set aside included."""
    return sorted(path.name for path in cluster.broker(i).data_dir.glob(f"{topic}-*"))
