"""Compiled or not, compaction leaves the same bytes. That they are the right ones, the other tests say."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.records.compression import Codec
from skep.storage.log.log import Log
from tests.compacting import Writer, compact
from tests.kernel_variants import COMPACTION_KERNELS, compacting_with

HOUR_MS = 3_600_000
CONFIG = TopicConfig(
    cleanup_policy=("compact",), segment_bytes=2000, index_interval_bytes=100, delete_retention_ms=HOUR_MS
)
LONG_KEY = b"a key of more than eight bytes, and of more than a block of the hash"


@dataclass(frozen=True)
class Batch:
    pairs: list[tuple[bytes | None, bytes | None]]
    codec: Codec
    producer_id: int
    """Below zero: none. Its batches are in a transaction."""
    ends: bool | None
    """Whether its transaction is then committed or aborted; None: neither."""


keys = st.sampled_from([None, b"", b"a", b"b", b"c", LONG_KEY])
values = st.sampled_from([None, b"", b"value", b"v" * 100])
batches = st.builds(
    Batch,
    pairs=st.lists(st.tuples(keys, values), min_size=1, max_size=6),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD]),
    producer_id=st.sampled_from([-1, -1, 1, 2]),
    ends=st.sampled_from([None, True, False]),
)
generations = st.lists(st.lists(batches, min_size=1, max_size=8), min_size=1, max_size=3)


def seal(log: Log) -> None:
    log.producers.transactions.high_watermark_moved(log.log_end_offset)
    log.roll_if_due(log.segments[-1].created_ms + log.config.roll_ms + 1)
    log.flush()


def compacted(kit, generations: list[list[Batch]], variant: str) -> tuple[list[tuple[int, bytes]], list[object]]:
    """Writes and compacts in turn, the time of tombstones passing between; returns the segments and the results."""
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    results: list[object] = []
    now_ms = kit.now_ms
    cleaned_up_to = None
    for generation in [*generations, []]:
        for batch in generation:
            is_transactional = batch.producer_id >= 0
            writer.data(
                batch.pairs, now_ms, codec=batch.codec, producer_id=batch.producer_id, is_transactional=is_transactional
            )
            if is_transactional and batch.ends is not None:
                writer.marker(batch.producer_id, now_ms, committed=batch.ends)
        seal(writer.log)
        with compacting_with(variant):
            result = compact(files, writer.log, now_ms, cleaned_up_to=cleaned_up_to)
        if result is not None:
            cleaned_up_to = result.clean_up_to
        results.append(result)
        now_ms += 2 * HOUR_MS
    content = [(segment.base_offset, segment.file.read(0, segment.size)) for segment in writer.log.segments]
    return content, results


@settings(max_examples=60)
@given(generations=generations)
def test_the_same_bytes_are_left(kit, generations: list[list[Batch]]) -> None:
    compiled, as_python = (compacted(kit, generations, variant) for variant in COMPACTION_KERNELS)
    assert compiled == as_python
