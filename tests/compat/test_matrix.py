"""Each client reads what each other client wrote, under every codec."""

import pytest

from skep.records.compression import Codec
from skep.records.record import batches_in
from skep.testing import EmbeddedBroker
from tests.compat.clients import CODECS, MESSAGES, READERS, WRITERS
from tests.raw_client import RawClient
from tests.raw_requests import Want


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_client_reads_what_this_one_wrote(
    skep_broker: EmbeddedBroker, topic: str, writer: str, codec: str
) -> None:
    servers = skep_broker.bootstrap_servers
    WRITERS[writer](servers, topic, MESSAGES, codec)
    for reader, read in READERS.items():
        assert read(servers, topic, len(MESSAGES)) == MESSAGES, f"as read by {reader}"
    # A client that thinks little of a broker falls back to no compression without a word: librdkafka does with lz4
    # when a broker has no FindCoordinator.
    with RawClient(servers) as client:
        stored = client.fetch_one(Want(topic, 0)).records
    assert Codec[codec.upper()] in {header.codec for header, _ in batches_in(stored)}
