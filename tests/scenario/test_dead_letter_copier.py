"""The copier of dead letters, in this process, on a real broker: what a letter has, and that none is written twice."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from skep.base.dead_letters import COPIED, DELETED, NOT_ASKED, DeadLetter, dead_letter, original_headers
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec
from skep.testing import EmbeddedBroker
from skep.worker.dead_letter_copier import CopyFailed, CopyRequest, DeadLetterCopier
from skep.worker.dead_letter_job import DeadLetterJob
from skep.worker.job import Settings
from tests.raw_client import RawClient
from tests.raw_requests import now_ms
from tests.waiting import PATIENCE_S


class Scene:
    """A source topic, a dead-letter topic, and a copier of group ``g``."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers, self.topic, self.dlq = servers, topic, f"dlq.{topic}"
        self.client = {"bootstrap.servers": servers, "log_level": 0}
        self.admin = AdminClient(self.client)
        self.topic_id = self.create(topic)
        self.create(self.dlq)
        self.copiers: list[DeadLetterCopier] = []

    def create(self, name: str, **config: str) -> str:
        self.admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(PATIENCE_S)
        found = self.admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_S).topic_id
        high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
        return str(uuid.UUID(int=(high % (1 << 64) << 64) | low % (1 << 64)))

    def write(self, *values: bytes | None, **said: Any) -> None:
        producer = Producer(self.client)
        for value in values:
            producer.produce(self.topic, value, **said)
        assert producer.flush(PATIENCE_S) == 0

    def copier(self) -> DeadLetterCopier:
        self.copiers.append(DeadLetterCopier(self.client, self.admin))
        return self.copiers[-1]

    def request(self, *ranges: tuple[int, int], **fields: Any) -> CopyRequest:
        said: dict[str, Any] = {
            "group": "g",
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": 0,
            "generation": "0.0",
            "after": None,
            "dlq_topic": self.dlq,
            "dlq_partition": 0,
            "max_message_bytes": 100_000,
            "copy": True,
            "compacted": False,
            "ranges": [(first, last, 5, "too often") for first, last in ranges],
        }
        return CopyRequest(**said | fields)

    def messages(self) -> list[Message]:
        """What a read_committed reader finds in the dead-letter topic."""
        reader = Consumer({**self.client, "group.id": "reader", "enable.partition.eof": True})
        reader.assign([TopicPartition(self.dlq, 0, 0)])
        found = []
        try:
            while True:
                message = reader.poll(PATIENCE_S)
                assert message is not None
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return found
        finally:
            reader.close()

    def letters(self) -> list[DeadLetter]:
        return [letter for message in self.messages() if (letter := dead_letter(message.headers() or ())) is not None]

    def offsets(self) -> list[int]:
        return [letter.offset for letter in self.letters()]


@pytest.fixture
def scene(skep_broker: EmbeddedBroker, topic: str) -> Iterator[Scene]:
    scene = Scene(skep_broker.bootstrap_servers, topic)
    yield scene
    for copier in scene.copiers:
        copier.close()


def test_a_letter_has_the_record_and_says_why_it_died(scene: Scene) -> None:
    scene.write(b"a", b"b", key=b"k", headers=[("trace", b"1")], timestamp=1_700_000_000_000)
    copied = scene.copier().copy(scene.request((1, 1)))
    assert copied.ranges == [(1, 1)]
    (message,) = scene.messages()
    assert (message.key(), message.value()) == (b"k", b"b")
    letter = dead_letter(message.headers() or ())
    expected = DeadLetter("g", scene.topic, 0, 1, 5, "too often", scene.topic_id, 1_700_000_000_000, COPIED)
    assert letter == expected
    assert original_headers(message.headers() or ()) == [("trace", b"1")]


def test_without_a_copy_a_letter_has_headers_only(scene: Scene) -> None:
    scene.write(b"a", b"b", key=b"k")
    scene.copier().copy(scene.request((0, 1), copy=False))
    for message in scene.messages():
        assert (message.key(), message.value()) == (None, None)
        assert dead_letter(message.headers() or ()).copy == NOT_ASKED
    assert scene.offsets() == [0, 1]


def test_a_copier_that_did_not_hear_of_a_commit_copies_nothing_twice(scene: Scene) -> None:
    scene.write(*[b"x"] * 10)
    first = scene.copier().copy(scene.request((1, 2), (4, 4)))
    # The broker has died before it heard of it, and asks for something else first.
    second = scene.copier()
    assert second.copy(scene.request((0, 4))) == first
    assert second.copy(scene.request((0, 0), (3, 3), after=first.serial)).ranges == [(0, 0), (3, 3)]
    assert scene.offsets() == [1, 2, 4, 0, 3]


def test_an_offset_that_was_reopened_may_die_again(scene: Scene) -> None:
    scene.write(b"x")
    scene.copier().copy(scene.request((0, 0)))
    scene.copier().copy(scene.request((0, 0), generation="0.1"))
    assert scene.offsets() == [0, 0]


def test_a_later_copier_fences_an_earlier_one(scene: Scene) -> None:
    scene.write(*[b"x"] * 3)
    old, new = scene.copier(), scene.copier()
    first = old.copy(scene.request((0, 0)))
    assert new.copy(scene.request((1, 1), after=first.serial)).ranges == [(1, 1)]
    with pytest.raises(CopyFailed):
        old.copy(scene.request((1, 1), after=first.serial))
    # It fences the new one now, but writes nothing: it does not know the last copy.
    assert old.copy(scene.request((1, 1), after=first.serial)).ranges == [(1, 1)]
    assert scene.offsets() == [0, 1]


