"""The persister over two brokers without sockets: requests go through the bytes of the protocol and the handlers."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from kio.serial import entity_reader

from skep.base.clock import SystemClock
from skep.base.config.broker_config import BrokerConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, StoreUnavailable
from skep.base.ids import BrokerId, LeaderEpoch
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.broker.dispatch import HANDLERS
from skep.broker.request import Request
from skep.client.errors import Unreachable
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.share import routed_persister
from skep.coordination.share.remote_share_state import RemoteShareState
from skep.coordination.share.routed_persister import RoutedPersister
from skep.coordination.share.share_coordinator import ShareCoordinator
from skep.coordination.share.share_records import decode_share_record
from skep.coordination.share.share_shard import ShareShard
from skep.coordination.share.share_state import SharePartitionKey, SharePersister, ShareState
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord, random_id
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.log_directory import LogDirectory
from skep.wire import apis
from skep.wire.apis import Api
from skep.wire.codec import decode_request, encode_response, request_class, response_class
from skep.wire.headers import response_header
from tests.kio_entities import written
from tests.memory_files import MemoryFiles
from tests.unit.coordination.share.scene import KEY, ORDERS, OTHER, accepted

ONE, TWO = BrokerId(1), BrokerId(2)
STATE_TOPIC = "__share_group_state"
BROKERS = [BrokerRecord(one, f"host-{one}", 9092) for one in (ONE, TWO)]
EPOCH = LeaderEpoch(0)


def state_led_by(leader: BrokerId) -> TopicRecord:
    return TopicRecord(STATE_TOPIC, random_id(), (PartitionRecord.new([leader]),))


class Wire:
    """Stands for ``Peers`` of broker 1. ``failures`` are raised first; with a ``gate``, requests wait for it."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self.asked: list[tuple[str, int]] = []
        self.failures: list[Exception] = []
        self.gate: asyncio.Event | None = None
        self.drops_results = False

    async def ask(self, broker: BrokerRecord, api: Api, body: Any, *, version: int | None = None) -> Any:
        assert version is not None, "these APIs are not advertised"
        assert broker.id == TWO
        partitions = sum(len(topic["partitions"]) for topic in body["topics"])
        self.asked.append((api.name, partitions))
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        if self.drops_results:
            body = {**body, "topics": []}
        decoded = decode_request(api.key, version, memoryview(written(request_class(api.key, version), body)), 0)
        request = Request(api, version, 7, "test", "192.0.2.1", decoded)
        services: Any = SimpleNamespace(share=self._scene.two.share)
        response: Any = HANDLERS[api.key].handle(services, request)
        encoded = encode_response(api.key, version, 7, await response)
        header = response_header(api.key, version, 7)
        return entity_reader(response_class(api.key, version))(memoryview(encoded).toreadonly(), len(header))[0]


class Node:
    def __init__(self, scene: "Scene", node_id: BrokerId) -> None:
        clock, supervisor = SystemClock(), scene.supervisor
        current = CurrentConfig(BrokerConfig())
        directory = LogDirectory(MemoryFiles(), "/data", clock)
        directory.open()
        replicas = ReplicaManager(directory, scene, TopicConfig(), clock, scene.executor, supervisor, node_id)  # type: ignore[arg-type]
        self.node_id = node_id
        self.runtime: CoordinatorRuntime[ShareShard] = CoordinatorRuntime(
            STATE_TOPIC,
            lambda context: ShareShard(context, current, lambda: scene.image),
            decode_share_record,
            replicas,
            clock,
            scene.executor,
            supervisor,
            Slicer(clock),
        )
        self.share = ShareCoordinator(self.runtime, current, lambda index, before: None)

    def follow(self, topic: TopicRecord | None) -> None:
        self.runtime.follow(topic, self.node_id)


class Scene:
    """Broker 1 has the persister. It is also the catalog of both."""

    def __init__(self, executor: ThreadPoolExecutor, state: TopicRecord | None) -> None:
        self.executor, self.supervisor = executor, Supervisor()
        self.image = ClusterImage.of("test", BROKERS, [ORDERS, *([state] if state else [])])
        self.pending_deletions: dict[Any, str] = {}
        self.one, self.two = Node(self, ONE), Node(self, TWO)
        self.wire = Wire(self)
        remote = RemoteShareState(self.wire, self.supervisor)
        self.persister: SharePersister = RoutedPersister(ONE, lambda: self.image, self.one.share, remote, SystemClock())
        self._follow(state)

    def _follow(self, state: TopicRecord | None) -> None:
        for node in (self.one, self.two):
            node.follow(state)

    def create(self, state: TopicRecord) -> None:
        self.image = self.image.with_topic(state)
        self._follow(state)


