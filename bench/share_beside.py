"""Rows share-beside-produce and share-beside-consume: what plain clients notice of share groups in the same broker.

A hundred share groups have read another topic, hold records of it and wait for more, each over a connection of its own.
Meanwhile a topic that they do not read is written and read as in the rows produce and consume. The reference is the
same broker without them: their sessions are closed, and nothing of them is in memory.
"""

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

from bench import bulk
from bench.peers import create_topic, delete_topic
from bench.raw_client import RawClient
from bench.row import Row, spread, take_turns
from bench.share_topics import AT_ONCE, LOCK_MS, LONG_LOCKS, acquired, fill, initialize, share_fetch
from skep.testing import EmbeddedBroker

NAMES = ("share-beside-produce", "share-beside-consume")

GROUPS = 100
ROUNDS = 7
TOPIC = "beside"
WITHOUT, WITH = "without share groups", f"beside {GROUPS} share groups"


def measure() -> Iterator[Row]:
    names = (f"plain-{number}" for number in itertools.count())
    with EmbeddedBroker(options=LONG_LOCKS) as broker:
        servers = broker.bootstrap_servers
        bulk.warm_up(servers)
        topic_id = fill(servers, TOPIC, AT_ONCE)

        def both() -> tuple[bulk.Run, bulk.Run]:
            topic = next(names)
            create_topic(servers, topic)
            where = {"bootstrap.servers": servers}
            runs = bulk.produce_all(where, topic), bulk.consume_all(where, topic)
            delete_topic(servers, topic)
            return runs

        def beside() -> tuple[bulk.Run, bulk.Run]:
            with _groups(servers, topic_id):
                return both()

        turns: dict[str, Callable[[], tuple[bulk.Run, bulk.Run]]] = {WITHOUT: both, WITH: beside}
        results = take_turns(turns, lambda runs: ", ".join(f"{run.rate:,.0f} records/s" for run in runs), ROUNDS)
    for number, (name, what) in enumerate(zip(NAMES, ("1 M records produced", "and consumed"), strict=True)):
        rates = {kind: [runs[number].rate for runs in both] for kind, both in results.items()}
        ratios = [one / other for one, other in zip(rates[WITH], rates[WITHOUT], strict=True)]
        yield Row(
            name,
            f"{what} beside {GROUPS} share groups with records in flight, to the same without them",
            0.97,
            "at least",
            max(rates[WITH]) / max(rates[WITHOUT]),
            f"{max(rates[WITH]):,.0f} records/s",
            f"{max(rates[WITHOUT]):,.0f} records/s",
            median=statistics.median(ratios),
            details={kind: spread(values) for kind, values in rates.items()},
        )


@contextlib.contextmanager
def _groups(servers: str, topic_id: UUID) -> Iterator[None]:
    """A member of each of so many new groups, which holds all records of the topic and waits for more."""
    with contextlib.ExitStack() as clients:
        for _ in range(GROUPS):
            client = clients.enter_context(RawClient(servers))
            group, member_id = f"beside-{uuid4()}", str(uuid4())
            initialize(client, group, topic_id)
            count, epoch = 0, 0
            while count < AT_ONCE:
                count += acquired(client.ask(share_fetch(group, member_id, epoch, topic_id)))
                epoch += 1
            client.send(share_fetch(group, member_id, epoch, topic_id, wait_s=LOCK_MS / 1000))
        yield
