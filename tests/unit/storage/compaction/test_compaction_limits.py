"""Passes of compaction that meet a limit: the map takes no more keys, or not everything fits into one segment."""

from dataclasses import replace
from itertools import pairwise

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.storage.compaction import cleaned_segments
from skep.storage.log.log import Log
from tests.compacting import Writer, compact, records_of

pytestmark = pytest.mark.usefixtures("each_variant")

CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=600, index_interval_bytes=100)


def seal(log: Log) -> None:
    """Begins a new segment and syncs, so that all before it can be compacted."""
    log.roll_if_due(log.segments[-1].created_ms + log.config.roll_ms + 1)
    log.flush()


def test_keys_that_do_not_fit_into_the_map_are_left_for_the_next_pass(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    for n in range(200):
        writer.data([(b"key-%d" % (n % 100), b"%d" % n)], kit.now_ms)
    seal(writer.log)
    done, passes = 0, 0
    while done < 200:
        result = compact(files, writer.log, kit.now_ms, cleaned_up_to=done, map_bytes=1)
        assert result is not None
        assert result.clean_up_to > done
        done, passes = result.clean_up_to, passes + 1
    assert passes > 2
    assert [record.offset for record in records_of(writer.log)] == list(range(100, 200))


def test_records_without_a_key_behind_a_full_map_stay_and_are_not_counted(kit) -> None:
    files = kit.files()
    writer = Writer(kit.log(CONFIG, files))
    for n in range(200):
        writer.data([(b"key-%d" % n, b"v"), (None, b"v")], kit.now_ms)
    seal(writer.log)
    result = compact(files, writer.log, kit.now_ms, map_bytes=1)
    assert result is not None
    assert 0 < result.clean_up_to < 400
    left = sum(record.key is None for record in records_of(writer.log))
    assert (left + result.keyless_records, left > 0) == (200, True)


def test_where_not_all_fits_into_one_segment_each_index_has_the_aborted_of_its_own(kit, monkeypatch) -> None:
    monkeypatch.setattr(cleaned_segments, "_LARGEST", 700)
    files = kit.files()
    config = replace(CONFIG, segment_bytes=100_000)
    writer = Writer(kit.log(config, files))
    for n in range(12):
        writer.data([(b"a", b"bad")], kit.now_ms, producer_id=n, is_transactional=True)
        writer.marker(n, kit.now_ms, committed=False)
    writer.log.producers.transactions.high_watermark_moved(writer.log.log_end_offset)
    seal(writer.log)
    log, end = writer.log, writer.log.log_end_offset
    before = log.aborted_transactions(0, end)
    compact(files, log, kit.now_ms)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    for segment, following in pairwise(log.segments):
        indexed = [aborted.last_offset for aborted in segment.transaction_index.transactions()]
        assert indexed == [n for n in range(1, 24, 2) if segment.base_offset <= n < following.base_offset]
    assert log.aborted_transactions(0, end) == before
    log.close()
    assert kit.log(config, files, recovery_point=end).aborted_transactions(0, end) == before, "recovery finds them good"