def test_a_record_that_is_too_large_for_the_dead_letter_topic_leaves_its_headers(scene: Scene) -> None:
    scene.write(b"x" * 50_000, b"small")
    scene.copier().copy(scene.request((0, 1), max_message_bytes=10_000))
    large, small = scene.messages()
    assert (large.value(), small.value()) == (None, b"small")
    letter = dead_letter(large.headers() or ())
    assert "more than max.message.bytes=10000" in letter.copy


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_would_fill_the_memory_is_not_unpacked(client: RawClient, scene: Scene, codec: Codec) -> None:
    """KAFKA-20723. It has 100 MB in some kilobytes. The letters say so, and its neighbours have their copies."""
    scene.write(b"before")
    bomb = build_batch([NewRecord(None, bytes(1_000_000), 1_700_000_000_000)] * 100, codec=codec)
    client.append(scene.topic, bomb)
    scene.write(b"after")
    scene.copier().copy(scene.request((0, 0), (7, 8), (10, 10), (101, 101)))
    letters = scene.letters()
    assert [letter.offset for letter in letters] == [0, 7, 8, 10, 101]
    assert [letter.has_copy for letter in letters] == [True, False, False, False, True]
    assert all("unpack to more than 67108864 bytes" in letter.copy for letter in letters[1:4])


@pytest.mark.parametrize("codec", list(Codec))
def test_one_record_of_a_compressed_batch_is_copied(client: RawClient, scene: Scene, codec: Codec) -> None:
    records = [NewRecord(b"k%d" % n, b"value %d" % n * 1_000, 1_700_000_000_000 + n, (("h", None),)) for n in range(50)]
    client.append(scene.topic, build_batch(records, codec=codec))
    scene.copier().copy(scene.request((17, 17), (30, 31)))
    messages = scene.messages()
    assert [(one.key(), one.value()) for one in messages] == [records[n][:2] for n in (17, 30, 31)]
    assert [letter.timestamp for letter in scene.letters()] == [1_700_000_000_000 + n for n in (17, 30, 31)]
    assert original_headers(messages[0].headers() or ()) == [("h", None)]


def test_a_letter_has_the_time_of_the_wall_clock(scene: Scene) -> None:
    """kafka#22849: Kafka's had that of a monotonic clock. Dead letters are found by time (--since) and kept by time."""
    scene.write(b"x", timestamp=1_700_000_000_000)
    before = now_ms()
    scene.copier().copy(scene.request((0, 0)))
    [message] = scene.messages()
    assert before <= message.timestamp()[1] <= now_ms()


def test_records_that_were_deleted_leave_letters_that_say_so(scene: Scene) -> None:
    scene.write(*[b"x"] * 6)
    deleted = scene.admin.delete_records([TopicPartition(scene.topic, 0, 3)])
    next(iter(deleted.values())).result(PATIENCE_S)
    scene.copier().copy(scene.request((1, 1), (2, 4)))
    assert [(letter.offset, letter.copy) for letter in scene.letters()] == [
        (1, DELETED),
        (2, DELETED),
        (3, COPIED),
        (4, COPIED),
    ]


def test_a_transaction_marker_is_no_record(scene: Scene) -> None:
    producer = Producer({**scene.client, "transactional.id": scene.topic})
    producer.init_transactions(PATIENCE_S)
    for value in (b"a", b"b"):
        producer.begin_transaction()
        producer.produce(scene.topic, value)
        producer.commit_transaction(PATIENCE_S)
    scene.copier().copy(scene.request((0, 3)))
    assert scene.offsets() == [0, 2]


def test_a_topic_that_was_created_again_is_not_copied_from(scene: Scene) -> None:
    scene.write(b"x")
    with pytest.raises(CopyFailed, match="created again"):
        scene.copier().copy(scene.request((0, 0), topic_id=str(uuid.uuid4())))
    assert scene.offsets() == []


def test_offsets_past_the_end_are_not_taken_for_holes(scene: Scene) -> None:
    scene.write(b"x")
    with pytest.raises(CopyFailed, match="before 5"):
        scene.copier().copy(scene.request((0, 5)))
    assert scene.offsets() == []


def test_a_dead_letter_topic_that_refuses_is_an_error_and_the_next_request_works(scene: Scene) -> None:
    scene.write(b"x" * 5_000)
    entry = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, scene.dlq, incremental_configs=[entry])
    scene.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    copier = scene.copier()
    with pytest.raises(CopyFailed, match=r"(?i)too large"):
        copier.copy(scene.request((0, 0)))
    copier.copy(scene.request((0, 0), max_message_bytes=2_000))
    assert scene.offsets() == [0]


def test_the_job_answers_each_request(scene: Scene) -> None:
    scene.write(b"x")
    job = DeadLetterJob(Settings(scene.servers, "", 1))
    replies: list[dict[str, Any]] = []
    job.receive({"id": 1, **scene.request((0, 0))._asdict()}, replies.append)
    job.receive({"id": 2, **scene.request((0, 9), group="h")._asdict()}, replies.append)
    job._threads.shutdown(wait=True)
    job.close()
    assert sorted("serial" in reply for reply in replies) == [False, True]
    assert scene.offsets() == [0]
