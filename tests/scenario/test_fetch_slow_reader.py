"""Clients that ask and do not read: back-pressure keeps what they are owed out of the broker's memory."""

import contextlib
import select

import psutil

from skep.records.batch import is_intact
from skep.records.record import batches_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import MEBIBYTE, Want, batch_of, fetch_body
from tests.waiting import PATIENCE_S

QUIET_S = 0.5
ALLOWED_GROWTH = 24 * MEBIBYTE


def rss(broker: EmbeddedBroker) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)


def is_quiet(client: RawClient) -> bool:
    """Whether the broker has stopped taking what the client sends."""
    return not select.select([], [client.socket], [], QUIET_S)[1]


def test_large_responses_that_nobody_reads_stay_in_their_files(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    broker = skep_fresh_broker
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(RawClient(broker.bootstrap_servers))
        client.create_topic(topic, max_message_bytes=10 * MEBIBYTE)
        for _ in range(8):
            client.append(topic, batch_of(b"x" * (5 * MEBIBYTE)))
        before = rss(broker)
        slow = [stack.enter_context(RawClient(broker.bootstrap_servers)) for _ in range(10)]
        for reader in slow:
            for _ in range(20):
                reader.send_fetch(Want(topic, 0, max_bytes=50 * MEBIBYTE))
        for reader in slow:
            assert select.select([reader.socket], [], [], PATIENCE_S)[0]
        # Others are served, and the 8 GB that were asked for are nowhere.
        for _ in range(20):
            client.ask(apis.METADATA, 9, topics=[{"name": topic}])
        assert rss(broker) - before < ALLOWED_GROWTH
        # One that begins to read gets all of it.
        [[fetched]] = [found.partitions for found in slow[0].receive().responses]
        assert all(is_intact(batch) for _, batch in batches_in(fetched.records))
        assert len(fetched.records) > 40 * MEBIBYTE


def test_a_client_that_only_asks_is_no_longer_read(skep_fresh_broker: EmbeddedBroker, topic: str) -> None:
    """Responses of 30 kB to requests of 100 bytes: without back-pressure 20 MB of requests are 6 GB of responses."""
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as greedy:
        client.create_topic(topic)
        client.append(topic, batch_of(b"x" * 30_000))
        client.fetch(Want(topic, 0))
        before = rss(broker)
        frame = greedy.encode(apis.FETCH, 12, fetch_body([Want(topic, 0)], 12))
        requests = (len(frame).to_bytes(4, "big") + frame) * 1000
        greedy.socket.setblocking(False)
        taken = 0
        while not is_quiet(greedy) and taken < 20 * MEBIBYTE:
            with contextlib.suppress(BlockingIOError):
                # From where the last send ended, so that frames stay whole.
                taken += greedy.socket.send(requests[taken % len(requests) :])
        assert taken < 20 * MEBIBYTE, "the broker takes everything"
        assert rss(broker) - before < ALLOWED_GROWTH
        greedy.socket.settimeout(PATIENCE_S)
        answered = [greedy.receive_frame() for _ in range(1000)]
        assert len(set(answered)) == 1
        assert client.ask(apis.METADATA, 9, topics=[{"name": topic}]).topics[0].name == topic
