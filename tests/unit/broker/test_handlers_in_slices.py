"""Requests that name very many partitions, or the same one very often: others get their turns in between."""

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.broker.handlers import (
    create_partitions,
    delete_records,
    delete_topics,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.records.batch import read_header
from skep.records.builder import build_batch
from skep.replication.replica_manager import ReplicaManager
from skep.security.access import FULL_ACCESS
from skep.storage.directory.log_directory import LogDirectory
from skep.wire.lazy_array import LazyArray
from skep.wire.produce.produce_response import ProducedPartition, encode_produce_response
from tests.manual_clock import ManualClock, TickingClock
from tests.memory_files import MemoryFiles
from tests.slices import counting_turns

MANY = 200
STEPS_PER_TURN = 5


class Scene:
    """A broker with a topic of very many partitions."""

    def __init__(self, executor):
        self.supervisor = Supervisor()
        directory = LogDirectory(MemoryFiles(), "/data", ManualClock())
        directory.open()
        topic = TopicRecord("t", uuid4(), (PartitionRecord.new([BrokerId(1)]),) * MANY, {"retention.ms": "-1"})
        catalog = SimpleNamespace(image=ClusterImage.of("c", topics=[topic]), pending_deletions={})
        slicer = Slicer(TickingClock())
        self.replicas = ReplicaManager(
            directory, catalog, TopicConfig(), ManualClock(), executor, self.supervisor, slicer=slicer
        )
        self.services = SimpleNamespace(
            replicas=self.replicas, slicer=slicer, clock=ManualClock(), catalog=catalog, time_lookups=None
        )

    def append(self, index, **options):
        batch = build_batch([(b"k", b"v", -1, ())], **options)
        self.replicas.partition("t", index).append(batch, read_header(batch))

    async def ask(self, handler, version=2, **body):
        """The response, and how many turns others had."""

        async def answered():
            request = SimpleNamespace(version=version, body=SimpleNamespace(**body), access=FULL_ACCESS)
            response = handler.handle(self.services, request)
            return await response if isinstance(response, Awaitable) else response

        return await counting_turns(answered())


def run(scenario):
    async def whole():
        with ThreadPoolExecutor(1) as executor:
            scene = Scene(executor)
            await scenario(scene)
            await scene.supervisor.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def named(**fields):
    return [SimpleNamespace(partition_index=index, partition=index, **fields) for index in range(MANY)]


def test_delete_records():
    async def scenario(scene):
        for index in range(MANY):
            scene.append(index)
        topics = [SimpleNamespace(name="t", partitions=named(offset=-1))]
        response, turns = await scene.ask(delete_records, topics=topics, timeout=timedelta(seconds=5))
        (topic,) = response["topics"]
        assert [row["low_watermark"] for row in topic["partitions"]] == [1] * MANY
        assert turns > MANY / STEPS_PER_TURN

    run(scenario)


@pytest.mark.parametrize("timestamp", [list_offsets.LATEST, list_offsets.EARLIEST])
def test_list_offsets(timestamp):
    async def scenario(scene):
        topics = [SimpleNamespace(name="t", partitions=named(timestamp=timestamp))]
        response, turns = await scene.ask(list_offsets, topics=topics)
        assert [row["offset"] for row in response["topics"][0]["partitions"]] == [0] * MANY
        assert turns > MANY / STEPS_PER_TURN / 2

    run(scenario)


def test_offset_for_leader_epoch():
    async def scenario(scene):
        topics = [SimpleNamespace(topic="t", partitions=named(current_leader_epoch=-1, leader_epoch=0))]
        response, turns = await scene.ask(offset_for_leader_epoch, topics=topics)
        assert len(response["topics"][0]["partitions"]) == MANY
        assert turns > MANY / STEPS_PER_TURN / 2

    run(scenario)


def test_describe_log_dirs():
    async def scenario(scene):
        response, turns = await scene.ask(describe_log_dirs, topics=None)
        assert len(response["results"][0]["topics"][0]["partitions"]) == MANY
        assert turns > MANY / STEPS_PER_TURN / 2
        twice = [SimpleNamespace(topic="t", partitions=[3, 3, 3])] * 2
        response, _ = await scene.ask(describe_log_dirs, topics=twice)
        assert [row["partition_index"] for row in response["results"][0]["topics"][0]["partitions"]] == [3]

    run(scenario)


def test_describe_producers_describes_a_partition_once_and_its_producers_in_slices():
    async def scenario(scene):
        for producer_id in range(5000):
            scene.append(0, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        again = [SimpleNamespace(name="t", partition_indexes=[0, 0, MANY, 0])] * 100
        response, turns = await scene.ask(describe_producers, topics=again)
        (topic,) = response["topics"]
        described, unknown = topic["partitions"]
        assert [row["producer_id"] for row in described["active_producers"]] == list(range(5000))
        assert unknown["error_code"] is ErrorCode.unknown_topic_or_partition
        assert turns > 5000 / describe_producers.PRODUCERS_PER_STEP / STEPS_PER_TURN / 2

    run(scenario)


def test_producers_that_come_and_go_while_they_are_described_do_no_harm():
    async def scenario(scene):
        for producer_id in range(1000):
            scene.append(0, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        topics = [SimpleNamespace(name="t", partition_indexes=[0])]
        asked = asyncio.ensure_future(scene.ask(describe_producers, topics=topics))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        scene.append(0, producer_id=10**6, producer_epoch=0, base_sequence=0)
        scene.replicas.partition("t", 0).log.expire_producers(1 << 60)
        response, _ = await asked
        assert 0 < len(response["topics"][0]["partitions"][0]["active_producers"]) < 1000

    run(scenario)


def test_producers_are_not_described_while_a_thread_truncates_their_log():
    async def scenario(scene):
        scene.append(0, producer_id=7, producer_epoch=0, base_sequence=0)
        log = scene.replicas.partition("t", 0).log
        codes = []
        for log.is_being_cut in (True, False):
            topics = [SimpleNamespace(name="t", partition_indexes=[0])]
            response, _ = await scene.ask(describe_producers, topics=topics)
            codes.append(response["topics"][0]["partitions"][0].get("error_code"))
        assert codes == [ErrorCode.not_leader_or_follower, None]

    run(scenario)


def test_the_results_of_a_produce_request_become_a_response_and_are_freed_in_slices(monkeypatch):
    monkeypatch.setattr(produce, "RESULTS_AT_ONCE", 10)

    def results():
        return [(f"t{i // 50}", ProducedPartition(i, 0, base_offset=i)) for i in range(MANY)]

    services = SimpleNamespace(catalog=SimpleNamespace(image=ClusterImage.of("c")))
    asked = produce._Produce(services, 9, 7, 1, 1.0, True, 0, "PLAINTEXT")
    left, waited = results(), results()
    work, steps = produce._respond_in_slices(asked, left, waited), 0
    try:
        while True:
            before = len(left) + len(waited)
            next(work)
            steps += 1
            assert before - len(left) - len(waited) <= 10
    except StopIteration as end:
        [encoded] = end.value
    by_topic = []
    for topic, produced in results():
        produce._add(by_topic, topic, produced)
    assert encoded == encode_produce_response(9, 7, by_topic)
    assert left == waited == []
    assert steps >= MANY + 3 * MANY / 10


# Refusals of very many topics or partitions.


def unknown_topics(scene):
    async def delete_topic(name, topic_id):
        raise KafkaError(ErrorCode.unknown_topic_or_partition, name)

    scene.services.config = SimpleNamespace(delete_topic_enable=True)
    scene.services.catalog.delete_topic = delete_topic
    return [f"u{number}" for number in range(MANY)]


def test_very_many_topics_that_do_not_exist_are_not_deleted_in_slices():
    async def scenario(scene):
        names = unknown_topics(scene)
        response, turns = await scene.ask(delete_topics, 5, topic_names=names)
        assert [one["name"] for one in response["responses"]] == names
        assert {one["error_code"] for one in response["responses"]} == {ErrorCode.unknown_topic_or_partition}
        assert turns >= MANY

    run(scenario)


def test_very_many_topics_without_a_name_are_not_deleted_in_slices(monkeypatch):
    monkeypatch.setattr(delete_topics, "NAMES_AT_ONCE", 1)

    async def scenario(scene):
        unknown_topics(scene)
        topics = [SimpleNamespace(name=None, topic_id=uuid4()) for _ in range(MANY)]
        response, turns = await scene.ask(delete_topics, 6, topics=topics)
        assert [one["topic_id"] for one in response["responses"]] == [topic.topic_id for topic in topics]
        assert {one["error_code"] for one in response["responses"]} == {ErrorCode.unknown_topic_id}
        assert turns > 2 * MANY / STEPS_PER_TURN

    run(scenario)


def test_leaders_of_very_many_partitions_that_do_not_exist_are_not_elected_in_slices(monkeypatch):
    monkeypatch.setattr(elect_leaders, "INDEXES_AT_ONCE", 1)

    async def scenario(scene):
        indexes = [-1, *range(MANY, 3 * MANY)]
        wanted = [SimpleNamespace(topic="t", partitions=indexes)]
        response, turns = await scene.ask(
            elect_leaders, topic_partitions=wanted, timeout=timedelta(seconds=1), election_type=0
        )
        [result] = response["replica_election_results"]
        assert [one["partition_id"] for one in result["partition_result"]] == indexes
        assert {one["error_code"] for one in result["partition_result"]} == {ErrorCode.unknown_topic_or_partition}
        assert turns > 2 * MANY / STEPS_PER_TURN

    run(scenario)


def test_very_many_topics_that_do_not_exist_do_not_grow_in_slices():
    async def scenario(scene):
        topics = [SimpleNamespace(name=f"u{number}", count=2, assignments=None) for number in range(MANY)]
        response, turns = await scene.ask(create_partitions, topics=topics, validate_only=False)
        assert {one["error_code"] for one in response["results"]} == {ErrorCode.unknown_topic_or_partition}
        assert turns >= MANY

    run(scenario)


@pytest.mark.parametrize(
    ("handler", "body", "field"),
    [
        (delete_topics, {"topic_names": ["a", "b"]}, "responses"),
        (elect_leaders, {"topic_partitions": [SimpleNamespace(topic="t", partitions=[0])]}, "replica_election_results"),
    ],
)
def test_refusals_of_all_are_made_when_they_are_encoded(handler, body, field):
    refusal = handler.refuse(SimpleNamespace(version=2, body=SimpleNamespace(**body)), ErrorCode.not_controller)
    assert isinstance(refusal[field], LazyArray)
    assert len(refusal[field]) == len(next(iter(body.values())))
