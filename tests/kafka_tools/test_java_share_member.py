"""What a program with Java's KafkaShareConsumer says of its records: release, reject, renew; an exact number a poll.

The program is ``java/ShareMember.java``. Needs a JDK, and Apache Kafka's jars, which Maven downloads: ``make
test-clients`` or ``make test-kafka``. ``make test`` leaves this out.
"""

import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.kafka.nodes import jars
from skep.testing import EmbeddedBroker
from skep.zookeeper_server import find_java
from tests.clients.test_franz_go import PARTITIONS, RECORDS, lag, write
from tests.compat.test_share_consumer import OPTIONS, configure, create
from tests.compat.test_share_consumer import write as write_jobs

pytestmark = pytest.mark.kafka

SOURCE = Path(__file__).parent / "java" / "ShareMember.java"
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    if shutil.which("javac") is None:
        pytest.skip("a JDK is needed to compile ShareMember.java: apt-get install default-jdk-headless")
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


def started(servers: str, topic: str, mode: str, until: int) -> "subprocess.Popen[str]":
    command = [find_java(), "-cp", f"{jars()}/*", str(SOURCE), servers, topic, mode, str(until)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def printed(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors[-3000:] + output[-2000:]
    return [json.loads(line) for line in output.splitlines()]


def deliveries(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if "value" in event]


def test_released_records_come_again_with_a_higher_count(broker: EmbeddedBroker) -> None:
    servers, topic = broker.bootstrap_servers, "java-release"
    create(servers, topic, PARTITIONS)
    values = write(servers, topic)
    got = deliveries(printed(started(servers, topic, "release", RECORDS)))
    assert Counter((one["value"], one["count"]) for one in got) == Counter((v, n) for v in values for n in (1, 2))
    assert lag(servers, topic) == 0


def test_rejected_records_do_not_come_again(broker: EmbeddedBroker) -> None:
    servers, topic = broker.bootstrap_servers, "java-reject"
    create(servers, topic, PARTITIONS)
    values = write(servers, topic)
    got = deliveries(printed(started(servers, topic, "reject", RECORDS)))
    assert Counter(one["value"] for one in got) == Counter(values)
    assert sum(one["ack"] == "reject" for one in got) == RECORDS / 3
    assert lag(servers, topic) == 0


def test_renewed_records_stay_with_their_member(broker: EmbeddedBroker) -> None:
    servers, topic = broker.bootstrap_servers, "java-renew"
    create(servers, topic, 1)
    configure(servers, topic, "share.record.lock.duration.ms", "8000")
    values = write_jobs(servers, topic, 3)
    renewing = started(servers, topic, "renew", 3)
    assert renewing.stdout is not None
    first = renewing.stdout.readline()
    polled_at = time.monotonic()
    watching = started(servers, topic, "watch", 20)
    try:
        got = deliveries([json.loads(first), *printed(renewing)])
        held_s = time.monotonic() - polled_at
        seen = deliveries(printed(watching))
    finally:
        renewing.kill()
        watching.kill()
    assert held_s > 8, "longer than a lock lasts"
    said = Counter((one["value"], one["count"], one["ack"]) for one in got)
    assert said == Counter((value, 1, ack) for value in values for ack in ("renew", "accept"))
    assert seen == [], "the other member gets none of them"
    assert lag(servers, topic) == 0


def test_the_record_limit_is_exact(broker: EmbeddedBroker) -> None:
    servers, topic = broker.bootstrap_servers, "java-limit"
    create(servers, topic, PARTITIONS)
    values = write(servers, topic)
    events = printed(started(servers, topic, "limit", RECORDS))
    assert Counter(one["value"] for one in deliveries(events)) == Counter(values)
    assert max(event.get("polled", 0) for event in events) == 7
    assert lag(servers, topic) == 0
