"""Requests that are long, or come in long rows: Metadata, Fetch and Produce over very many partitions."""

from collections.abc import Callable
from datetime import timedelta

from bench.raw_client import RawClient
from bench.stalls.stall import Stall, asking, request
from skep.records.builder import NewRecord, build_batch
from skep.testing import EmbeddedBroker
from skep.wire import apis
from skep.wire.client_codec import decode_response

TOPIC = "eggs"
PARTITIONS = 10_000
METADATA_REQUESTS = 200
FETCHES = 100
REFUSED = 190_000
BATCHES = 199_000
LARGE_BATCHES = 95
LARGE_BATCH_BYTES = 950_000


def create(partitions: int) -> Callable[[EmbeddedBroker], None]:
    def prepare(broker: EmbeddedBroker) -> None:
        topic = {"name": TOPIC, "num_partitions": partitions, "replication_factor": 1}
        with RawClient(broker.bootstrap_servers) as client:
            body = {"topics": [topic], "timeout": timedelta(minutes=1)}
            client.ask(request(apis.CREATE_TOPICS, 5, body))

    return prepare


def _fetch(session_id: int, epoch: int, partitions: int) -> bytes:
    wanted = [{"partition": i, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for i in range(partitions)]
    body = {
        "max_bytes": 1 << 20,
        "min_bytes": 0,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [{"topic": TOPIC, "partitions": wanted}] if wanted else [],
    }
    return request(apis.FETCH, 12, body)


def _fetch_incrementally(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        response = client.ask(_fetch(0, 0, PARTITIONS))
        _, decoded = decode_response(apis.FETCH, 12, response[4:])
        frames = [_fetch(decoded.session_id, epoch, 0) for epoch in range(1, FETCHES + 1)]
        client.send(b"".join(frames))
        for _ in frames:
            client.receive()


def _produce(count: int, batch: bytes) -> bytes:
    partitions = [{"index": i % PARTITIONS, "records": batch} for i in range(count)]
    body = {"acks": 1, "timeout": timedelta(minutes=1), "topic_data": [{"name": TOPIC, "partition_data": partitions}]}
    return request(apis.PRODUCE, 9, body)


def _delete_topics() -> bytes:
    body = {"topic_names": [f"t{number}" for number in range(REFUSED)], "timeout": timedelta(minutes=1)}
    return request(apis.DELETE_TOPICS, 5, body)


def _elect_leaders() -> bytes:
    wanted = [{"topic": TOPIC, "partitions": list(range(1, REFUSED))}]
    body = {"election_type": 0, "topic_partitions": wanted, "timeout": timedelta(minutes=1)}
    return request(apis.ELECT_LEADERS, 2, body)


def _alter_configs() -> bytes:
    configs = [{"name": f"o{number}", "config_operation": 0, "value": "1"} for number in range(REFUSED)]
    resource = {"resource_type": 2, "resource_name": TOPIC, "configs": configs}
    return request(apis.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})


def _small_batch() -> bytes:
    return build_batch([NewRecord(b"k", b"v", 1_700_000_000_000)])


def _large_batch() -> bytes:
    return build_batch([NewRecord(None, bytes(LARGE_BATCH_BYTES), 1_700_000_000_000)])


def _auto_create(broker: EmbeddedBroker) -> None:
    asking(request(apis.METADATA, 9, {"topics": [{"name": f"topic-{i}"} for i in range(5_000)]}))(broker)


STALLS = (
    Stall(
        "metadata-pipelined",
        f"Metadata x {METADATA_REQUESTS} with {PARTITIONS:,} partitions",
        asking(*[request(apis.METADATA, 9, {"topics": None})] * METADATA_REQUESTS),
        create(PARTITIONS),
    ),
    Stall(
        "fetch-first", f"first Fetch of {PARTITIONS:,} partitions", asking(_fetch(0, 0, PARTITIONS)), create(PARTITIONS)
    ),
    Stall(
        "fetch-incremental",
        f"incremental Fetch x {FETCHES} of {PARTITIONS:,} partitions",
        _fetch_incrementally,
        create(PARTITIONS),
    ),
    Stall(
        "produce-batches",
        f"{BATCHES:,} batches of one record in one Produce request",
        lambda broker: asking(_produce(BATCHES, _small_batch()))(broker),
        create(PARTITIONS),
    ),
    Stall(
        "produce-bytes",
        "a Produce request of 90 MB",
        lambda broker: asking(_produce(LARGE_BATCHES, _large_batch()))(broker),
        create(LARGE_BATCHES),
    ),
    Stall("delete-topics-unknown", f"DeleteTopics of {REFUSED:,} topics that do not exist", asking(_delete_topics())),
    Stall(
        "elect-leaders-unknown",
        f"ElectLeaders of {REFUSED:,} partitions that do not exist",
        asking(_elect_leaders()),
        create(1),
    ),
    Stall(
        "alter-configs-unknown",
        f"IncrementalAlterConfigs of {REFUSED:,} options that do not exist",
        asking(_alter_configs()),
        create(1),
    ),
    Stall("auto-create", "one Metadata request for 5,000 topics that do not exist", _auto_create),
)
