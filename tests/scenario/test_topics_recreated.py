"""A topic deleted and made again: both have the same directory names, and nothing of the first may touch the second."""

import contextlib
import select
from pathlib import Path

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import MEBIBYTE, Want, batch_of, seconds
from tests.waiting import PATIENCE_S, wait_until

BATCH = batch_of(b"x" * 100)


def append_when_there(client: RawClient, topic: str, batch: bytes) -> None:
    """A topic made again may not be there at once, which clients retry."""
    wait_until(lambda: client.produce(topic, batch).error_code is ErrorCode.none, "the topic takes records")


def make_with_segments(client: RawClient, topic: str) -> None:
    """Segments 0, 2, 4, 6 and 8, with indexes."""
    client.create_topic(topic, segment_bytes=2 * len(BATCH), index_interval_bytes=1, file_delete_delay_ms=300)
    for _ in range(9):
        append_when_there(client, topic, BATCH)


def delete_first_segments(client: RawClient, topic: str) -> None:
    partitions = [{"partition_index": 0, "offset": 5}]
    client.ask(apis.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": partitions}], timeout=seconds(30))


def segment_files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex")}


def test_segments_that_were_to_be_removed_do_not_take_the_successors_with_them(
    skep_broker: EmbeddedBroker, client: RawClient, topic: str
) -> None:
    make_with_segments(client, topic)
    delete_first_segments(client, topic)
    client.delete_topic(topic)
    make_with_segments(client, topic)
    directory = skep_broker.data_dir / f"{topic}-0"
    before = segment_files(directory)
    assert {"00000000000000000000.index", "00000000000000000002.index"} <= before
    # Another topic's removal with the same delay, begun later, is the clock: when it is done, the first one is due.
    make_with_segments(client, f"{topic}-clock")
    delete_first_segments(client, f"{topic}-clock")
    clock = skep_broker.data_dir / f"{topic}-clock-0"
    wait_until(lambda: min(path.name for path in clock.iterdir()) >= f"{4:020}", "the later removal is done")
    assert segment_files(directory) == before


def test_a_response_under_way_never_mixes_a_deleted_topic_with_its_successor(
    skep_fresh_broker: EmbeddedBroker, topic: str
) -> None:
    """What a slow reader still gets is of the old topic, or nothing."""
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as slow:
        for value in (b"old", b"new"):
            client.create_topic(topic, max_message_bytes=10 * MEBIBYTE)
            for _ in range(8):
                append_when_there(client, topic, batch_of(value * MEBIBYTE))
            if value == b"old":
                slow.send_fetch(Want(topic, 0, max_bytes=50 * MEBIBYTE))
                assert select.select([slow.socket], [], [], PATIENCE_S)[0]
                client.delete_topic(topic)
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while len(received) < 8 * 3 * MEBIBYTE and (piece := slow.socket.recv(MEBIBYTE)):
                received += piece
        assert b"old" in received
        assert b"new" not in received
