"""Dead letters of share groups with real members: which records get one, what stops them, the breaker."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import ResourceType

from skep.base.dead_letters import COPIED, DELETED, NOT_ASKED
from skep.testing import EmbeddedBroker
from tests.scenario.dead_letter_scene import ACCEPT, OPTIONS, REJECT, RELEASE, Queue, as_json, described, skep
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def queue(broker: EmbeddedBroker, topic: str) -> Queue:
    return Queue(broker.bootstrap_servers, topic)


def lag(queue: Queue) -> int:
    return int(as_json(queue.servers, "queues", "describe", queue.name)["lag"])


def waiting(queue: Queue) -> int:
    return int(as_json(queue.servers, "queues", "describe", queue.name)["waiting"]) if described(queue) else 0


def test_rejected_records_and_those_that_fail_too_often_get_a_letter_each(queue: Queue) -> None:
    queue.create_dlq(partitions=3)
    queue.write(b"good", b"bad", b"slow", b"good", key=b"k", headers=[("trace", b"7")])
    said = {b"good": ACCEPT, b"bad": REJECT, b"slow": RELEASE}
    seen: Counter[bytes] = Counter()

    def handle(message: Message):
        seen[message.value() or b""] += 1
        return said[message.value() or b""]

    queue.work(handle, lambda: seen[b"slow"] == 2)
    # The member is gone by now. Its letters are written all the same.
    letters = {letter.offset: letter for letter in queue.wait_for_letters(2)}
    assert sorted(letters) == [1, 2]
    assert (letters[1].reason, letters[1].delivery_count) == ("Offset rejected by client.", 1)
    assert (letters[2].reason, letters[2].delivery_count) == ("Offset delivery count exceeded the threshold.", 2)
    assert {letter.copy for letter in letters.values()} == {COPIED}
    bad = next(message for message in queue.messages() if message.value() == b"bad")
    assert (bad.key(), (bad.headers() or [])[0], bad.partition()) == (b"k", ("trace", b"7"), 0)
    wait_until(lambda: lag(queue) == 0, "all records are finished")


def test_a_letter_has_the_reason_that_a_member_gave(queue: Queue) -> None:
    queue.create_dlq()
    queue.write(b"x")

    def handle(message: Message):
        skep(
            queue.servers,
            "queues",
            "retry",
            queue.group,
            queue.name,
            "0",
            "0",
            "--in",
            "1h",
            "--reason",
            "no such user",
        )
        return REJECT

    queue.work(handle, lambda: queue.letters())
    assert [letter.reason for letter in queue.letters()] == ["no such user"]


def test_a_record_whose_lock_expires_too_often_gets_a_letter(queue: Queue) -> None:
    queue.create_dlq()
    queue.configure(**{"share.record.lock.duration.ms": "1000", "errors.deadletterqueue.copy.record.enable": "false"})
    queue.write(b"x")
    with queue.member() as one, queue.member() as another:
        # Neither says what became of it.
        for member in (one, another):
            wait_until(lambda member=member: list(member.poll(0.2)), "the record is delivered")
        queue.wait_for_letters(1)
    (message,) = queue.messages()
    assert (message.key(), message.value()) == (None, None)
    assert queue.letters()[0].copy == NOT_ASKED


def test_records_wait_for_a_dead_letter_topic_that_does_not_exist_yet(broker: EmbeddedBroker, queue: Queue) -> None:
    queue.write(b"bad")

    def is_stuck() -> bool:
        return "does not exist" in described(queue)

    queue.work(lambda message: REJECT, is_stuck)
    assert lag(queue) == 1
    queue.create_dlq(**{"errors.deadletterqueue.group.enable": "false"})
    wait_until(lambda: "does not take dead letters" in described(queue), "the new problem")
    queue.configure(ResourceType.TOPIC, queue.dlq, **{"errors.deadletterqueue.group.enable": "true"})
    queue.wait_for_letters(1)
    wait_until(lambda: lag(queue) == 0, "the record is finished")
    said = re.findall(r"dead letters of .*? cannot be written, its records wait: (.*)", broker.log)
    assert len([line for line in said if queue.dlq in line and "does not exist" in line]) == 1


def test_a_record_that_is_deleted_before_its_letter_is_written_has_one_all_the_same(queue: Queue) -> None:
    queue.write(b"a", b"b")
    queue.work(lambda message: REJECT, lambda: "does not exist" in described(queue))
    deleted = queue.admin.delete_records([ClientPartition(queue.name, 0, 2)])
    next(iter(deleted.values())).result(PATIENCE_S)
    with queue.member() as member:  # lets the leader see that the records are gone
        member.poll(0.5)
    queue.create_dlq()
    assert {letter.copy for letter in queue.wait_for_letters(2)} == {DELETED}
    assert queue.offsets() == [(0, 0), (0, 1)]


def test_a_record_that_is_deleted_while_it_waits_for_its_next_delivery_gets_a_letter(queue: Queue) -> None:
    queue.create_dlq()
    queue.configure(**{"skep.share.retry.backoff": "1h"})
    queue.write(b"good", b"later", b"later")
    said = {b"good": ACCEPT, b"later": RELEASE}
    queue.work(lambda message: said[message.value() or b""], lambda: waiting(queue) == 2)
    deleted = queue.admin.delete_records([ClientPartition(queue.name, 0, 3)])
    next(iter(deleted.values())).result(PATIENCE_S)
    with queue.member() as member:  # lets the leader see that the records are gone
        wait_until(lambda: [member.poll(0.2), len(queue.letters()) == 2][1], "both have a letter")
    letters = queue.letters()
    assert [(letter.offset, letter.delivery_count, letter.copy) for letter in letters] == [
        (1, 1, DELETED),
        (2, 1, DELETED),
    ]
    assert {letter.reason for letter in letters} == {"Deleted from its topic (retention) before it was done with."}
    wait_until(lambda: lag(queue) == 0, "all records are finished")


def test_a_record_that_is_too_old_gets_a_letter_without_a_delivery(queue: Queue) -> None:
    queue.create_dlq()
    queue.configure(**{"skep.share.record.ttl.ms": "3600000"})
    queue.write(b"old", timestamp=1_700_000_000_000)
    queue.write(b"new")
    seen: list[bytes | None] = []
    queue.work(lambda message: seen.append(message.value()) or ACCEPT, lambda: seen and queue.letters())
    (letter,) = queue.letters()
    assert (seen, letter.offset, letter.delivery_count) == ([b"new"], 0, 0)
    assert "skep.share.record.ttl.ms" in letter.reason


def test_without_a_dead_letter_topic_any_more_the_records_are_let_go(queue: Queue) -> None:
    queue.write(b"bad")
    queue.work(lambda message: REJECT, lambda: "does not exist" in described(queue))
    queue.configure(**{"errors.deadletterqueue.topic.name": ""})
    wait_until(lambda: lag(queue) == 0, "the record is finished")


def test_the_topic_is_created_if_the_broker_may(topic: str) -> None:
    options = {**OPTIONS, "errors.deadletterqueue.auto.create.topics.enable": "true"}
    with EmbeddedBroker(options=options) as broker:
        queue = Queue(broker.bootstrap_servers, topic)
        queue.write(b"bad")
        queue.work(lambda message: REJECT, lambda: queue.dlq in queue.admin.list_topics(timeout=PATIENCE_S).topics)
        queue.wait_for_letters(1)
        assert as_json(queue.servers, "queues", "dead", queue.name + "")["offset"] == 0


def test_a_record_that_is_too_large_for_the_dead_letter_topic_leaves_its_headers(queue: Queue) -> None:
    queue.create_dlq(**{"max.message.bytes": "5000"})
    queue.write(b"x" * 20_000, b"small")
    seen: list[int] = []
    queue.work(lambda message: seen.append(message.offset() or 0) or REJECT, lambda: len(seen) == 2)
    large, small = sorted(queue.wait_for_letters(2), key=lambda letter: letter.offset)
    assert "max.message.bytes=5000" in large.copy
    assert small.copy == COPIED


def test_two_groups_have_a_letter_each_for_the_same_record(queue: Queue) -> None:
    queue.create_dlq()
    other = Queue.__new__(Queue)
    other.__dict__.update(queue.__dict__)
    other.group = f"{queue.group}-other"
    other.configure(
        **{"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": queue.dlq},
    )
    queue.write(b"bad")
    for one in (queue, other):
        seen: list[int] = []
        one.work(lambda message, seen=seen: seen.append(0) or REJECT, lambda seen=seen: bool(seen))
    assert {letter.group for letter in queue.wait_for_letters(2)} == {queue.group, other.group}


def test_the_breaker_pauses_a_group_whose_records_all_die_and_tries_single_ones(
    broker: EmbeddedBroker, queue: Queue
) -> None:
    queue.create_dlq()
    queue.configure(
        **{
            "skep.share.breaker.percent": "50",
            "skep.share.breaker.min.records": "10",
            "skep.share.breaker.pause.ms": "2000",
        }
    )
    for number in range(60):
        queue.write(b"%d" % number)
    works = False
    rejected: list[int] = []
    accepted: list[int] = []

    def handle(message: Message):
        (accepted if works else rejected).append(message.offset() or 0)
        return ACCEPT if works else REJECT

    def has_tried() -> bool:
        return len(rejected) > 10 and "paused" in described(queue)

    queue.work(handle, has_tried, **{"max.poll.records": 10})
    assert len(rejected) < 30
    assert len(re.findall(f"{queue.group}.*nothing is delivered for 2000 ms", broker.log)) == 1
    works = True
    queue.work(handle, lambda: len(accepted) + len(rejected) == 60, **{"max.poll.records": 10})
    queue.wait_for_letters(len(rejected))
    assert Counter(queue.offsets()) == Counter((0, offset) for offset in rejected)
