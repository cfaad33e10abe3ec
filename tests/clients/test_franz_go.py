"""franz-go's share groups against a broker: ``make test-clients``. ``make test`` leaves this out.

The members are a small Go program (``franz_go/``), which prints what they get and what they say of it. Go downloads
franz-go in the version that go.mod names. franz-go's own test of share groups runs as well, from the same download.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker, EmbeddedCluster
from skep.wire import apis
from tests.compat.test_share_consumer import OPTIONS, configure, create
from tests.raw_client import RawClient
from tests.waiting import wait_until

pytestmark = pytest.mark.clients

SOURCE = Path(__file__).parent / "franz_go"
BUILD_TIMEOUT_S = 600
RUN_TIMEOUT_S = 120
RECORDS = 300
PARTITIONS = 3


@pytest.fixture(scope="module")
def go() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        pytest.skip("Go is not installed: https://go.dev/dl (1.21 or newer, which fetches the version of go.mod)")
    return found


@pytest.fixture(scope="module")
def program(go: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("franz_go") / "franz_go"
    subprocess.run([go, "build", "-o", str(target), "."], cwd=SOURCE, check=True, timeout=BUILD_TIMEOUT_S)
    return target


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


def write(servers: str, topic: str, count: int = RECORDS) -> list[str]:
    """Small batches, so that all members have some."""
    producer = Producer({"bootstrap.servers": servers, "batch.num.messages": 10})
    values = [str(number) for number in range(count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return values


def started(program: Path, servers: str, topic: str, mode: str, *flags: str) -> "subprocess.Popen[str]":
    named = ["-servers", servers, "-topic", topic, "-group", topic, "-mode", mode, "-timeout", f"{RUN_TIMEOUT_S}s"]
    return subprocess.Popen([str(program), *named, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def printed(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    output, errors = process.communicate(timeout=RUN_TIMEOUT_S + 60)
    assert process.returncode == 0, errors + output[-2000:]
    return [json.loads(line) for line in output.splitlines()]


def deliveries(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert [event["error"] for event in events if "error" in event] == []
    return [event for event in events if "value" in event]


def lag(servers: str, group: str) -> int:
    with RawClient(servers.split(",")[0]) as client:
        wanted = [{"group_id": group, "topics": None}]
        [found] = client.ask(apis.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=wanted).groups
    assert found.error_code is ErrorCode.none
    return sum(row.lag for topic in found.topics for row in topic.partitions)


def members(servers: str, group: str) -> int:
    """Those that have an assignment: the coordinator does not compute one for each that comes."""
    with RawClient(servers) as client:
        body = {"group_ids": [group], "include_authorized_operations": False}
        [found] = client.ask(apis.SHARE_GROUP_DESCRIBE, 1, **body).groups
    return sum(bool(member.assignment.topic_partitions) for member in found.members)


@pytest.mark.parametrize("mode", ["implicit", "explicit", "mark"])
def test_each_record_is_delivered_once_and_accepted(broker: EmbeddedBroker, program: Path, mode: str) -> None:
    servers, topic = broker.bootstrap_servers, f"accept-{mode}"
    create(servers, topic, PARTITIONS)
    values = write(servers, topic)
    got = deliveries(printed(started(program, servers, topic, mode, "-until", str(RECORDS))))
    assert Counter(one["value"] for one in got) == Counter(values)
    assert {one["count"] for one in got} == {1}
    assert lag(servers, topic) == 0


def test_released_records_come_again_with_a_higher_count(broker: EmbeddedBroker, program: Path) -> None:
    servers, topic = broker.bootstrap_servers, "release"
    create(servers, topic, PARTITIONS)
    values = write(servers, topic)
    got = deliveries(printed(started(program, servers, topic, "release", "-until", str(RECORDS))))
    assert Counter((one["value"], one["count"]) for one in got) == Counter((v, n) for v in values for n in (1, 2))
    assert lag(servers, topic) == 0


def test_rejected_records_do_not_come_again(broker: EmbeddedBroker, program: Path) -> None:
    servers, topic = broker.bootstrap_servers, "reject"
    create(servers, topic, PARTITIONS)
    values = write(servers, topic)
    got = deliveries(printed(started(program, servers, topic, "reject", "-until", str(RECORDS))))
    assert Counter(one["value"] for one in got) == Counter(values)
    assert sum(one["ack"] == "reject" for one in got) == RECORDS / 3
    assert lag(servers, topic) == 0


def test_renewed_records_stay_with_their_member(broker: EmbeddedBroker, program: Path) -> None:
    servers, topic = broker.bootstrap_servers, "renew"
    create(servers, topic, PARTITIONS)
    configure(servers, topic, "share.record.lock.duration.ms", "8000")
    values = write(servers, topic, PARTITIONS)
    flags = ["-until", str(PARTITIONS), "-renew-in", "5s", "-members", "2"]
    got = deliveries(printed(started(program, servers, topic, "renew", *flags)))
    assert Counter(one["value"] for one in got) == Counter(values)
    assert {one["count"] for one in got} == {1}


def test_the_record_limit_is_exact(broker: EmbeddedBroker, program: Path) -> None:
    servers, topic = broker.bootstrap_servers, "strict"
    create(servers, topic, PARTITIONS)
    values = write(servers, topic)
    events = printed(started(program, servers, topic, "strict", "-until", str(RECORDS)))
    assert Counter(one["value"] for one in deliveries(events)) == Counter(values)
    assert max(event.get("polled", 0) for event in events) == 7


def test_many_members_share_a_topic(broker: EmbeddedBroker, program: Path) -> None:
    servers, topic = broker.bootstrap_servers, "crowd"
    create(servers, topic, PARTITIONS)
    process = started(program, servers, topic, "explicit", "-until", str(10 * RECORDS), "-members", "12")
    try:
        # Members first: on a busy machine those that come later would find nothing left.
        wait_until(lambda: members(servers, topic) == 12, lambda: f"all are there: {members(servers, topic)}")
        values = write(servers, topic, 10 * RECORDS)
        got = deliveries(printed(process))
    finally:
        process.kill()
    assert Counter(one["value"] for one in got) == Counter(values)
    assert len({one["member"] for one in got}) > 6
    assert lag(servers, topic) == 0


def test_a_cluster_whose_leader_stops_meanwhile(program: Path) -> None:
    with EmbeddedCluster(3, config=OPTIONS) as cluster:
        servers, topic = cluster.bootstrap_servers, "moving"
        create(servers, topic, PARTITIONS, replicas=3)
        cluster.wait_until_in_sync()
        values = write(servers, topic, 10 * RECORDS)
        process = started(program, servers, topic, "explicit", "-until", str(12 * RECORDS), "-members", "4")
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(RECORDS)]
            cluster.stop(cluster.leader_of(topic, 0))
            values += write(servers, topic, 3 * RECORDS)
            output, errors = process.communicate(timeout=RUN_TIMEOUT_S + 60)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, errors
        got = [json.loads(line) for line in (*lines, *output.splitlines())]
        # What a leader has delivered and nobody has acknowledged comes again from the next one.
        assert len({(one["partition"], one["offset"]) for one in got if "value" in one}) >= 12 * RECORDS * 0.9


def test_groups_are_listed_described_reset_and_deleted(broker: EmbeddedBroker, program: Path) -> None:
    servers, topic = broker.bootstrap_servers, "admin"
    create(servers, topic, 1)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(3):
        producer.produce(topic, str(number))
    assert producer.flush(60) == 0
    deliveries(printed(started(program, servers, topic, "explicit", "-until", "3")))
    [found] = printed(started(program, servers, topic, "admin"))
    assert topic in found.pop("listed")
    assert found == {
        "state": "Empty",
        "members": 0,
        "before": {"0": 3},
        "altered": {"0": 1},
        "deleted": {},
    }


def test_the_test_of_franz_go_itself(go: str, tmp_path: Path) -> None:
    """TestShareGroupETL: two groups in a row, members that accept, release, reject, come and go (it found a deadlock in
    Kafka). The broker has Kafka's defaults, which the test expects."""
    with EmbeddedBroker() as broker:
        environment = {
            **os.environ,
            "KGO_SEEDS": broker.bootstrap_servers,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": "20000",
            "KGO_LOG_LEVEL": "none",
        }
        command = [go, "test", "-count=1", "-timeout=300s", "-v", "-run", "^TestShareGroupETL$"]
        done = subprocess.run(
            [*command, "github.com/twmb/franz-go/pkg/kgo"],
            cwd=SOURCE,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "--- PASS: TestShareGroupETL" in done.stdout, done.stdout[-3000:]
