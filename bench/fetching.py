"""Row fetch: pieces of 1 MiB out of the page cache over loopback, one after the other, as a consumer asks for them.

The reference serves the broker's own segment file with nothing but blocking sendfile: the least that moving the bytes
can cost. Both are asked by the same client with requests of the same size.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

from bench import frames
from bench.peers import apart, cpu_seconds, create_topic, reference_server
from bench.raw_client import RawClient
from bench.row import Row, spread, take_turns
from bench.sendfile_server import REGION
from skep.records.batch import HEADER_SIZE
from skep.records.builder import NewRecord, build_batch
from skep.testing import EmbeddedBroker

NAMES = ("fetch",)

TOPIC = "fetching"
PIECE_BYTES = 1 << 20
BATCH_BYTES = 1 << 16
PIECES = 256
ROUNDS_OVER_LOG = 4
BATCHES_PER_PIECE = PIECE_BYTES // BATCH_BYTES

SENDFILE = "sendfile"
SKEP = "skep"


class Transfer(NamedTuple):
    rate: float
    """Megabytes of records a second."""
    cpu_s_per_gb: float
    """Of the server."""

    def __str__(self) -> str:
        return f"{self.rate:,.0f} MB/s, {self.cpu_s_per_gb:.2f} s CPU per GB"


def measure() -> Iterator[Row]:
    with EmbeddedBroker() as broker:
        create_topic(broker.bootstrap_servers, TOPIC)
        with RawClient(broker.bootstrap_servers) as ours:
            _fill(ours)
            fetches = [frames.fetch(TOPIC, 0, piece * BATCHES_PER_PIECE, PIECE_BYTES) for piece in range(PIECES)]
            answer_size = _check(ours, fetches)
            segment = str(broker.data_dir / f"{TOPIC}-0" / "00000000000000000000.log")
            request_size = len(fetches[0])
            regions = [REGION.pack(piece * PIECE_BYTES, PIECE_BYTES).ljust(request_size) for piece in range(PIECES)]
            with (
                reference_server("bench.sendfile_server", segment, str(request_size)) as server,
                RawClient(server.address) as reference,
                apart(server.pid, broker.pid),
            ):
                turns = {
                    SENDFILE: lambda: transfer(reference, server.pid, regions, 4 + PIECE_BYTES),
                    SKEP: lambda: transfer(ours, broker.pid, fetches, answer_size),
                }
                results = take_turns(turns, str)
    best, reference_best = max(results[SKEP]), max(results[SENDFILE])
    yield Row(
        "fetch",
        "pieces of 1 MiB from the page cache over loopback, to a bare sendfile server",
        0.7,
        "at least",
        best.rate / reference_best.rate,
        str(best),
        str(reference_best),
        details={
            name: {"rate": spread([r.rate for r in runs]), "cpu_s_per_gb": spread([r.cpu_s_per_gb for r in runs], 2)}
            for name, runs in results.items()
        },
    )


def _fill(client: RawClient) -> None:
    """Batches of exactly BATCH_BYTES with one record each: a piece is a whole number of them, offsets count them."""
    overhead = len(_batch(BATCH_BYTES - HEADER_SIZE)) - BATCH_BYTES
    batch = _batch(BATCH_BYTES - HEADER_SIZE - overhead)
    assert len(batch) == BATCH_BYTES
    request = frames.produce(TOPIC, 0, batch)
    for expected in range(PIECES * BATCHES_PER_PIECE):
        offset = frames.produced_offset(client.ask(request))
        if offset != expected:
            raise RuntimeError(f"batch {expected} got offset {offset}")


def _batch(value_bytes: int) -> bytes:
    return build_batch([NewRecord(None, bytes(value_bytes), time.time_ns() // 1_000_000)])


def _check(client: RawClient, fetches: list[bytes]) -> int:
    """That each answer carries one piece, all of them of one size; the size. It also warms the page cache."""
    sizes = set()
    for request in fetches:
        answer = client.ask(request)
        if len(records := frames.fetched_records(answer)) != PIECE_BYTES:
            raise RuntimeError(f"a fetch of {PIECE_BYTES} bytes gave {len(records)}")
        sizes.add(len(answer))
    (size,) = sizes
    return size


def transfer(client: RawClient, pid: int, requests: list[bytes], answer_size: int) -> Transfer:
    count = ROUNDS_OVER_LOG * PIECES
    cpu = cpu_seconds(pid)
    seconds = sum(client.one_at_a_time(requests, count, answer_size)) / 1e6
    gigabytes = count * PIECE_BYTES / 1e9
    return Transfer(gigabytes * 1000 / seconds, (cpu_seconds(pid) - cpu) / gigabytes)
