"""Row offset-commit: OffsetCommit requests with one offset, beside produce requests with one record of 100 bytes.

Both are pipelined by the same client on one connection to the same broker, in turns. A commit is an append to
``__consumer_offsets`` and what the coordinator does around it.
"""

from collections.abc import Iterator

from bench import frames
from bench.peers import apart, cpu_seconds, create_topic
from bench.raw_client import WINDOW, RawClient
from bench.row import ROUNDS, Row, spread, take_turns
from bench.single import VALUE_BYTES, WARM_UP, Burst
from skep.testing import EmbeddedBroker
from skep.wire import apis

NAMES = ("offset-commit",)

REQUESTS = 50_000
TOPIC = "offsets"
GROUP = "bench"
COMMIT_VERSION = 9
COORDINATOR_VERSION = 3
FETCH_VERSION = 7

COMMIT = "offset-commit"
PRODUCE = "produce"


def measure() -> Iterator[Row]:
    commit = _commit(REQUESTS)
    produce = frames.produce(TOPIC, 0, frames.one_record_batch(VALUE_BYTES))
    with EmbeddedBroker() as broker:
        create_topic(broker.bootstrap_servers, TOPIC)
        with RawClient(broker.bootstrap_servers) as client, apart(broker.pid):
            client.ask(frames.request(apis.FIND_COORDINATOR, COORDINATOR_VERSION, {"key": GROUP}))
            sizes = {COMMIT: len(client.ask(commit)), PRODUCE: len(client.ask(produce))}
            requests = {COMMIT: commit, PRODUCE: produce}
            for name, request in requests.items():
                client.pipelined([request], WARM_UP, sizes[name])

            def burst(name: str) -> Burst:
                cpu = cpu_seconds(broker.pid)
                seconds = client.pipelined([requests[name]], REQUESTS, sizes[name])
                return Burst(REQUESTS / seconds, (cpu_seconds(broker.pid) - cpu) / REQUESTS * 1e6)

            results = take_turns({COMMIT: lambda: burst(COMMIT), PRODUCE: lambda: burst(PRODUCE)}, str)
            _check(client, produce)
    commits, produces = max(results[COMMIT]), max(results[PRODUCE])
    yield Row(
        "offset-commit",
        f"OffsetCommit requests of one offset, {WINDOW} in flight on one connection, to one-record produce requests",
        0.6,
        "at least",
        commits.rate / produces.rate,
        str(commits),
        str(produces),
        details={
            name: {"rate": spread([r.rate for r in runs]), "cpu_us": spread([r.cpu_us for r in runs])}
            for name, runs in results.items()
        },
    )


def _commit(offset: int) -> bytes:
    wanted = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    body = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": TOPIC, "partitions": [wanted]}],
    }
    return frames.request(apis.OFFSET_COMMIT, COMMIT_VERSION, body)


def _check(client: RawClient, produce: bytes) -> None:
    """The client only counted bytes: what is committed, and the next offset, say whether requests were carried out."""
    asked = {"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    answer = client.ask(frames.request(apis.OFFSET_FETCH, FETCH_VERSION, asked))
    (topic,) = frames.body(apis.OFFSET_FETCH, FETCH_VERSION, answer).topics
    if topic.partitions[0].committed_offset != REQUESTS:
        raise RuntimeError(f"the offset that was committed is {topic.partitions[0]}")
    expected = 1 + WARM_UP + ROUNDS * REQUESTS
    if (offset := frames.produced_offset(client.ask(produce))) != expected:
        raise RuntimeError(f"{expected} requests were answered, but the next offset is {offset}")