def run(scenario: Callable[[Scene], Awaitable[None]], leader: BrokerId | None = TWO) -> None:
    async def whole() -> None:
        with ThreadPoolExecutor(1) as executor:
            scene = Scene(executor, None if leader is None else state_led_by(leader))
            try:
                await scenario(scene)
            finally:
                for node in (scene.one, scene.two):
                    node.runtime.stop()
                await scene.supervisor.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_persister, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(routed_persister, "LONGEST_PAUSE_S", 0.001)


@pytest.mark.parametrize("leader", [ONE, TWO], ids=["here", "elsewhere"])
def test_every_request_is_the_same_wherever_the_coordinator_is(leader: BrokerId) -> None:
    async def scenario(scene: Scene) -> None:
        persister = scene.persister
        assert await persister.summary(KEY) == ShareState(0, 0, -1, -1)
        await persister.initialize(KEY, 2, 5)
        assert await persister.read(KEY, LeaderEpoch(1)) == ShareState(2, 1, 5)
        await persister.write(KEY, ShareState(2, 1, 10, 3, [accepted(12, 14, 2)]))
        assert await persister.read(KEY, LeaderEpoch(1)) == ShareState(2, 1, 10, batches=(accepted(12, 14, 2),))
        assert await persister.summary(KEY) == ShareState(2, 1, 10, 3)
        await persister.delete(KEY)
        assert await persister.summary(KEY) == ShareState(0, 0, -1, -1)
        assert bool(scene.wire.asked) == (leader == TWO)

    run(scenario, leader)


@pytest.mark.parametrize("leader", [ONE, TWO], ids=["here", "elsewhere"])
def test_a_fenced_leader_is_told_at_once(leader: BrokerId) -> None:
    async def scenario(scene: Scene) -> None:
        persister = scene.persister
        await persister.initialize(KEY, 0, 0)
        await persister.read(KEY, LeaderEpoch(5))
        asked = len(scene.wire.asked)
        for state, code in (
            (ShareState(0, 4, 0), ErrorCode.fenced_leader_epoch),
            (ShareState(1, 5, 0), ErrorCode.fenced_state_epoch),
        ):
            with pytest.raises(KafkaError) as refused:
                await persister.write(KEY, state)
            assert refused.value.code is code
        with pytest.raises(KafkaError) as refused:
            await persister.read(KEY, LeaderEpoch(4))
        assert refused.value.code is ErrorCode.fenced_leader_epoch
        assert len(scene.wire.asked) - asked == (3 if leader == TWO else 0), "nothing is tried again"

    run(scenario, leader)


def test_a_write_is_made_at_once_where_nothing_has_to_be_waited_for() -> None:
    async def scenario(scene: Scene) -> None:
        persister = scene.persister
        assert not persister.commits_at_once(KEY), "nothing of it was used yet"
        await persister.initialize(KEY, 0, 0)
        await persister.read(KEY, LeaderEpoch(5))
        assert persister.commits_at_once(KEY)
        assert persister.write_now(KEY, ShareState(0, 5, 10, 0))
        assert (await persister.summary(KEY)).start_offset == 10
        with pytest.raises(KafkaError) as refused:
            persister.write_now(KEY, ShareState(0, 4, 11, 0))
        assert refused.value.code is ErrorCode.fenced_leader_epoch
        scene.one.follow(state_led_by(TWO))
        assert not persister.commits_at_once(KEY)
        assert not persister.write_now(KEY, ShareState(0, 5, 11, 0)), "the coordinator may be found elsewhere"

    run(scenario, ONE)


def test_a_write_to_a_coordinator_elsewhere_is_not_made_at_once() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.persister.initialize(KEY, 0, 0)
        assert not scene.persister.commits_at_once(KEY)

    run(scenario, TWO)


def test_a_request_without_a_response_is_sent_again() -> None:
    async def scenario(scene: Scene) -> None:
        scene.wire.failures = [Unreachable("nobody"), KafkaError(ErrorCode.not_coordinator)]
        await scene.persister.initialize(KEY, 0, 0)
        scene.wire.failures = [Unreachable("nobody")]
        await scene.persister.write(KEY, ShareState(0, 0, 0, batches=[accepted(0, 1)]))
        assert (await scene.persister.read(KEY, EPOCH)).batches == (accepted(0, 1),)

    run(scenario)


def test_a_coordinator_that_moves_here_is_found() -> None:
    async def scenario(scene: Scene) -> None:
        def move() -> None:
            scene.create(state_led_by(ONE))

        scene.wire.failures = [Unreachable("nobody")] * 3
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, move)
        await scene.persister.initialize(KEY, 0, 0)
        assert scene.one.runtime.shard_of(KEY.coordinator_key).states.keys() == {KEY}

    run(scenario)


def test_the_topic_is_created_when_it_is_first_needed() -> None:
    async def scenario(scene: Scene) -> None:
        async def create_topic() -> None:
            if len(attempts) < 2:
                attempts.append(1)
                raise StoreUnavailable("no store")
            scene.create(state_led_by(TWO))

        attempts: list[int] = []
        assert isinstance(scene.persister, RoutedPersister)
        scene.persister.create_topic = create_topic
        await scene.persister.initialize(KEY, 0, 0)
        assert len(attempts) == 2

    run(scenario, None)


