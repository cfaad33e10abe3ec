"""A broker with the coordinators of groups and of transactions, over real logs and without a network."""

from collections.abc import Sequence

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.coordination.coordinator_runtime import CoordinatorRuntime
from skep.coordination.group_records import decode_group_record
from skep.coordination.groups.group_shard import GroupShard
from skep.coordination.groups.offsets import offset_operations
from skep.coordination.groups.offsets.offset_operations import Committer, WantedOffset
from skep.coordination.shard import ProducerStamp
from skep.coordination.transaction_records import decode_transaction_record
from skep.coordination.transactions.init_producer import InitProducerRequest
from skep.coordination.transactions.markers import MarkerWriter
from skep.coordination.transactions.transaction_coordinator import TransactionCoordinator
from skep.coordination.transactions.transaction_shard import TransactionShard
from skep.metadata.model import TopicRecord
from skep.records.batch import read_header
from skep.records.builder import NewRecord, build_batch
from skep.records.end_txn_marker import read_marker
from skep.records.record import Record, batches_in, iterate_records
from tests.crash.life import HERE, Life, led_here
from tests.memory_files import MemoryFiles

GROUPS, TRANSACTIONS, ORDERS = "__consumer_offsets", "__transaction_state", "orders"
PLACES = [TopicPartition(ORDERS, 0), TopicPartition(ORDERS, 1)]
ID, GROUP = "till-1", "kitchen"
TOPICS = [led_here(GROUPS, 1), led_here(TRANSACTIONS, 1), led_here(ORDERS, 2)]
SETTINGS = read_broker_config({"group.initial.rebalance.delay.ms": "0"})


class TransactionLife(Life):
    """With the coordinators of groups and of transactions."""

    turn_ms = 20

    def __init__(self, files: MemoryFiles, config: TopicConfig, more: Sequence[TopicRecord] = ()) -> None:
        super().__init__(files, config, [*TOPICS, *more])
        self.groups: CoordinatorRuntime[GroupShard] = CoordinatorRuntime(
            GROUPS,
            lambda context: GroupShard(context, CurrentConfig(SETTINGS), lambda: self.catalog.image),
            decode_group_record,
            *self.for_runtimes,
        )
        markers = MarkerWriter(TRANSACTIONS, self.replicas, self.groups)
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTIONS,
            lambda context: TransactionShard(context, CurrentConfig(SETTINGS), markers),
            decode_transaction_record,
            *self.for_runtimes,
        )
        self.transactions = TransactionCoordinator(self.runtime, self.groups, CurrentConfig(SETTINGS))
        self._next_producer_id = 100

    async def start(self) -> None:
        await self.replicas.load()
        self.groups.follow(TOPICS[0], HERE)
        self.runtime.follow(TOPICS[1], HERE)
        await self.until(lambda: not self.groups.is_loading and not self.runtime.is_loading)

    async def new_producer(self) -> ProducerStamp:
        async def next_id() -> int:
            self._next_producer_id += 1
            return self._next_producer_id

        await self.complete()
        asked = InitProducerRequest(ID, 60_000, None)
        answer = await self.settled(self.transactions.init_producer_id(asked, next_id))
        if answer["error_code"] is ErrorCode.concurrent_transactions:
            await self.complete()
            answer = await self.settled(self.transactions.init_producer_id(asked, next_id))
        assert answer["error_code"] is ErrorCode.none
        return ProducerStamp(answer["producer_id"], answer["producer_epoch"])

    async def complete(self) -> None:
        await self.until(lambda: not self.runtime.shard_of(ID).completions)

    async def transaction(self, producer: ProducerStamp, number: int, *, commit: bool) -> None:
        await self.settled(self.transactions.add_partitions(ID, producer, frozenset(PLACES), None))
        for place in PLACES:
            await self.append(producer, place, number, [NewRecord(None, b"%d" % number, self.clock.now_ms())])
        await self.settled(self.transactions.add_offsets(ID, producer, GROUP, None))
        self.transactions.verifier.verify(ID, producer, self.transactions.offsets_of(GROUP), 0)
        offsets = [WantedOffset("input", 0, number, -1, "")]
        await self.settled(
            self.groups.submit(
                GROUP,
                lambda shard: offset_operations.commit_transactional(
                    shard, GROUP, Committer("", None, -1), producer, offsets, 3
                ),
            )
        )
        await self.settled(self.transactions.end(ID, producer, commit=commit, response=None))

    async def append(
        self, producer: ProducerStamp, place: TopicPartition, sequence: int, records: Sequence[NewRecord]
    ) -> None:
        """Appends a batch of a transaction that has the partition."""
        self.transactions.verifier.verify(ID, producer, place, 0)
        batch = build_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        _, synced = self.replicas.partition(*place).append(batch, read_header(batch))
        await self.settled(synced)

    def committed_in(self, place: TopicPartition) -> list[int]:
        """The numbers that a read_committed reader finds; nothing may be open."""
        log = self.replicas.partition(*place).log
        log.producers.transactions.high_watermark_moved(log.log_end_offset)
        assert log.first_unstable_offset is None, f"{place} has an open transaction"
        return [int(record.value or b"") for record in self.committed_records(place)]

    def committed_records(self, place: TopicPartition) -> list[Record]:
        """What a read_committed reader finds: nothing from the first open transaction on."""
        partition = self.replicas.partition(*place)
        log, end = partition.log, partition.last_stable_offset
        found: list[Record] = []
        pending: dict[int, list[Record]] = {}
        offset = log.log_start_offset
        while offset < end:
            piece = log.read(offset, 1 << 20, up_to=end, at_least_one=True)
            assert piece.file is not None
            for header, batch in batches_in(piece.file.read(piece.position, piece.size)):
                if header.is_control:
                    marker = read_marker(batch)
                    records = pending.pop(header.producer_id, [])
                    found += records if marker is not None and marker.committed else []
                elif header.is_transactional:
                    pending.setdefault(header.producer_id, []).extend(iterate_records(batch))
                else:
                    found += iterate_records(batch)
            offset = piece.next_offset
        return found

    def committed_offset(self) -> int | None:
        offsets = self.groups.shard_of(GROUP).offsets
        assert not offsets.has_pending(GROUP)
        found = offsets.of_group(GROUP).get(("input", 0))
        return None if found is None else found.offset
