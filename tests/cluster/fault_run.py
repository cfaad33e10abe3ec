"""One fault run: a cluster, clients, faults one after another, and the judgement of all that was seen."""

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic

from tests.cluster import scenes
from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.history import Found, History
from tests.cluster.nemesis import Fault, Nemesis
from tests.cluster.replica_bytes import batches_of, differences
from tests.cluster.workload import ONE_AT_A_TIME, SYNCED_TOPIC, TOPIC, Clients, high_watermark, read_whole

PARTITIONS = {TOPIC: 4, SYNCED_TOPIC: 2}
SYNCED_SHARE = 0.2
"""Of the rate; each of its records waits for a sync of three disks."""
SETTLING_S = 120.0


@dataclass
class Report:
    seed: int
    metadata: str
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    sent_again: int = 0
    read: int = 0
    records: int = 0
    compared_bytes: int = 0
    bytes_lost_by_power_cuts: int = 0
    longest_silence_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(
    metadata: str,
    faults: Iterable[Fault],
    *,
    seed: int,
    rate: float,
    logs: Path | None = None,
    small_disk_bytes: int = 64 << 20,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """All faults, then the checks. What the brokers logged goes to the directory ``logs`` if one is given."""
    report = Report(seed, metadata)
    began = time.monotonic()
    with FaultCluster(3, metadata=metadata, small_disk=3, small_disk_bytes=small_disk_bytes, seed=seed) as cluster:
        try:
            _run(cluster, faults, report, rate, lambda line: say(f"{time.monotonic() - began:7.1f} s  {line}"))
        except (RuntimeError, AssertionError) as error:
            report.failures.append(str(error))
        finally:
            if logs is not None:
                _keep(cluster, logs, with_data=bool(report.failures))
    report.seconds = time.monotonic() - began
    return report


def _run(
    cluster: FaultCluster, faults: Iterable[Fault], report: Report, rate: float, say: Callable[[str], None]
) -> None:
    histories, nemesis = {topic: History(ONE_AT_A_TIME) for topic in PARTITIONS}, Nemesis(cluster)
    create_topics(cluster)
    servers = cluster.bootstrap_servers
    clients = [
        Clients(servers, TOPIC, histories[TOPIC], PARTITIONS[TOPIC], rate=rate, seed=report.seed),
        Clients(
            servers,
            SYNCED_TOPIC,
            histories[SYNCED_TOPIC],
            PARTITIONS[SYNCED_TOPIC],
            rate=rate * SYNCED_SHARE,
            seed=report.seed,
        ),
    ]
    try:
        for fault in faults:
            done = nemesis.do(fault)
            report.faults[fault.kind] = report.faults.get(fault.kind, 0) + 1
            if fault.settle:
                nemesis.settle()
            acknowledged = sum(history.acknowledged_count for history in histories.values())
            say(f"{done}; {acknowledged:,} acknowledged")
            if any(history.violations for history in histories.values()):
                break
        cluster.links.heal()
        nemesis.settle(SETTLING_S)
    finally:
        report.failures += [failure for each in clients for failure in each.finish()]
        report.bytes_lost_by_power_cuts = nemesis.bytes_lost
        report.longest_silence_s = clients[0].longest_silence_s
        for topic, history in histories.items():
            _count(report, history)
            _tell(report, topic, history)
    say("all faults are over, reading everything")
    for topic, history in histories.items():
        history.violations.clear()
        _judge(cluster, topic, history, report)


def _tell(report: Report, topic: str, history: History) -> None:
    report.failures += [f"{topic}: {violation.kind}: {violation.detail}" for violation in history.violations]


def _keep(cluster: FaultCluster, logs: Path, *, with_data: bool) -> None:
    """What is needed to find out why: what each broker said and, after a failure, what it has."""
    logs.mkdir(parents=True, exist_ok=True)
    for i in cluster.brokers:
        (logs / f"broker-{i}.log").write_text(cluster.log(i))
        if with_data:
            shutil.copytree(cluster.files(i), logs / f"broker-{i}", dirs_exist_ok=True)


def create_topics(cluster: FaultCluster) -> None:
    # Small segments: they roll in the middle of the faults.
    config = {"min.insync.replicas": "2", "segment.bytes": str(1 << 20)}
    synced = {**config, "flush.messages": "1"}
    scenes.create_topics(
        cluster,
        NewTopic(TOPIC, num_partitions=PARTITIONS[TOPIC], replication_factor=3, config=config),
        NewTopic(SYNCED_TOPIC, num_partitions=PARTITIONS[SYNCED_TOPIC], replication_factor=3, config=synced),
    )


def _count(report: Report, history: History) -> None:
    report.sent += history.sent_count
    report.acknowledged += history.acknowledged_count
    report.failed += history.failed_count
    report.unknown += history.unknown_count
    report.read += history.read_count


def _judge(cluster: FaultCluster, topic: str, history: History, report: Report) -> None:
    cluster.wait_until_in_sync(SETTLING_S)
    for partition in range(PARTITIONS[topic]):
        copies = {i: cluster.files(i) / f"{topic}-{partition}" for i in cluster.brokers}
        end = high_watermark(cluster.bootstrap_servers, topic, partition)
        report.compared_bytes += sum(path.stat().st_size for copy in copies.values() for path in copy.glob("*.log"))
        report.failures += [f"{topic}-{partition}: {difference}" for difference in differences(copies, end)]
        epochs = [batch.producer_epoch for batch in batches_of(copies[1], end) for _ in range(batch.count)]
        # Read as any consumer reads; only the epochs, which no consumer is told, are from the files.
        content = list(read_whole(cluster.bootstrap_servers, topic, partition))
        report.records += len(content)
        history.ended(partition, [Found(offset, record, epochs[offset]) for offset, record in content])
    report.sent_again += history.sent_again_count
    _tell(report, topic, history)
