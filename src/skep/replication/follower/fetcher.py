"""Follows one leader: fetches everything that this broker follows of it over one connection.

A round is one Fetch request. It names only the partitions whose position has changed since the last one (a fetch
session, KIP-227), so a thousand idle partitions cost two small requests a second. The leader holds the request until
there is something to send, and responds for the partitions that have changed:

- records are appended as they are, byte for byte, and the leader's high watermark and log start are taken over;
- after a diverging epoch, or OFFSET_OUT_OF_RANGE, the log is truncated (``followed_partition.py``);
- another error means that a leader is being elected, or that a disk is failing: the partition waits for a while, or
  for its next role.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from skep.base.clock import Clock
from skep.base.config.cluster_config import ClusterConfig
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import DecodeError, ErrorCode, KafkaError, StorageError
from skep.base.ids import BrokerId
from skep.client.errors import ClientError
from skep.client.peer.peer import Peer
from skep.client.security.client_security import PLAINTEXT, ClientSecurity
from skep.metadata.model import BrokerRecord
from skep.replication.follower.fetch_session_handler import FetchSessionHandler
from skep.replication.follower.followed_partition import PAST_ALL_LOGS, FollowedPartition
from skep.replication.follower.throttle import Throttle
from skep.replication.partition.partition import Partition
from skep.wire.apis import FETCH
from skep.wire.fetch.fetch_request import encode_fetch_request
from skep.wire.fetch.fetch_response_reader import (
    FetchResponse,
    FetchResponsePartition,
    read_fetch_response,
)

logger = logging.getLogger(__name__)

FETCH_VERSION = 17
FIRST_BACKOFF_S = 0.05
APPENDS_PER_TURN = 64
UNTIL_TRUNCATED = float(1 << 40)
"""A partition whose log is being truncated is paused until the truncation has ended."""
BeforeTruncation = Callable[[Partition], Any]
"""Awaited before a log is truncated: everything that works on its files has to finish first."""


class Fetcher:
    """Follows one leader. Owns the connection to it and the fetch session there.

    Between rounds ``_session`` has the partitions that are followed, with their positions in the session.
    """

    def __init__(
        self,
        leader: BrokerId,
        number: int,
        address: Callable[[BrokerId], BrokerRecord | None],
        node: Callable[[], BrokerRecord],
        config: CurrentConfig,
        clock: Clock,
        throttle: Throttle,
        before_truncation: BeforeTruncation,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._leader = leader
        self._number = number
        self._address = address
        self._node = node
        self._config = config
        self._clock = clock
        self._throttle = throttle
        self._before_truncation = before_truncation
        self._security = security
        self._session = FetchSessionHandler(clock)
        self._news = asyncio.Event()
        self._peer: Peer | None = None
        self._connected_to: BrokerRecord | None = None
        self._is_failing = False

    # Partitions.

    def follow(self, partition: Partition, *, is_new: bool, is_in_sync: bool) -> None:
        """Follows the partition from its log end on. Also called when its leader epoch or its ISR membership has
        changed."""
        self._session.follow(partition, is_new=is_new, is_in_sync=is_in_sync)
        self._news.set()

    def forget(self, partition: Partition) -> None:
        self._session.forget(partition)

    def __len__(self) -> int:
        return len(self._session.followed)

    def brokers_changed(self) -> None:
        """The leader may be registered again, or at another address."""
        if self._connected_to is not None and not _is_same(self._address(self._leader), self._connected_to):
            self._disconnect()
        self._news.set()

    # Rounds.

    async def run(self) -> None:
        """Runs until it is cancelled."""
        backoff_s = FIRST_BACKOFF_S
        try:
            while True:
                self._news.clear()
                if not self._session.followed:
                    await self._news.wait()
                    continue
                try:
                    await self._round()
                    backoff_s = FIRST_BACKOFF_S
                    self._is_failing = False
                    continue
                except (ClientError, KafkaError, DecodeError, OSError, TimeoutError) as error:
                    self._log_failure(error)
                except Exception:
                    # A bug. The task continues, because everything that is followed here depends on it.
                    logger.exception("fetching from broker %d failed, retrying", self._leader)
                self._disconnect()
                await self._wait(backoff_s)
                backoff_s = min(2 * backoff_s, self._config.value.cluster.replica_fetch_backoff_ms / 1000)
        finally:
            self._disconnect()

    def _log_failure(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning("cannot fetch from broker %d, retrying: %s", self._leader, error)
        self._is_failing = True

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _round(self) -> None:
        peer = await self._connected()
        config, now = self._config.value.cluster, self._clock.monotonic()
        session = self._session
        session.renew_if_out_of_sync(now, config.replica_lag_time_max_ms / 1000)
        for followed in session.due(now):
            if followed.is_throttled(self._node().id) and (wait_s := self._throttle.wait_s(now)) > 0:
                followed.wait_until = now + wait_s
                continue
            session.resume(followed.key)
        if len(session.paused) == len(session.followed):
            await self._wait(self._max_wait_ms(config, now) / 1000)
            return
        wanted = await session.positions_in_slices(config.replica_fetch_max_bytes)
        if peer is not self._peer:
            return  # disconnected meanwhile: the next round begins a new session
        request = encode_fetch_request(
            FETCH_VERSION,
            replica_id=self._node().id,
            replica_epoch=self._node().epoch,
            max_wait_ms=self._max_wait_ms(config, now),
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            partitions=wanted,
            forgotten=session.pop_forgotten(),
        )
        timeout_s = (config.replica_socket_timeout_ms + config.replica_fetch_wait_max_ms) / 1000
        frame = await peer.ask_raw(FETCH, request, version=FETCH_VERSION, timeout_s=timeout_s)
        await self._handle_response(read_fetch_response(FETCH_VERSION, frame))
        peer.recycle(frame)

    def _max_wait_ms(self, config: ClusterConfig, now: float) -> int:
        """Returns how long the leader may hold the request: not past the moment at which a paused partition is due."""
        due = self._session.next_due
        if due is None:
            return config.replica_fetch_wait_max_ms
        # Rounded up: a fraction of a millisecond would become 0, and round after round would ask for nothing until
        # then.
        return max(0, min(config.replica_fetch_wait_max_ms, math.ceil((due - now) * 1000)))

    async def _connected(self) -> Peer:
        if self._peer is not None and not self._peer.is_closed:
            return self._peer
        broker = self._address(self._leader)
        if broker is None:
            raise ClientError(f"broker {self._leader} is not registered")
        self._disconnect()
        timeout_s = self._config.value.cluster.replica_socket_timeout_ms / 1000
        # The leader tells the fetchers of a follower apart by their client ids.
        client_id = f"broker-{self._node().id}-fetcher-{self._number}"
        peer = Peer(broker.host, broker.port, client_id=client_id, timeout_s=timeout_s, security=self._security)
        self._peer, self._connected_to = peer, broker
        await peer.connect()
        return peer

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer = self._connected_to = None
        self._session.begin()

    # Responses.

    async def _handle_response(self, response: FetchResponse) -> None:
        if response.error_code is not ErrorCode.none:
            if response.error_code not in (
                ErrorCode.fetch_session_id_not_found,
                ErrorCode.invalid_fetch_session_epoch,
                ErrorCode.fetch_session_topic_id_error,
            ):
                raise KafkaError(response.error_code, f"broker {self._leader} refuses the fetch request")
            self._session.begin()
            return
        self._session.responded(response.session_id)
        for count, fetched in enumerate(response.partitions, 1):
            followed = self._session.followed.get((fetched.topic_id, fetched.partition))
            if followed is not None and followed.sent is not None:
                await self._handle_partition(followed, fetched)
            if count % APPENDS_PER_TURN == 0:
                await asyncio.sleep(0)
        if not response.session_id:
            self._session.begin()

    async def _handle_partition(self, followed: FollowedPartition, fetched: FetchResponsePartition) -> None:
        partition, sent = followed.partition, followed.sent
        assert sent is not None
        if partition.is_leader or partition.leader_epoch != sent.current_leader_epoch:
            return  # the leader has changed since the request was sent
        key = followed.key
        try:
            if sent.fetch_offset == PAST_ALL_LOGS and fetched.error_code is ErrorCode.offset_out_of_range:
                await self._complete_start(followed, fetched)
                return
            if fetched.error_code is ErrorCode.none and fetched.diverging_epoch is None:
                if partition.log.log_end_offset != sent.fetch_offset:
                    return
                partition.log.lost_data = False
                partition.append_fetched(fetched.records, fetched.high_watermark, fetched.log_start_offset)
                if len(fetched.records) and partition.log.config.syncs_before_acknowledging:
                    await partition.flush()
            else:
                await self._truncate(followed, fetched)
            if self._session.followed.get(key) is followed and key not in self._session.paused:
                self._session.changed.add(key)
                self._slow_down(followed, len(fetched.records))
        except (KafkaError, StorageError) as error:
            self._back_off(followed, error)

    async def _complete_start(self, followed: FollowedPartition, fetched: FetchResponsePartition) -> None:
        """Handles a log that has lost records, or that is empty and not known to be on the leader's history.

        Records missing at its end will be fetched. If it starts later than the leader's log, all records are fetched
        again: with what is appended now the log would have a hole that nothing would notice.
        """
        partition = followed.partition
        if fetched.log_start_offset < 0:
            raise KafkaError(fetched.error_code, "the leader's response has no log start offset")
        if partition.log.log_start_offset > fetched.log_start_offset:
            if not await self._may_truncate(followed):
                return
            truncation = followed.start_over(fetched.log_start_offset)
            if truncation is not None:
                # When the truncation has ended, the next response shows that both logs start at the same offset.
                self._await_truncation(followed, truncation)
                return
        followed.compared_in = partition.leader_epoch
        self._session.changed.add(followed.key)

    async def _may_truncate(self, followed: FollowedPartition) -> bool:
        """Waits until nothing works on the log's files. Returns whether this fetcher may still truncate the log."""
        partition, epoch = followed.partition, followed.partition.leader_epoch
        await self._before_truncation(partition)
        is_followed = self._session.followed.get(followed.key) is followed
        if partition.log.is_being_cut:
            return False
        return is_followed and not partition.is_leader and partition.leader_epoch == epoch

    async def _truncate(self, followed: FollowedPartition, fetched: FetchResponsePartition) -> None:
        """Brings the log onto the leader's history. Raises KafkaError when the response has another error."""
        if fetched.error_code not in (ErrorCode.none, ErrorCode.offset_out_of_range):
            raise KafkaError(fetched.error_code, f"broker {self._leader} refuses to send this partition")
        if not await self._may_truncate(followed):
            return
        self._await_truncation(followed, followed.truncate(fetched, self._leader))

    def _await_truncation(self, followed: FollowedPartition, truncation: "asyncio.Future[None] | None") -> None:
        """Pauses the partition while its log is being truncated; the other partitions of this leader are fetched
        meanwhile."""
        if truncation is not None:
            self._session.pause(followed, UNTIL_TRUNCATED)
            truncation.add_done_callback(lambda ended: self._truncation_ended(followed, ended))

    def _truncation_ended(self, followed: FollowedPartition, truncation: "asyncio.Future[None]") -> None:
        if self._session.followed.get(followed.key) is not followed:
            return
        if isinstance(error := truncation.exception(), Exception):
            self._back_off(followed, error)
            return
        followed.wait_until = 0.0
        self._news.set()

    def _slow_down(self, followed: FollowedPartition, size: int) -> None:
        """Pauses a throttled replica that has fetched more than its rate permits."""
        if not size or not followed.is_throttled(self._node().id):
            return
        now = self._clock.monotonic()
        wait_s = self._throttle.took(size, now)
        if wait_s > 0:
            self._session.pause(followed, now + wait_s)

    def _back_off(self, followed: FollowedPartition, error: Exception) -> None:
        if self._session.followed.get(followed.key) is not followed:
            return
        backoff_s = self._config.value.cluster.replica_fetch_backoff_ms / 1000
        if not (isinstance(error, KafkaError) and error.code in _TRANSIENT):
            logger.error("%s: %s; retrying", followed.partition.topic_partition, error)
        self._session.pause(followed, self._clock.monotonic() + backoff_s)


_TRANSIENT = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""A leader is being elected: these errors are not logged."""


def _is_same(broker: BrokerRecord | None, connected_to: BrokerRecord) -> bool:
    """Whether this is the same process at the same address. A broker that is stopping counts as the same: it is
    followed to the end."""
    return broker is not None and replace(broker, stopping=connected_to.stopping) == connected_to
