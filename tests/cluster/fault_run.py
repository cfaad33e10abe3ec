"""One fault run: a cluster, clients, faults one after another, and the judgement of all that was seen."""

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.fault_cluster import FaultCluster
from tests.cluster.history import Found, History
from tests.cluster.nemesis import Fault, Nemesis
from tests.cluster.replica_bytes import batches_of, differences
from tests.cluster.scenes import wait_until_known
from tests.cluster.workload import ONE_AT_A_TIME, TOPIC, Clients, high_watermark, read_whole

PARTITIONS = 4
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
    with FaultCluster(3, metadata=metadata, small_disk=3, small_disk_bytes=small_disk_bytes) as cluster:
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
    history, nemesis = History(ONE_AT_A_TIME), Nemesis(cluster)
    create_topic(cluster)
    clients = Clients(cluster.bootstrap_servers, history, PARTITIONS, rate=rate, seed=report.seed)
    try:
        for fault in faults:
            done = nemesis.do(fault)
            report.faults[fault.kind] = report.faults.get(fault.kind, 0) + 1
            if fault.settle:
                nemesis.settle()
            say(f"{done}; {history.acknowledged_count:,} acknowledged, {history.read_count:,} read")
            if history.violations:
                break
        cluster.links.heal()
        nemesis.settle(SETTLING_S)
    finally:
        report.failures += clients.finish()
        _count(report, history, clients)
        report.failures += [f"{violation.kind}: {violation.detail}" for violation in history.violations]
    say("all faults are over, reading everything")
    history.violations.clear()
    _judge(cluster, history, report)


def _keep(cluster: FaultCluster, logs: Path, *, with_data: bool) -> None:
    """What is needed to find out why: what each broker said and, after a failure, what it has."""
    logs.mkdir(parents=True, exist_ok=True)
    for i in cluster.brokers:
        (logs / f"broker-{i}.log").write_text(cluster.log(i))
        if with_data:
            shutil.copytree(cluster.files(i), logs / f"broker-{i}", dirs_exist_ok=True)


def create_topic(cluster: FaultCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    # Small segments: they roll in the middle of the faults.
    config = {"min.insync.replicas": "2", "segment.bytes": str(1 << 20)}
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=3, config=config)
    for made in admin.create_topics([topic], operation_timeout=30).values():
        made.result(30)
    wait_until_known(cluster, TOPIC)
    cluster.wait_until_in_sync()


def _count(report: Report, history: History, clients: Clients) -> None:
    report.sent, report.acknowledged = history.sent_count, history.acknowledged_count
    report.failed, report.unknown, report.read = history.failed_count, history.unknown_count, history.read_count
    report.longest_silence_s = clients.longest_silence_s


def _judge(cluster: FaultCluster, history: History, report: Report) -> None:
    cluster.wait_until_in_sync(SETTLING_S)
    for partition in range(PARTITIONS):
        copies = {i: cluster.files(i) / f"{TOPIC}-{partition}" for i in cluster.brokers}
        end = high_watermark(cluster.bootstrap_servers, partition)
        report.compared_bytes += sum(path.stat().st_size for copy in copies.values() for path in copy.glob("*.log"))
        report.failures += [f"{TOPIC}-{partition}: {difference}" for difference in differences(copies, end)]
        epochs = [batch.producer_epoch for batch in batches_of(copies[1], end) for _ in range(batch.count)]
        # Read as any consumer reads; only the epochs, which no consumer is told, are from the files.
        content = list(read_whole(cluster.bootstrap_servers, partition))
        report.records += len(content)
        history.ended(partition, [Found(offset, record, epochs[offset]) for offset, record in content])
    report.sent_again = history.sent_again_count
    report.failures += [f"{violation.kind}: {violation.detail}" for violation in history.violations]
