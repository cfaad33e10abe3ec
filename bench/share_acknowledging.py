"""Rows share-acknowledge and share-acknowledge-pipelined: ShareAcknowledge requests of one record each, to produce
requests of one record each.

A response to either says that a record was appended and committed: the record itself, or the new state of the share
partition. The acknowledgements of a session are counted by its epoch, so a client sends the next one when it has the
response to the last, and *share-acknowledge* sends both kinds so, over one connection.

*share-acknowledge-pipelined* sends them without waiting, which no client does with acknowledgements. The broker still
takes one after the other, and each is a write of its own; produce requests are taken together.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from uuid import UUID, uuid4

from bench import frames
from bench.peers import apart, cpu_seconds
from bench.raw_client import WINDOW, RawClient
from bench.row import Row, spread, take_turns
from bench.share_topics import LONG_LOCKS, acquired, fill, initialize, new_group, share_fetch
from bench.single import Burst
from skep.testing import EmbeddedBroker
from skep.wire import apis

NAMES = ("share-acknowledge", "share-acknowledge-pipelined")

TOPIC, PRODUCED = "acknowledged", "produced"
VALUE_BYTES = 100
LOT = 2_000
"""Records that are acquired at once, the most that a group may have in flight by default."""
LOTS = 3
ROUNDS = 5
REQUESTS = LOT * LOTS
RECORDS = REQUESTS * (2 * ROUNDS + 1)
VERSION = 1
ACCEPT = 1

ACKNOWLEDGE, PRODUCE = "share-acknowledge", "produce"

Send = Callable[[RawClient, Sequence[bytes], int, int], float]
"""Sends so many requests, whose responses have that size. Returns the seconds."""


class Member:
    """Counts the epoch of its session."""

    def __init__(self, client: RawClient, group: str, topic_id: UUID) -> None:
        self._client, self._topic_id = client, topic_id
        self._named = {"group_id": group, "member_id": str(uuid4())}
        self._epoch = 0
        self._next = 0

    def acquire(self) -> None:
        """A lot of records, which may take several fetches."""
        left = LOT
        while left:
            group, member_id = self._named.values()
            left -= acquired(self._client.ask(share_fetch(group, member_id, self._epoch, self._topic_id, left)))
            self._epoch += 1

    def acknowledgements(self) -> list[bytes]:
        """A request for each record of the lot, in order."""
        requests = []
        for offset in range(self._next, self._next + LOT):
            batch = {"first_offset": offset, "last_offset": offset, "acknowledge_types": [ACCEPT]}
            partition = {"partition_index": 0, "acknowledgement_batches": [batch]}
            body = {
                **self._named,
                "share_session_epoch": self._epoch,
                "topics": [{"topic_id": self._topic_id, "partitions": [partition]}],
            }
            requests.append(frames.request(apis.SHARE_ACKNOWLEDGE, VERSION, body))
            self._epoch += 1
        self._next += LOT
        return requests

    def check_nothing_is_held(self) -> None:
        """Another session gives back what is held, and finds nothing."""
        group, member_id = self._named.values()
        closing = frames.request(
            apis.SHARE_ACKNOWLEDGE, VERSION, {**self._named, "share_session_epoch": -1, "topics": []}
        )
        self._client.ask(closing)
        for epoch in range(3):
            answer = self._client.ask(share_fetch(group, member_id, epoch, self._topic_id, wait_s=0.1))
            if count := acquired(answer):
                raise RuntimeError(f"{count} records were not accepted")


def measure() -> Iterator[Row]:
    with EmbeddedBroker(options=LONG_LOCKS) as broker:
        servers = broker.bootstrap_servers
        topic_id = fill(servers, TOPIC, RECORDS)
        fill(servers, PRODUCED, 0)
        with RawClient(servers) as client, apart(broker.pid):
            group = new_group(servers)
            initialize(client, group, topic_id)
            member = Member(client, group, topic_id)
            produce = frames.produce(PRODUCED, 0, frames.one_record_batch(VALUE_BYTES))
            produced_size = len(client.ask(produce))

            def acknowledge(send: Send) -> Burst:
                seconds = cpu_s = 0.0
                for _ in range(LOTS):
                    member.acquire()
                    requests = member.acknowledgements()
                    size = len(client.ask(requests[0]))
                    cpu = cpu_seconds(broker.pid)
                    seconds += send(client, requests[1:], LOT - 1, size)
                    cpu_s += cpu_seconds(broker.pid) - cpu
                count = LOTS * (LOT - 1)
                return Burst(count / seconds, cpu_s / count * 1e6)

            def produced(send: Send) -> Burst:
                cpu = cpu_seconds(broker.pid)
                seconds = send(client, [produce], REQUESTS, produced_size)
                return Burst(REQUESTS / seconds, (cpu_seconds(broker.pid) - cpu) / REQUESTS * 1e6)

            acknowledge(_pipelined)
            produced(_pipelined)
            results = {}
            for name, send in zip(NAMES, (_one_at_a_time, _pipelined), strict=True):
                turns = {ACKNOWLEDGE: partial(acknowledge, send), PRODUCE: partial(produced, send)}
                results[name] = take_turns(turns, str, ROUNDS)
            member.check_nothing_is_held()
    alone, together = NAMES
    what = "ShareAcknowledge requests of one record each, to one-record produce requests"
    yield _row(alone, f"{what}, one after the other on one connection", 0.4, results[alone])
    yield _row(together, f"{what}, {WINDOW} in flight on one connection", None, results[together])


def _row(name: str, what: str, bar: float | None, results: dict[str, list[Burst]]) -> Row:
    ours, reference = max(results[ACKNOWLEDGE]), max(results[PRODUCE])
    pairs = zip(results[ACKNOWLEDGE], results[PRODUCE], strict=True)
    return Row(
        name,
        what,
        bar,
        "at least",
        ours.rate / reference.rate,
        str(ours),
        str(reference),
        median=statistics.median(one.rate / other.rate for one, other in pairs),
        details={
            kind: {"rate": spread([r.rate for r in runs]), "cpu_us": spread([r.cpu_us for r in runs])}
            for kind, runs in results.items()
        },
    )


def _pipelined(client: RawClient, requests: Sequence[bytes], count: int, size: int) -> float:
    return client.pipelined(requests, count, size)


def _one_at_a_time(client: RawClient, requests: Sequence[bytes], count: int, size: int) -> float:
    return sum(client.one_at_a_time(requests, count, size)) / 1e6
