"""Following one leader: everything that this broker follows of another is fetched over one connection.

A round is one Fetch request. It names only the partitions whose position changed since the last one (a fetch session,
KIP-227), so a thousand idle partitions cost two small requests a second. The leader holds the request back until there
is something, and answers for the partitions that have news:

- records: appended as they are, byte for byte; the leader's marks are taken over;
- a *diverging epoch*: our log has batches that this leader's history does not have. They are taken back, up to where
  both can be the same, and the next round asks again (KIP-101, KIP-279, over Fetch as in KIP-595);
- OFFSET_OUT_OF_RANGE: the leader's log begins past the end of ours; ours begins anew there;
- another error: who leads is being decided, or a disk is failing. That partition waits a while, or for news.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from skep.base.clock import Clock
from skep.base.config.broker_config import BrokerConfig
from skep.base.errors import DecodeError, ErrorCode, KafkaError, StorageError
from skep.base.ids import BrokerId, LeaderEpoch, Offset
from skep.client.errors import ClientError
from skep.client.peer.peer import Peer
from skep.metadata.model import BrokerRecord
from skep.replication.follower.followed_partition import Followed
from skep.replication.follower.throttle import Throttle
from skep.replication.partition.partition import Partition
from skep.storage.log.leader_epochs import NO_EPOCH
from skep.storage.log.log import Log
from skep.wire.apis import FETCH
from skep.wire.fetch.fetch_request import FollowerPartition, encode_follower_fetch
from skep.wire.fetch.fetch_response_reader import AnsweredPartition, FollowerAnswer, read_follower_answer

logger = logging.getLogger(__name__)

FETCH_VERSION = 17
FIRST_BACKOFF_S = 0.05
APPENDS_PER_TURN = 64
POSITIONS_PER_TURN = 500
UNTIL_CUT = float(1 << 40)
"""A partition whose log is being cut waits until it is told of the end."""
PAST_ALL_LOGS = Offset(1 << 62)
"""Asked for by a follower whose log may begin too late. The leader refuses it, says where its own log begins, and does
not count the follower among those that have what lies before; it could be in the ISR before it has begun anew."""

Key = tuple[UUID, int]
BeforeTruncation = Callable[[Partition], Any]
"""Awaited before a log is cut: whatever works on its files has to let go first."""


class Fetcher:
    """Follows one leader. Owns the connection to it and the fetch session there.

    Between rounds ``_changed`` has the partitions whose position may not be what the session knows, ``_forgotten``
    those that the session knows and that are no longer followed here.
    """

    def __init__(
        self,
        leader: BrokerId,
        address: Callable[[BrokerId], BrokerRecord | None],
        node: Callable[[], BrokerRecord],
        settings: Callable[[], BrokerConfig],
        clock: Clock,
        throttle: Throttle,
        before_truncation: BeforeTruncation,
    ) -> None:
        self._leader = leader
        self._address = address
        self._node = node
        self._settings = settings
        self._clock = clock
        self._throttle = throttle
        self._before_truncation = before_truncation
        self._followed: dict[Key, Followed] = {}
        self._changed: set[Key] = set()
        self._delayed: set[Key] = set()
        self._forgotten: set[Key] = set()
        self._news = asyncio.Event()
        self._peer: Peer | None = None
        self._connected_to: BrokerRecord | None = None
        self._session = (0, 0)
        self._is_failing = False

    # Which partitions.

    def follow(self, partition: Partition, *, is_new: bool, is_in_sync: bool) -> None:
        """From its own log's end on; also when its leader epoch or its place in the ISR changed."""
        key = (partition.topic_id, partition.topic_partition.partition)
        followed = self._followed.get(key)
        if followed is None or followed.partition is not partition:
            sent = None if followed is None else followed.sent
            followed = self._followed[key] = Followed(partition, is_new, is_in_sync)
            followed.sent = sent
            self._forgotten.discard(key)
        followed.is_new, followed.is_in_sync = is_new, is_in_sync
        followed.wait_until = 0.0
        self._delayed.discard(key)
        self._changed.add(key)
        self._news.set()

    def forget(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.topic_partition.partition)
        followed = self._followed.get(key)
        if followed is None or followed.partition is not partition:
            return
        del self._followed[key]
        self._changed.discard(key)
        self._delayed.discard(key)
        if followed.sent is not None:
            self._forgotten.add(key)

    def __len__(self) -> int:
        return len(self._followed)

    def brokers_changed(self) -> None:
        """The leader may be there again, or at another address."""
        if self._connected_to is not None and not _is_same(self._address(self._leader), self._connected_to):
            self._disconnect()
        self._news.set()

    # Rounds.

    async def run(self) -> None:
        """Until it is cancelled."""
        backoff_s = FIRST_BACKOFF_S
        try:
            while True:
                self._news.clear()
                if not self._followed:
                    await self._news.wait()
                    continue
                try:
                    await self._round()
                    backoff_s = FIRST_BACKOFF_S
                    self._is_failing = False
                    continue
                except (ClientError, KafkaError, DecodeError, OSError, TimeoutError) as error:
                    self._say_failing(error)
                except Exception:
                    # A bug. All that is followed here depends on this task, so it goes on.
                    logger.exception("fetching from broker %d failed, and goes on", self._leader)
                self._disconnect()
                await self._wait(backoff_s)
                backoff_s = min(2 * backoff_s, self._settings().replica_fetch_backoff_ms / 1000)
        finally:
            self._disconnect()

    def _say_failing(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning("broker %d cannot be fetched from, trying again: %s", self._leader, error)
        self._is_failing = True

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _round(self) -> None:
        peer = await self._connected()
        config, now = self._settings(), self._clock.monotonic()
        for key in [key for key in self._delayed if self._followed[key].wait_until <= now]:
            followed = self._followed[key]
            if followed.is_throttled(self._node().id) and (wait_s := self._throttle.wait_s(now)) > 0:
                followed.wait_until = now + wait_s
                continue
            self._delayed.discard(key)
            self._changed.add(key)
        if len(self._delayed) == len(self._followed):
            await self._wait(self._max_wait_ms(config, now) / 1000)
            return
        wanted = await self._wanted_in_turns(config)
        if peer is not self._peer:
            return  # disconnected meanwhile: the next round begins a session
        session_id, epoch = self._session
        request = encode_follower_fetch(
            replica_id=self._node().id,
            replica_epoch=self._node().epoch,
            max_wait_ms=self._max_wait_ms(config, now),
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session_id,
            session_epoch=epoch,
            partitions=wanted,
            forgotten=self._take_forgotten(),
        )
        timeout_s = (config.replica_socket_timeout_ms + config.replica_fetch_wait_max_ms) / 1000
        frame = await peer.ask_raw(FETCH, request, version=FETCH_VERSION, timeout_s=timeout_s)
        await self._take(read_follower_answer(frame))
        peer.give_back(frame)

    def _max_wait_ms(self, config: BrokerConfig, now: float) -> int:
        """The leader may keep us waiting, but not past the moment at which a partition that waits is due."""
        if not self._delayed:
            return config.replica_fetch_wait_max_ms
        due = min(self._followed[key].wait_until for key in self._delayed)
        # Rounded up: less than a millisecond would be none, and until then round after round would ask for nothing.
        return max(0, min(config.replica_fetch_wait_max_ms, math.ceil((due - now) * 1000)))

    async def _connected(self) -> Peer:
        if self._peer is not None and not self._peer.is_closed:
            return self._peer
        broker = self._address(self._leader)
        if broker is None:
            raise ClientError(f"broker {self._leader} is not there")
        self._disconnect()
        timeout_s = self._settings().replica_socket_timeout_ms / 1000
        peer = Peer(broker.host, broker.port, client_id=f"broker-{self._node().id}-fetcher", timeout_s=timeout_s)
        self._peer, self._connected_to = peer, broker
        await peer.connect()
        return peer

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer = self._connected_to = None
        self._begin_session()

    def _begin_session(self) -> None:
        """The leader knows nothing of us: the next round names everything."""
        self._session = (0, 0)
        self._forgotten.clear()
        for followed in self._followed.values():
            followed.sent = None
        self._changed = set(self._followed) - self._delayed

    def _wanted(self, config: BrokerConfig) -> list[FollowerPartition]:
        """What the session does not know yet."""
        changed, self._changed = self._changed, set()
        return self._positions(changed, config)

    async def _wanted_in_turns(self, config: BrokerConfig) -> list[FollowerPartition]:
        """The same for very many partitions, which are looked at a few in a turn of the event loop."""
        changed, self._changed = list(self._changed), set()
        wanted = self._positions(changed[:POSITIONS_PER_TURN], config)
        for start in range(POSITIONS_PER_TURN, len(changed), POSITIONS_PER_TURN):
            await asyncio.sleep(0)
            wanted += self._positions(changed[start : start + POSITIONS_PER_TURN], config)
        if len(changed) > POSITIONS_PER_TURN:
            # Those that were forgotten meanwhile are not to be asked for.
            wanted = [position for position in wanted if position[:2] in self._followed]
        return wanted

    def _positions(self, keys: Iterable[Key], config: BrokerConfig) -> list[FollowerPartition]:
        wanted = []
        for key in keys:
            followed = self._followed.get(key)
            if followed is None:
                continue
            partition, log = followed.partition, followed.partition.log
            if log.config.syncs_before_acknowledging and log.flushed_offset < log.log_end_offset:
                # To ask for what follows is to say that we have it. A sync failed, or another leader is asked by now.
                partition.flush()
                self._leave_alone(key, followed, self._clock.monotonic() + FIRST_BACKOFF_S)
                continue
            # A member of the ISR has all that is committed: what it has not, earlier leaders had deleted.
            may_begin_late = not followed.is_in_sync and _may_begin_late(log)
            is_to_compare = may_begin_late and followed.compared_in != partition.leader_epoch
            position = FollowerPartition(
                *key,
                partition.leader_epoch,
                PAST_ALL_LOGS if is_to_compare else log.log_end_offset,
                NO_EPOCH if is_to_compare else log.latest_epoch,
                log.log_start_offset,
                config.replica_fetch_max_bytes,
            )
            if position != followed.sent:
                followed.sent = position
                wanted.append(position)
                self._forgotten.discard(key)
        return wanted

    def _take_forgotten(self) -> list[Key]:
        forgotten, self._forgotten = sorted(self._forgotten), set()
        return forgotten

    # Answers.

    async def _take(self, answer: FollowerAnswer) -> None:
        if answer.error_code is not ErrorCode.none:
            if answer.error_code not in (
                ErrorCode.fetch_session_id_not_found,
                ErrorCode.invalid_fetch_session_epoch,
                ErrorCode.fetch_session_topic_id_error,
            ):
                raise KafkaError(answer.error_code, "the leader refuses the fetch")
            self._begin_session()
            return
        epoch = self._session[1]
        self._session = (answer.session_id, epoch + 1 if answer.session_id else 0)
        for count, piece in enumerate(answer.partitions, 1):
            followed = self._followed.get((piece.topic_id, piece.partition))
            if followed is not None and followed.sent is not None:
                await self._take_piece(followed, piece)
            if count % APPENDS_PER_TURN == 0:
                await asyncio.sleep(0)
        if not answer.session_id:
            self._begin_session()

    async def _take_piece(self, followed: Followed, piece: AnsweredPartition) -> None:
        partition, sent = followed.partition, followed.sent
        assert sent is not None
        if partition.is_leader or partition.leader_epoch != sent.current_leader_epoch:
            return  # who leads has changed while the answer was on its way
        key = (piece.topic_id, piece.partition)
        try:
            if sent.fetch_offset == PAST_ALL_LOGS and piece.error_code is ErrorCode.offset_out_of_range:
                await self._make_whole(followed, piece)
                return
            if piece.error_code is ErrorCode.none and piece.diverging_epoch is None:
                if partition.log.log_end_offset != sent.fetch_offset:
                    return
                partition.log.lost_data = False
                partition.append_fetched(piece.records, piece.high_watermark, piece.log_start_offset)
                if len(piece.records) and partition.log.config.syncs_before_acknowledging:
                    await partition.flush()
            else:
                await self._mend(followed, piece)
            if self._followed.get(key) is followed and key not in self._delayed:
                self._changed.add(key)
                self._slow_down(key, followed, len(piece.records))
        except (KafkaError, StorageError) as error:
            self._delay(key, followed, error)

    async def _make_whole(self, followed: Followed, piece: AnsweredPartition) -> None:
        """The log has lost records, or is empty and not known to be on the leader's history.

        Those at its end are coming. If it begins later than the leader's log, all come again: with what is appended
        now it would have a hole, and nobody would see it.
        """
        partition = followed.partition
        if piece.log_start_offset < 0:
            raise KafkaError(piece.error_code, "the leader does not say where its log begins")
        if partition.log.log_start_offset > piece.log_start_offset:
            if not await self._may_cut(followed):
                return
            cut = partition.start_anew_at(Offset(piece.log_start_offset))
            if cut is not None:
                # Then the next answer finds that both begin at the same offset.
                self._await_cut(followed, cut)
                return
        followed.compared_in = partition.leader_epoch
        self._changed.add((piece.topic_id, piece.partition))

    async def _may_cut(self, followed: Followed) -> bool:
        """Whether the log is still ours to cut, when whatever worked on its files has let go."""
        partition = followed.partition
        key, epoch = (partition.topic_id, partition.topic_partition.partition), partition.leader_epoch
        await self._before_truncation(partition)
        is_followed = self._followed.get(key) is followed
        if partition.log.is_being_cut:
            return False
        return is_followed and not partition.is_leader and partition.leader_epoch == epoch

    async def _mend(self, followed: Followed, piece: AnsweredPartition) -> None:
        """Our log is not on the leader's history; KafkaError when it is something else that is wrong."""
        if piece.error_code not in (ErrorCode.none, ErrorCode.offset_out_of_range):
            raise KafkaError(piece.error_code, "the leader refuses")
        if not await self._may_cut(followed):
            return
        partition, log = followed.partition, followed.partition.log
        if piece.diverging_epoch is not None and _has_nothing_in_common(log, piece.diverging_epoch):
            logger.info("%s: beginning anew at %d", partition.topic_partition, piece.log_start_offset)
            self._await_cut(followed, partition.start_anew_at(Offset(max(0, piece.log_start_offset))))
        elif piece.diverging_epoch is not None:
            epoch, leader_end = piece.diverging_epoch
            own_epoch, own_end = log.end_offset_for_epoch(LeaderEpoch(epoch))
            # (KIP-279) Where we do not have that epoch, our last one before it is the furthest that can be common.
            end = min(leader_end, own_end) if own_epoch >= 0 else leader_end
            logger.info(
                "%s: taking back %d to %d, which broker %d does not have",
                partition.topic_partition,
                end,
                log.log_end_offset,
                self._leader,
            )
            self._await_cut(followed, partition.truncate_to(Offset(max(end, log.log_start_offset))))
        elif piece.log_start_offset >= 0 and (piece.log_start_offset > log.log_end_offset or _is_empty(log)):
            # Ours lies wholly before the leader's, or is empty and lies past its end.
            start = Offset(piece.log_start_offset)
            logger.info("%s: beginning anew at %d, where the leader's log begins", partition.topic_partition, start)
            self._await_cut(followed, partition.start_anew_at(start))
        else:
            # Every batch has an epoch and every leader begins one, so this is no history that brokers make.
            raise KafkaError(piece.error_code, f"the leader has nothing to follow {log.log_end_offset}")

    def _await_cut(self, followed: Followed, cut: "asyncio.Future[None] | None") -> None:
        """Leaves a partition alone while its log is being cut; the others of this leader are followed meanwhile."""
        if cut is not None:
            partition = followed.partition
            key = (partition.topic_id, partition.topic_partition.partition)
            self._leave_alone(key, followed, UNTIL_CUT)
            cut.add_done_callback(lambda ended: self._cut_ended(key, followed, ended))

    def _cut_ended(self, key: Key, followed: Followed, cut: "asyncio.Future[None]") -> None:
        if self._followed.get(key) is not followed:
            return
        if isinstance(error := cut.exception(), Exception):
            self._delay(key, followed, error)
            return
        followed.wait_until = 0.0
        self._news.set()

    def _slow_down(self, key: Key, followed: Followed, size: int) -> None:
        """A replica that is to catch up slowly fetches no faster than it may."""
        if not size or not followed.is_throttled(self._node().id):
            return
        now = self._clock.monotonic()
        wait_s = self._throttle.took(size, now)
        if wait_s > 0:
            self._leave_alone(key, followed, now + wait_s)

    def _delay(self, key: Key, followed: Followed, error: Exception) -> None:
        if self._followed.get(key) is not followed:
            return
        backoff_s = self._settings().replica_fetch_backoff_ms / 1000
        if not (isinstance(error, KafkaError) and error.code in _PASSING):
            logger.error("%s: %s; trying again", followed.partition.topic_partition, error)
        self._leave_alone(key, followed, self._clock.monotonic() + backoff_s)

    def _leave_alone(self, key: Key, followed: Followed, until: float) -> None:
        followed.wait_until = until
        self._changed.discard(key)
        self._delayed.add(key)
        # Until then the session is not to ask for it: an error would be told in every answer, at once.
        if followed.sent is not None:
            followed.sent = None
            self._forgotten.add(key)


def _is_empty(log: Log) -> bool:
    return log.log_start_offset == log.log_end_offset


def _has_nothing_in_common(log: Log, diverging: tuple[int, int]) -> bool:
    """Whether all that we have left lies past what the leader has in common with us; or nothing is left, and the last
    that we had was of an epoch that the leader does not know."""
    epoch, end = diverging
    return end < log.log_start_offset or (_is_empty(log) and log.last_batch_epoch > epoch)


def _may_begin_late(log: Log) -> bool:
    """Whether the leader may have records before our first one that we should have: ours were lost, or nothing says
    that we ever had the same."""
    return log.log_start_offset > 0 and (log.lost_data or (_is_empty(log) and log.latest_epoch < 0))


_PASSING = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Who leads is being decided: nothing to tell anybody."""


def _is_same(broker: BrokerRecord | None, connected_to: BrokerRecord) -> bool:
    """Whether it is the very process, where it was. One that is about to stop is, and has to be followed to the end."""
    return broker is not None and replace(broker, stopping=connected_to.stopping) == connected_to
