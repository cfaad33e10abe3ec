"""Requests that name very many groups, offsets or partitions: carried out and answered a slice at a time.

By the clock of these tests each look at it takes a millisecond, so five steps of any work are a slice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.slicer import FREED_AT_ONCE, Slicer
from skep.broker.dispatch import HANDLERS, Dispatcher
from skep.broker.handlers import offset_fetch
from skep.broker.named_items import NAMES_AT_ONCE, ask_each, each_once
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups import offset_scan
from skep.coordination.groups.group_coordinator import GroupCoordinator
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import Committer
from skep.coordination.groups.share_group_coordinator import ShareGroupCoordinator
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord, random_id
from skep.wire import apis
from skep.wire.apis import Api
from skep.wire.client_codec import encode_request
from tests.manual_clock import TickingClock
from tests.slices import Turns
from tests.unit.broker.conftest import AdminBroker
from tests.unit.coordination.runtime_scene import HERE, TOPIC, Scene, run

NOBODY = Committer("", None, -1)
OFFSETS = 250


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(offset_operations, "OFFSETS_AT_ONCE", 10)
    monkeypatch.setattr("skep.broker.handlers.offset_commit.OFFSETS_AT_ONCE", 10)
    monkeypatch.setattr("skep.broker.handlers.offset_commit.OFFSETS_A_STEP", 10)
    monkeypatch.setattr(offset_scan, "PLACES_AT_ONCE", 10)
    monkeypatch.setattr(offset_fetch, "OFFSETS_AT_ONCE", 10)


class Broker:
    """The group coordinator of a broker with one topic ``t``, asked through its handlers."""

    def __init__(self, scene: Scene, **options: str) -> None:
        self.scene = scene
        config = read_broker_config(options)
        topic = TopicRecord("t", random_id(), (PartitionRecord.new((BrokerId(1),)),))
        image = ClusterImage.of("test", topics=[topic])
        slicer = Slicer(TickingClock())
        self.groups: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            TOPIC,
            lambda context: GroupShard(context, CurrentConfig(config), lambda: image),
            decode_group_record,
            scene.replicas,
            scene.clock,
            scene.threads,
            scene.supervisor,
            slicer,
        )
        self.groups.follow(scene.topic, HERE)
        self.services: Any = SimpleNamespace(
            config=config,
            groups=GroupCoordinator(self.groups, CurrentConfig(config)),
            share_groups=ShareGroupCoordinator(self.groups, CurrentConfig(config), None, scene.supervisor),  # type: ignore[arg-type]
            slicer=slicer,
            catalog=SimpleNamespace(image=image),
            node=BrokerRecord(BrokerId(1), "skep.example", 9092),
            static_config={},
        )
        self.group = next(name for name in "abcdefghi" if self.groups.partition_for(name) == 0)

    async def ask(self, api: Api, version: int, **body: Any) -> tuple[Any, int]:
        """The body of the response, and in how many turns of the loop it was made."""
        turns = Turns()
        response = HANDLERS[api.key].handle(self.services, AdminBroker.request(api, version, **body))
        if isinstance(response, Awaitable):
            response = await response
        return response, turns.stop()

    def commit(self, partitions: range, group: str | None = None) -> None:
        group = group or self.group
        offsets = [("t", index, index, -1, "") for index in partitions]
        self.groups.submit(group, lambda shard: offset_operations.commit(shard, group, NOBODY, offsets, 8))

    @property
    def offsets(self) -> dict[int, int]:
        found = self.groups.shard_of(self.group).offsets.of_group(self.group)
        return {index: offset.offset for (_, index), offset in found.items()}


def broker_test(scenario: Callable[[Broker], Awaitable[None]], **options: str) -> None:
    async def with_broker(scene: Scene) -> None:
        broker = Broker(scene, **options)
        await scenario(broker)
        broker.groups.stop()

    run(with_broker)


def test_all_offsets_of_a_group_are_fetched_in_slices_and_once_however_often_they_are_asked_for():
    async def scenario(broker: Broker) -> None:
        broker.commit(range(OFFSETS))
        same = {"group_id": broker.group, "topics": None}
        (response, turns) = await broker.ask(apis.OFFSET_FETCH, 8, groups=[same] * 20)
        [group] = response["groups"]
        assert {one["partition_index"] for one in group["topics"][0]["partitions"]} == set(range(OFFSETS))
        assert turns >= OFFSETS / 10 / 5

    broker_test(scenario)


def test_a_group_that_is_named_very_often_is_looked_for_in_slices():
    async def scenario(broker: Broker) -> None:
        same = {"group_id": broker.group, "topics": None}
        response, turns = await broker.ask(apis.OFFSET_FETCH, 8, groups=[same] * 5_000)
        assert len(response["groups"]) == 1
        assert turns >= 5_000 / 10 / 5

    broker_test(scenario)


def test_whoever_asks_again_in_another_name_is_checked_and_shares_the_response():
    async def scenario(broker: Broker) -> None:
        broker.commit(range(OFFSETS))
        wanted = [{"group_id": broker.group, "member_id": name, "member_epoch": -1, "topics": None} for name in "xyz"]
        stranger = {"group_id": broker.group, "member_id": "x", "member_epoch": 3, "topics": None}
        broker.groups.shard_of(broker.group).groups[broker.group] = RefusesEpochs()  # type: ignore[assignment]
        response, _ = await broker.ask(apis.OFFSET_FETCH, 9, groups=[*wanted, stranger])
        *shared, refused = response["groups"]
        assert refused["error_code"] is ErrorCode.stale_member_epoch
        assert all(group["topics"] is shared[0]["topics"] for group in shared)
        assert len(shared) == 3
        del broker.groups.shard_of(broker.group).groups[broker.group]

    broker_test(scenario)


class RefusesEpochs:
    def __init__(self) -> None:
        self.memory = SimpleNamespace(join=lambda memory: None, leave=lambda: None)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_epoch >= 0:
            raise KafkaError(ErrorCode.stale_member_epoch)


def test_what_is_fetched_is_of_one_moment_also_when_the_group_commits_meanwhile():
    async def scenario(broker: Broker) -> None:
        broker.commit(range(OFFSETS))
        same = {"group_id": broker.group, "topics": None}
        fetch = asyncio.ensure_future(broker.ask(apis.OFFSET_FETCH, 8, groups=[same]))
        await asyncio.sleep(0)
        offsets = [("t", index, 7_000, -1, "") for index in range(OFFSETS)]
        broker.groups.submit(
            broker.group, lambda shard: offset_operations.commit(shard, broker.group, NOBODY, offsets, 8)
        )
        assert not fetch.done()
        response, _ = await fetch
        partitions = response["groups"][0]["topics"][0]["partitions"]
        assert {one["partition_index"]: one["committed_offset"] for one in partitions} == {
            index: index for index in range(OFFSETS)
        }

    broker_test(scenario)


def test_partitions_that_are_named_are_fetched_in_slices():
    async def scenario(broker: Broker) -> None:
        broker.commit(range(OFFSETS))
        topics = [{"name": "t", "partition_indexes": list(range(2 * OFFSETS))}]
        response, turns = await broker.ask(apis.OFFSET_FETCH, 7, group_id=broker.group, topics=topics)
        found = {one["partition_index"]: one["committed_offset"] for one in response["topics"][0]["partitions"]}
        assert found == {index: index if index < OFFSETS else -1 for index in range(2 * OFFSETS)}
        assert turns >= 2 * OFFSETS / 10 / 5 * 2

    broker_test(scenario)


def commit_request(broker: Broker, count: int, **more: Any) -> dict[str, Any]:
    partitions = [{"partition_index": index, "committed_offset": index} for index in range(count)]
    topics = [{"name": "t", "partitions": partitions}, {"name": "gone", "partitions": partitions[:1]}]
    return {"group_id": broker.group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics, **more}


def test_very_many_offsets_are_committed_in_pieces():
    async def scenario(broker: Broker) -> None:
        response, turns = await broker.ask(apis.OFFSET_COMMIT, 8, **commit_request(broker, OFFSETS))
        known, unknown = response["topics"]
        assert [one["error_code"] for one in known["partitions"]] == [ErrorCode.none] * OFFSETS
        assert [one["error_code"] for one in unknown["partitions"]] == [ErrorCode.unknown_topic_or_partition]
        assert broker.offsets == {index: index for index in range(OFFSETS)}
        assert turns >= OFFSETS / 10 / 5
        [log] = [one for one in broker.scene.replicas.open_partitions() if one.log.log_end_offset]
        assert log.log.log_end_offset == OFFSETS

    broker_test(scenario)


def test_a_piece_that_is_refused_is_refused_for_the_rest():
    async def scenario(broker: Broker) -> None:
        commit = asyncio.ensure_future(broker.ask(apis.OFFSET_COMMIT, 8, **commit_request(broker, OFFSETS)))
        while not broker.offsets:
            await asyncio.sleep(0)
        broker.groups.shard_of(broker.group).groups[broker.group] = RefusesCommits()  # type: ignore[assignment]
        response, _ = await commit
        codes = [one["error_code"] for one in response["topics"][0]["partitions"]]
        done = len(broker.offsets)
        assert 0 < done < OFFSETS
        assert done % 10 == 0
        assert codes == [ErrorCode.none] * done + [ErrorCode.rebalance_in_progress] * (OFFSETS - done)
        del broker.groups.shard_of(broker.group).groups[broker.group]

    broker_test(scenario)


class RefusesCommits(RefusesEpochs):
    def check_offset_commit(self, *committer: Any, is_transactional: bool, version: int) -> None:
        raise KafkaError(ErrorCode.rebalance_in_progress)


def test_a_group_has_offsets_for_so_many_partitions_and_no_more():
    async def scenario(broker: Broker) -> None:
        response, _ = await broker.ask(apis.OFFSET_COMMIT, 8, **commit_request(broker, OFFSETS))
        codes = [one["error_code"] for one in response["topics"][0]["partitions"]]
        assert codes == [ErrorCode.none] * 100 + [ErrorCode.policy_violation] * (OFFSETS - 100)
        # Those that there are can be committed again, and another one when one of them is gone.
        again, _ = await broker.ask(apis.OFFSET_COMMIT, 8, **commit_request(broker, 5))
        assert not any(one["error_code"] for one in again["topics"][0]["partitions"])
        gone = [{"name": "t", "partitions": [{"partition_index": 3}]}]
        await broker.ask(apis.OFFSET_DELETE, 0, group_id=broker.group, topics=gone)
        response, _ = await broker.ask(apis.OFFSET_COMMIT, 8, **commit_request(broker, OFFSETS))
        assert [one["error_code"] for one in response["topics"][0]["partitions"]].count(ErrorCode.none) == 100

    broker_test(scenario, **{"skep.max.group.offsets": "100"})


def test_offsets_beyond_the_memory_of_all_groups_are_refused_and_those_in_the_log_are_loaded():
    async def scenario(broker: Broker) -> None:
        response, _ = await broker.ask(apis.OFFSET_COMMIT, 8, **commit_request(broker, OFFSETS))
        codes = [one["error_code"] for one in response["topics"][0]["partitions"]]
        assert 0 < codes.count(ErrorCode.none) < OFFSETS
        assert codes.count(ErrorCode.none) + codes.count(ErrorCode.policy_violation) == OFFSETS
        smaller = Broker(broker.scene, **{"skep.max.groups.memory.bytes": "1000"})
        while smaller.groups.is_loading:
            await asyncio.sleep(0.001)
        assert smaller.offsets == broker.offsets
        response, _ = await smaller.ask(apis.OFFSET_COMMIT, 8, **commit_request(broker, OFFSETS))
        again = [one["error_code"] for one in response["topics"][0]["partitions"]]
        assert again == codes
        smaller.groups.stop()

    broker_test(scenario, **{"skep.max.groups.memory.bytes": "50000"})


def test_very_many_offsets_are_deleted_in_pieces():
    async def scenario(broker: Broker) -> None:
        broker.commit(range(OFFSETS))
        topics = [{"name": "t", "partitions": [{"partition_index": index} for index in range(1, OFFSETS)]}]
        response, turns = await broker.ask(apis.OFFSET_DELETE, 0, group_id=broker.group, topics=topics)
        assert [one["error_code"] for one in response["topics"][0]["partitions"]] == [ErrorCode.none] * (OFFSETS - 1)
        assert broker.offsets == {0: 0}
        assert turns >= OFFSETS / 5

    broker_test(scenario)


def test_groups_are_deleted_in_slices_and_one_of_very_many_offsets_in_pieces():
    async def scenario(broker: Broker) -> None:
        broker.commit(range(OFFSETS))
        others = [f"g{number}" for number in range(40)]
        others = [name for name in others if broker.groups.partition_for(name) == 0]
        for name in others:
            broker.commit(range(1), name)
        names = [broker.group, *others, broker.group, "nobody-0"]
        response, turns = await broker.ask(apis.DELETE_GROUPS, 2, groups_names=names)
        codes = {result["group_id"]: result["error_code"] for result in response["results"]}
        assert [*codes] == list(dict.fromkeys(names))
        assert len(response["results"]) == len(names) - 1
        assert codes.pop("nobody-0") is not ErrorCode.none
        assert set(codes.values()) == {ErrorCode.none}
        assert not broker.offsets
        assert len(broker.groups.shard_of(broker.group).offsets) == 0
        assert turns >= OFFSETS / 10

    broker_test(scenario)


def test_groups_are_listed_and_described_in_slices_each_once():
    async def scenario(broker: Broker) -> None:
        names = [name for name in (f"g{number}" for number in range(1_500)) if broker.groups.partition_for(name) == 0]
        for name in names:
            broker.commit(range(1), name)
        listed, turns = await broker.ask(apis.LIST_GROUPS, 4, states_filter=[])
        assert {group["group_id"] for group in listed["groups"]} == set(names)
        assert turns >= len(names) / 100 / 5
        described, turns = await broker.ask(apis.DESCRIBE_GROUPS, 5, groups=names * 3)
        assert [group["group_id"] for group in described["groups"]] == names
        assert len(names) / 5 <= turns <= len(names)
        none, _ = await broker.ask(
            apis.CONSUMER_GROUP_DESCRIBE, 1, group_ids=names[:2] * 3, include_authorized_operations=True
        )
        assert [group["error_code"] for group in none["groups"]] == [ErrorCode.group_id_not_found] * 2

    broker_test(scenario)


def test_the_configs_of_very_many_groups_are_described_in_slices_and_made_once():
    async def scenario(broker: Broker) -> None:
        resources = [{"resource_type": 32, "resource_name": f"g{number}"} for number in range(OFFSETS)]
        described, turns = await broker.ask(apis.DESCRIBE_CONFIGS, 4, resources=resources)
        assert len(described["results"]) == OFFSETS
        assert all(result["configs"] is described["results"][0]["configs"] for result in described["results"])
        assert described["results"][0]["configs"]
        assert turns >= OFFSETS / 5

    broker_test(scenario)


def test_what_has_to_be_waited_for_is_waited_for_in_its_place():
    async def scenario() -> list[Any]:
        async def later(name: str) -> str:
            await asyncio.sleep(0)
            if name == "refused later":
                raise KafkaError(ErrorCode.not_coordinator)
            return name.upper()

        def ask(name: str) -> Any:
            if name == "refused":
                raise KafkaError(ErrorCode.invalid_group_id)
            return later(name) if "later" in name else name.upper()

        names = ["now", "later", "refused later", "refused", "now, too"]
        return await ask_each(Slicer(TickingClock()), names, ask, lambda name, error: error.code)

    assert asyncio.run(scenario()) == [
        "NOW",
        "LATER",
        ErrorCode.not_coordinator,
        ErrorCode.invalid_group_id,
        "NOW, TOO",
    ]


def test_a_large_request_is_freed_in_slices_after_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"group-{number}" for number in range(20_000)]
    frame = encode_request(apis.DESCRIBE_GROUPS, 5, 1, "c", {"groups": names, "include_authorized_operations": False})
    handled: list[int] = []

    def handle(services: Any, request: Any) -> dict[str, Any]:
        handled.append(len(request.body.groups))
        return {"groups": []}

    monkeypatch.setitem(HANDLERS, apis.DESCRIBE_GROUPS.key, SimpleNamespace(handle=handle))

    async def scenario() -> None:
        slicer = Slicer(TickingClock())
        services: Any = SimpleNamespace(slicer=slicer, config=read_broker_config({}))
        dispatcher = Dispatcher(services)
        request = dispatcher.decode(memoryview(frame), "here")
        assert request.undecoded is not None
        outcome = dispatcher.handle(request)
        assert isinstance(outcome, Awaitable)
        await outcome
        assert handled == [len(names)]
        assert request.body is None
        turns = 0
        while slicer._queue:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= len(names) / FREED_AT_ONCE / 5 - 1

    asyncio.run(scenario())


def test_names_are_looked_through_in_slices() -> None:
    names = [f"g{number % 500}" for number in range(20 * NAMES_AT_ONCE)]
    work, pauses = each_once(names), 0
    try:
        while True:
            next(work)
            pauses += 1
    except StopIteration as end:
        assert end.value == names[:500]
    assert pauses == 20
