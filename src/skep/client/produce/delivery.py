"""Delivery of record batches to the leaders of their partitions, in turns, on the caller's thread.

A turn hands every broker the requests that it may have (see ``produce_queue``), writes and reads what the sockets allow
and blocks only on request. Delivery looks up a leader that has moved, replaces a lost connection and sends the batches
on it again. While a broker owes responses for a partition, none of its batches is sent to another broker: it would
arrive before its predecessors.
"""

import select
import time
from collections.abc import Callable, Iterable, Sequence

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import ClientError, Unreachable
from skep.client.produce.produce_pipe import ProduceOptions, ProducePipe
from skep.client.produce.produce_queue import MAX_IN_FLIGHT, BatchResult, Partition, ProduceQueue
from skep.client.retry import RETRIABLE
from skep.client.topic_info import GONE_AFTER_S

REQUEST_BYTES = 4 << 20
REQUEST_TIMEOUT_S = 30.0
DELIVERY_TIMEOUT_S = 120.0
PAUSE_S = 0.1
"""Between attempts at what failed."""
LONGEST_WAIT_S = 1.0
"""How often overdue responses are looked for."""


class Delivery:
    """Owns the queue and, until ``close``, a connection to each broker that was written to."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: ProduceOptions,
        *,
        max_request_bytes: int,
        request_timeout_s: float,
        delivery_timeout_s: float,
        before_sending: Callable[[list[Partition]], None],
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._max_request_bytes = max_request_bytes
        self._request_timeout_s = request_timeout_s
        self._delivery_timeout_s = delivery_timeout_s
        self._before_sending = before_sending
        self._pipes: dict[Node, ProducePipe] = {}
        self._leaders: dict[tuple[str, int], Node] = {}
        # The broker that has the requests in flight of a partition.
        self._sent_to: dict[tuple[str, int], Node] = {}
        self._unknown_since: float | None = None
        self.reset()

    def reset(self) -> None:
        """Drops everything that is not acknowledged, and every sequence number."""
        self.close()
        self.queue = ProduceQueue(give_up_after_s=self._delivery_timeout_s, pause_s=PAUSE_S)

    def close(self) -> None:
        """Releases the connections; those with requests in flight are closed."""
        for node, pipe in self._pipes.items():
            connection = pipe.release()
            if connection is not None:
                self._cluster.release_connection(node, connection)
        self._pipes = {}

    def settle(self) -> None:
        """Returns when no request is in flight: each has a response, has failed, or has taken too long.

        The responses are ignored. For a caller that drops everything unacknowledged.
        """
        deadline = time.monotonic() + self._request_timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            waiting = {node: pipe for node, pipe in self._pipes.items() if pipe.in_flight}
            if not waiting:
                return
            self._poll(waiting.values(), min(left_s, LONGEST_WAIT_S))
            for node, pipe in waiting.items():
                try:
                    pipe.write()
                    for _ in pipe.read():
                        pass
                except ClientError:
                    del self._pipes[node]

    def turn(self, *, wait: bool) -> None:
        """Takes one step. Raises KafkaError for a refusal, or for what has failed for ``delivery_timeout_s``."""
        self._dispatch(time.monotonic())
        if wait:
            self._wait()
        for node, pipe in list(self._pipes.items()):
            try:
                pipe.write()
                for batches, results in pipe.read():
                    for name in self.queue.complete(batches, results, time.monotonic()):
                        self._leaders.pop(name, None)
                        self._cluster.switch_metadata_broker()
            except ClientError as error:
                self._lose(node, pipe, error)

    def _dispatch(self, now: float) -> None:
        ready = list(self.queue.ready(now))
        if not ready:
            return
        by_node: dict[Node, list[Partition]] = {}
        for partition in self._with_leaders(ready, now):
            name = (partition.topic, partition.index)
            leader = self._leaders[name]
            if not partition.in_flight or self._sent_to[name] == leader:
                by_node.setdefault(leader, []).append(partition)
        for node, partitions in by_node.items():
            pipe = self._pipe_to(node, partitions, now)
            if pipe is None or pipe.in_flight >= MAX_IN_FLIGHT:
                continue
            self._before_sending(partitions)
            while partitions and pipe.in_flight < MAX_IN_FLIGHT:
                batches = self.queue.take(partitions, self._max_request_bytes)
                self._sent_to.update({(one.partition.topic, one.partition.index): node for one in batches})
                pipe.add(batches)
                partitions = [partition for partition in partitions if partition.may_send]

    def _with_leaders(self, ready: list[Partition], now: float) -> list[Partition]:
        """Returns the partitions with a known leader, after a lookup of the unknown ones; puts off the others."""
        missing = {partition.topic for partition in ready if (partition.topic, partition.index) not in self._leaders}
        problem = BatchResult(ErrorCode.leader_not_available, detail="the partition does not exist, or has no leader")
        if missing:
            try:
                self._leaders.update(self._cluster.leaders(sorted(missing)))
                self._unknown_since = None
            except Unreachable as error:
                problem = BatchResult(ErrorCode.network_exception, detail=str(error))
            except KafkaError as error:
                if error.code not in RETRIABLE and not self._may_be_behind(error.code, now):
                    raise
                problem = BatchResult(error.code, detail=error.detail)
        led = []
        for partition in ready:
            if (partition.topic, partition.index) in self._leaders:
                led.append(partition)
            else:
                self.queue.postpone(partition, problem, now)
        return led

    def _may_be_behind(self, code: ErrorCode, now: float) -> bool:
        """Whether a topic that a broker reports missing may be one that the broker does not know yet."""
        if code is not ErrorCode.unknown_topic_or_partition:
            return False
        if self._unknown_since is None:
            self._unknown_since = now
        return now - self._unknown_since < min(GONE_AFTER_S, self._delivery_timeout_s)

    def _pipe_to(self, node: Node, partitions: Sequence[Partition], now: float) -> ProducePipe | None:
        pipe = self._pipes.get(node)
        if pipe is not None:
            if not pipe.is_expiring:
                return pipe
            if pipe.in_flight:
                return None
            del self._pipes[node]
            pipe.close()
        try:
            pipe = ProducePipe(self._cluster.acquire_connection(node), self._options, timeout_s=self._request_timeout_s)
        except Unreachable as error:
            self._forget_leader(node)
            for partition in partitions:
                self.queue.postpone(partition, BatchResult(ErrorCode.network_exception, detail=str(error)), now)
            return None
        self._pipes[node] = pipe
        return pipe

    def _wait(self) -> None:
        waiting = [pipe for pipe in self._pipes.values() if pipe.in_flight]
        if not waiting:
            # Everything is put off until a later time.
            now = time.monotonic()
            times = [partition.retry_at for partition in self.queue.partitions.values() if partition.waiting]
            time.sleep(min(max(min(times, default=now) - now, 0.0), PAUSE_S))
            return
        has_put_off = any(partition.waiting and partition.failing_since for partition in self.queue.partitions.values())
        self._poll(waiting, PAUSE_S if has_put_off else LONGEST_WAIT_S)

    @staticmethod
    def _poll(pipes: Iterable[ProducePipe], timeout_s: float) -> None:
        poll = select.poll()
        for pipe in pipes:
            poll.register(pipe.fileno(), select.POLLIN | (select.POLLOUT if pipe.wants_to_write else 0))
        poll.poll(timeout_s * 1000)

    def _lose(self, node: Node, pipe: ProducePipe, error: ClientError) -> None:
        del self._pipes[node]
        self._forget_leader(node)
        batches = pipe.batches()
        lost = BatchResult(ErrorCode.network_exception, detail=str(error))
        results = {(batch.partition.topic, batch.partition.index): lost for batch in batches}
        self.queue.complete(batches, results, time.monotonic())

    def _forget_leader(self, node: Node) -> None:
        self._cluster.switch_metadata_broker()
        self._leaders = {name: leader for name, leader in self._leaders.items() if leader != node}