def test_after_a_while_the_last_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_persister, "TRY_FOR_S", 0.02)

    async def scenario(scene: Scene) -> None:
        scene.wire.failures = [Unreachable("nobody")] * 1000
        with pytest.raises(KafkaError, match="nobody") as raised:
            await scene.persister.summary(KEY)
        assert raised.value.code is ErrorCode.network_exception

    run(scenario)


def test_a_topic_that_only_the_coordinator_does_not_know_yet_is_asked_for_again() -> None:
    async def scenario(scene: Scene) -> None:
        unknown = KafkaError(ErrorCode.unknown_topic_or_partition)
        scene.wire.failures = [unknown, unknown]
        await scene.persister.initialize(KEY, 0, 0)
        gone = SharePartitionKey("kitchen", random_id(), 0)
        asked = len(scene.wire.asked)
        with pytest.raises(KafkaError) as refused:
            await scene.persister.initialize(gone, 0, 0)
        assert refused.value.code is ErrorCode.unknown_topic_or_partition
        assert len(scene.wire.asked) == asked + 1

    run(scenario)


def test_writes_that_arrive_while_one_is_in_flight_are_sent_together() -> None:
    async def scenario(scene: Scene) -> None:
        keys = [KEY, OTHER, KEY._replace(group_id="bar")]
        for key in keys:
            await scene.persister.initialize(key, 0, 0)
        scene.wire.asked.clear()
        scene.wire.gate = asyncio.Event()
        writes = [
            asyncio.ensure_future(scene.persister.write(key, ShareState(0, 0, -1, batches=[accepted(offset, offset)])))
            for offset, key in enumerate([KEY, *keys, KEY])
        ]
        while not scene.wire.asked:
            await asyncio.sleep(0)
        scene.wire.gate.set()
        await asyncio.gather(*writes)
        name = apis.WRITE_SHARE_GROUP_STATE.name
        # The first goes alone or with those of other share partitions, each share partition once in a request.
        assert sum(partitions for _, partitions in scene.wire.asked) == 5
        assert {asked for asked, _ in scene.wire.asked} == {name}
        assert len(scene.wire.asked) <= 4
        assert (await scene.persister.read(KEY, EPOCH)).batches == (accepted(0, 1), accepted(4, 4))

    run(scenario)


def test_each_write_has_its_own_result() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.persister.initialize(KEY, 0, 0)
        results = await asyncio.gather(
            scene.persister.write(KEY, ShareState(0, 0, 0, batches=[accepted(0, 0)])),
            scene.persister.write(OTHER, ShareState(0, 0, 0)),
            return_exceptions=True,
        )
        assert results[0] is None
        assert isinstance(results[1], KafkaError)
        assert results[1].code is ErrorCode.invalid_request
        assert "not initialized" in str(results[1])

    run(scenario)


def test_a_response_without_the_partition_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_persister, "TRY_FOR_S", 0.0)

    async def scenario(scene: Scene) -> None:
        await scene.persister.initialize(KEY, 0, 0)
        scene.wire.drops_results = True
        for request in (
            scene.persister.write(KEY, ShareState(0, 0, 0)),
            scene.persister.read(KEY, EPOCH),
            scene.persister.delete(KEY),
        ):
            with pytest.raises(KafkaError, match="sent no result"):
                await request

    run(scenario)


def test_a_cancelled_write_leaves_the_others_alone() -> None:
    async def scenario(scene: Scene) -> None:
        for key in (KEY, OTHER):
            await scene.persister.initialize(key, 0, 0)
        scene.wire.gate = asyncio.Event()
        cancelled = asyncio.ensure_future(scene.persister.write(KEY, ShareState(0, 0, 0)))
        kept = asyncio.ensure_future(scene.persister.write(OTHER, ShareState(0, 0, 7)))
        await asyncio.sleep(0)
        cancelled.cancel()
        scene.wire.gate.set()
        await kept
        assert (await scene.persister.summary(OTHER)).start_offset == 7

    run(scenario)


def test_nobody_waits_for_writes_that_are_no_longer_sent() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.persister.initialize(KEY, 0, 0)
        scene.wire.gate = asyncio.Event()
        remote = RemoteShareState(scene.wire, scene.supervisor)
        writes = [asyncio.ensure_future(remote.write(BROKERS[1], KEY, ShareState(0, 0, 0))) for _ in range(2)]
        await asyncio.sleep(0)
        await scene.supervisor.close()
        for result in await asyncio.gather(*writes, return_exceptions=True):
            assert isinstance(result, KafkaError)
            assert result.code is ErrorCode.network_exception

    run(scenario)
