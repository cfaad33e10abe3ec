"""One broker: what its disk keeps, and the process on it: the broker's own classes on the model's disk and store.

Real here are ``Partition``, ``InSyncReplicas``, ``IsrUpdater``, ``Fetcher``, ``FetcherManager``, ``ReplicaManager``
(who leads and follows what), ``FollowerFetch``, ``Membership``, ``LogEndReporter``, ``Catalog``, ``Controller`` and the
handler of reassignments. They run one step at a time, as the schedule says, and are started as ``app.py`` starts them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from skep.base.config.current_config import CurrentConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId, TopicPartition
from skep.base.loop.supervisor import Supervisor
from skep.broker.cluster.membership import Membership
from skep.broker.fetch.fetch_sessions import Wanted
from skep.broker.fetch.follower_fetch import FollowerFetch
from skep.broker.handlers import alter_partition_reassignments
from skep.controller.controller import Controller
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.current_image import OnChange
from skep.metadata.layout import CONTROLLER, broker_key, image_after, image_of, topic_key
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord
from skep.replication.follower.fetcher import Fetcher
from skep.replication.follower.fetcher_manager import FetcherManager
from skep.replication.isr_updater import IsrUpdater
from skep.replication.leader_inquiry import later
from skep.replication.log_end_reporter import LogEndReporter
from skep.replication.partition.partition import Partition
from skep.replication.replica_manager import ReplicaManager
from skep.wire.fetch.fetch_request import FetchPosition
from skep.wire.fetch.fetch_response_reader import FetchResponse, FetchResponsePartition
from tests.manual_clock import ManualClock
from tests.simulation.model_log import Held, ModelLog
from tests.simulation.model_store import TOPIC, Call, ModelStore, Running, StoreClient

MAX_LAG_MS = 10_000
WATCHED = [topic_key(TOPIC), CONTROLLER, *(broker_key(BrokerId(broker)) for broker in range(1, 5))]
SETTINGS: Any = SimpleNamespace(
    cluster=SimpleNamespace(
        replica_fetch_max_bytes=3,
        num_replica_fetchers=1,
        replica_fetch_backoff_ms=0,
        replica_lag_time_max_ms=MAX_LAG_MS,
        follower_replication_throttled_rate=1 << 40,
        auto_leader_rebalance_enable=True,
        leader_imbalance_per_broker_percentage=0,
    ),
    coordinator=SimpleNamespace(internal_replication_factors={}),
    topic_defaults=SimpleNamespace(unclean_leader_election_enable=False),
)


class Disk:
    """What a process leaves behind. Stands in for ``LogDirectory``."""

    path = "."
    files = None

    def __init__(self, min_insync_replicas: int, is_synced: bool = False) -> None:
        self._min_insync_replicas = min_insync_replicas
        self._is_synced = is_synced
        self.logs: dict[TopicPartition, ModelLog] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.may_have_lost_data = self.may_have_lost_synced_data = False
        self._lost: set[tuple[int, int, tuple[int, int]]] = set()

    def losses_settled(self) -> None:
        self.may_have_lost_data = self.may_have_lost_synced_data = False

    @property
    def partitions(self) -> dict[TopicPartition, ModelLog]:
        return self.logs

    def log(self, topic_partition: TopicPartition, config: Any, topic_id: Any) -> ModelLog:
        if topic_partition not in self.logs:
            self.logs[topic_partition] = ModelLog(topic_partition, self._min_insync_replicas, self._is_synced)
        return self.logs[topic_partition]

    def lose(self, topic_partition: TopicPartition, end: int) -> None:
        """What the log has from ``end`` on is gone."""
        self._note_lost(topic_partition, end)
        self.logs[topic_partition].reopen(end)
        self.may_have_lost_data = True

    def remove(self, topic_partition: TopicPartition) -> None:
        """The replica is gone. Its leader may not know it yet, and count what it has fetched."""
        if topic_partition in self.logs:
            self._note_lost(topic_partition, 0)
            del self.logs[topic_partition]
        self.high_watermarks.pop(topic_partition, None)

    def _note_lost(self, topic_partition: TopicPartition, end: int) -> None:
        entries = self.logs[topic_partition].entries
        self._lost |= {(topic_partition.partition, offset, entries[offset]) for offset in range(end, len(entries))}

    def has_had(self, index: int, offset: int, entry: tuple[int, int]) -> bool:
        held = self.held(index)
        is_here = offset < held.start or held.entries[offset : offset + 1] == [entry]
        return is_here or (index, offset, entry) in self._lost

    def held(self, index: int) -> Held:
        log = self.logs.get(TopicPartition(TOPIC, index))
        return Held(0, []) if log is None else log.held


class _Replicas(ReplicaManager):
    """Without the files of partitions, and so without what is done in the background to remove them."""

    def config_of(self, topic):
        return None

    def _leave(self, name, index):
        topic_partition = TopicPartition(name, index)
        partition = self._partitions.pop((name, index), None)
        if partition is not None:
            partition.follow(partition.leader_epoch)
            self.on_role_change(partition, None)
        self._directory.remove(topic_partition)


class Request:
    """A fetch on its way: who asks, and the process that is asked."""

    def __init__(self, fetcher: "ModelFetcher", leader: "Process", positions: list[FetchPosition]) -> None:
        self.fetcher: ModelFetcher | None = fetcher
        self.leader = leader
        self.positions = positions
        self.by = FollowerFetch(fetcher.process.id, fetcher.process.membership.node.epoch)


class ModelFetcher(Fetcher):
    """A fetcher whose connection is the schedule: one request at a time, and its answer, or neither."""

    def __init__(self, process: "Process", leader: BrokerId) -> None:
        self.process = process
        self.request: Request | None = None
        self.answer: FetchResponse | None = None
        brokers = process.catalog
        super().__init__(
            leader,
            0,
            lambda broker: brokers.image.brokers.get(broker),
            lambda: process.membership.node,
            CurrentConfig(SETTINGS),
            process.clock,
            SimpleNamespace(took=lambda size, now: 0.0),
            _nothing_to_wait_for,
        )

    @property
    def leader(self) -> BrokerId:
        return self._leader

    def ask(self, leader: "Process") -> Request | None:
        self._connected_to = self._address(self._leader)
        self._session.changed |= self._session.paused
        self._session.paused.clear()
        positions = self._session.positions(SETTINGS.cluster.replica_fetch_max_bytes)
        if positions:
            self.request = Request(self, leader, positions)
        return self.request

    def take(self) -> None:
        answer, self.answer = self.answer, None
        try:
            self._handle_response(answer).send(None)
        except StopIteration:
            return
        raise AssertionError("taking an answer waits for nothing here")

    def _disconnect(self) -> None:
        if self.request is not None:
            # The leader may have it already, and count it, though nobody is there for the answer.
            self.request.fetcher = None
            self.process.orphans.append(self.request)
        self.request = self.answer = None
        super()._disconnect()

    def disconnect(self) -> None:
        self._disconnect()

    def cancel(self) -> None:
        """As its task, when nothing is followed of this leader any more."""
        self._disconnect()


async def _nothing_to_wait_for(partition: Partition) -> None:
    return


class _Following(FetcherManager):
    def __init__(self, process: "Process", clock: ManualClock) -> None:
        super().__init__(
            lambda: process.membership.node,
            lambda: process.catalog.image,
            CurrentConfig(SETTINGS),
            clock,
            _nothing_to_wait_for,
        )
        self._process = process

    def _fetcher_at(self, place):
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = ModelFetcher(self._process, place[0])
            self._tasks[place] = fetcher
        return fetcher

    @property
    def fetchers(self) -> list[ModelFetcher]:
        return list(self._fetchers.values())


class Process:
    """A running broker. ``running`` is what it has asked of the store; it asks for one thing at a time."""

    def __init__(
        self,
        broker_id: BrokerId,
        disk: Disk,
        store: ModelStore,
        clock: ManualClock,
        session: int,
        orphans: list[Request],
    ) -> None:
        self.id = broker_id
        self.disk = disk
        self.store = store
        self.clock = clock
        self.session = session
        self.orphans = orphans
        self.is_frozen = self.is_serving = self.has_failed = False
        self.running: Running | None = None
        self._heard = dict(store.values)
        for log in disk.logs.values():
            log.reopen(log.log_end_offset)
        client: Any = StoreClient()
        self.catalog = Catalog(client, broker_id)
        self.catalog.wait_until_free = _is_free  # type: ignore[method-assign]
        self.catalog._current.set_image(image_of("c", store.values))
        self.replicas = _Replicas(disk, self.catalog, None, clock, None, Supervisor(), broker_id)
        self.replicas.truncations = None  # a model's log is cut here and now
        self.membership = Membership(client, self.catalog, broker_id, 0)
        self.following = _Following(self, clock)
        self.isr_updater = IsrUpdater(broker_id, self.catalog, CurrentConfig(SETTINGS), clock, self._ask_others)
        self.controller = Controller(self.catalog, broker_id, CurrentConfig(SETTINGS), clock)
        self.log_end_reporter = LogEndReporter(lambda: self.membership.node, self.catalog)
        self.replicas.on_role_change = self._role_changed
        self.bugs: list[Exception] = []
        """What those raised who were told of a change; the catalog goes on without them."""
        self.catalog.on_change(self._noticing(self.replicas.image_changed))
        self.catalog.on_change(self._noticing(self.following.image_changed))

    def _role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        self.following.role_changed(partition, record)
        self.log_end_reporter.role_changed(partition, record)

    async def _ask_others(self, topics: Iterable[str]) -> None:
        """As if another broker knew all that the store has: the most that ``leader_inquiry`` can be told."""
        stored = image_of("c", self.store.values).topics
        for name in topics:
            if (told := stored.get(name)) is not None:
                await self.catalog.apply_elections(name, lambda topic, told=told: self._after(topic, told))

    def _after(self, topic: TopicRecord, told: TopicRecord) -> TopicRecord:
        pairs = zip(topic.partitions, told.partitions, strict=True)
        heard = tuple(
            later(before, after.leader, after.leader_epoch, after.isr, own_id=self.id) for before, after in pairs
        )
        return topic if heard == topic.partitions else replace(topic, partitions=heard)

    # What it does by itself.

    def run(self, what: str, coroutine: Any) -> bool:
        """Whether it asked the store for anything."""
        running = Running(what, coroutine, self._asked, self._failed)
        self.running = running if running.call is not None else None
        return self.running is not None

    def _noticing(self, callback: OnChange) -> OnChange:
        def called(old: ClusterImage, new: ClusterImage) -> None:
            try:
                callback(old, new)
            except Exception as error:
                self.bugs.append(error)
                raise

        return called

    def _asked(self, call: Call) -> None:
        call.session = self.session
        call.brokers_known = {broker.id: broker.epoch for broker in self.catalog.image.brokers.values()}

    def _failed(self) -> None:
        # A start that fails ends the process; whatever else fails has been written off by the broker itself.
        self.has_failed = not self.is_serving

    async def start(self) -> None:
        """As ``app.py`` does it."""
        await self.membership.prepare_restart(self.replicas.may_have_lost)
        self.disk.losses_settled()
        await self.membership.join(BrokerRecord(self.id, f"host{self.id}", 1))
        self.serve()

    def serve(self) -> None:
        self.replicas.take_roles()
        self.is_serving = True

    async def rejoin(self) -> None:
        self.controller.session_ended()
        await self.membership.join(self.membership.node)

    @property
    def partitions(self) -> list[Partition]:
        return list(self.replicas._partitions.values())

    @property
    def led(self) -> list[Partition]:
        return [partition for partition in self.partitions if partition.is_leader]

    def wants_isr(self) -> bool:
        return any(self.isr_updater._wanted(partition) is not None for partition in self.led)

    def change_isr(self) -> None:
        self.run("change the ISR", self.isr_updater._change(TOPIC, self.led))

    def wants_report(self) -> bool:
        node = self.membership.node
        records = self.catalog.image.topics[TOPIC].partitions
        return any(
            (node.id, node.epoch) not in [report[:2] for report in records[one.topic_partition.partition].reports]
            for one in self.log_end_reporter._leaderless
        )

    def report(self) -> None:
        self.run("report its logs", self.log_end_reporter._report(TOPIC, list(self.log_end_reporter._leaderless)))

    def reassign(self, index: int, target: Sequence[BrokerId] | None) -> bool:
        """As a client asks for it; None calls off what is under way. Whether it came as far as asking the store."""
        services: Any = SimpleNamespace(config=SETTINGS, catalog=self.catalog, node=self.membership.node)
        partition = SimpleNamespace(partition_index=index, replicas=target)
        topics = [SimpleNamespace(name=TOPIC, partitions=[partition])]
        request: Any = SimpleNamespace(body=SimpleNamespace(topics=topics))
        return self.run("reassign", alter_partition_reassignments.handle(services, request))

    def control(self, *, balance: bool) -> bool:
        self.controller._news.set()
        self.controller._balance_is_due = balance and self.controller.is_active
        return self.run("control", self.controller._decide_on_news())

    # What reaches it.

    def unheard_keys(self) -> list[str]:
        """What has changed since this broker last heard of it; its own writes too, as a watch tells them."""
        values, heard = self.store.values, self._heard
        return [key for key in WATCHED if values.get(key) is not heard.get(key)]

    def hear_of(self, key: str) -> None:
        """Of the latest state, whatever came in between."""
        entry = self.store.values.get(key)
        self._heard[key] = entry
        self.catalog._current.set_image(image_after(self.catalog.image, key, entry))

    def answer_fetch(self, request: Request) -> FetchResponse:
        pieces = [self._piece(position, request.by) for position in request.positions]
        return FetchResponse(0, ErrorCode.none, 0, pieces)

    def _piece(self, position: FetchPosition, by: FollowerFetch) -> FetchResponsePartition:
        wanted = Wanted(
            position.topic_id,
            position.partition,
            position.current_leader_epoch,
            position.fetch_offset,
            position.partition_max_bytes,
            position.last_fetched_epoch,
            position.log_start_offset,
        )
        key = position[:2]
        try:
            partition = self.replicas.partition(TOPIC, wanted.partition)
            partition.check_leader_epoch(wanted.current_leader_epoch)
            found = by.read(partition, wanted, wanted.max_bytes, lambda records: records, at_least_one=True)
        except KafkaError as error:
            return FetchResponsePartition(*key, error.code, -1, -1, -1, [])
        return FetchResponsePartition(
            *key,
            ErrorCode(found.error_code),
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            found.records,
            found.diverging_epoch,
        )


async def _is_free(broker: BrokerRecord, *, patience_s: float = 0) -> None:
    """No two processes of one id run at the same time here, and a start does not wait by a clock."""
