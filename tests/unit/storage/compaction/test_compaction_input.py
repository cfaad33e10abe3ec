"""Whatever a compacted topic takes from a producer, compaction can read: the check and the kernels agree."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import KafkaError
from skep.base.ids import LeaderEpoch
from skep.records.batch import CODEC_MASK, HEADER_SIZE, LENGTH_END, check_produced, crc_of, read_header, write_header
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec, compress
from skep.records.keys import check_keys
from tests.compacting import compact

pytestmark = pytest.mark.usefixtures("each_variant")

CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=100_000, index_interval_bytes=100)


@dataclass(frozen=True)
class RawRecord:
    """The fields as they are written, true or not."""

    key: bytes
    value: bytes | None
    tail: bytes
    """Where the number of headers and the headers should be."""
    timestamp_delta: int = 0
    wrong_delta: int = 0
    wrong_key_length: int = 0
    wrong_value_length: int = 0
    wrong_length: int = 0
    padding: int = 0
    """Bytes by which each varint is longer than it need be."""

    def encode(self, index: int) -> bytes:
        def number(n: int) -> bytes:
            return varint(n, self.padding)

        value_length = -1 if self.value is None else len(self.value)
        body = b"\0" + number(self.timestamp_delta) + number(index + self.wrong_delta)
        body += number(len(self.key) + self.wrong_key_length) + self.key
        body += number(value_length + self.wrong_value_length) + (self.value or b"") + self.tail
        return number(len(body) + self.wrong_length) + body


def varint(number: int, padding: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    data = bytearray()
    while zigzag >= 0x80:
        data.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    data.append(zigzag)
    for _ in range(padding):
        data[-1] |= 0x80
        data.append(0)
    return bytes(data)


raw_records = st.builds(
    RawRecord,
    key=st.sampled_from([b"", b"key"]),
    value=st.sampled_from([None, b"", b"value"]),
    tail=st.sampled_from([b"\0", b"", b"\2"]),
)
wrong = st.sampled_from([-7, -2, -1, 1, 2, 100])
oddities = st.one_of(
    st.fixed_dictionaries({"timestamp_delta": st.integers(-(1 << 63), (1 << 63) - 1)}),
    st.fixed_dictionaries({"wrong_delta": wrong}),
    st.fixed_dictionaries({"wrong_key_length": wrong}),
    st.fixed_dictionaries({"wrong_value_length": wrong}),
    st.fixed_dictionaries({"wrong_length": wrong}),
    st.fixed_dictionaries({"padding": st.integers(1, 10)}),
)
"""Of one record in a batch: with more, hardly a batch would be accepted."""


def raw_batch(records: list[RawRecord], codec: int) -> bytes:
    """A batch whose header is in order, whatever the records are."""
    packed = compress(codec, b"".join(record.encode(index) for index, record in enumerate(records)))
    header = read_header(build_batch([NewRecord(b"k", b"v", 1000)] * len(records)))
    header = header._replace(
        batch_length=HEADER_SIZE - LENGTH_END + len(packed), attributes=header.attributes & ~CODEC_MASK | codec
    )
    crc = crc_of(write_header(header) + packed)
    return write_header(header._replace(crc=crc)) + packed


@settings(max_examples=300)
@given(
    records=st.lists(raw_records, min_size=1, max_size=3),
    oddity=st.booleans().flatmap(lambda is_odd: oddities if is_odd else st.just({})),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
)
@example(records=[RawRecord(b"", None, b"")], oddity={}, codec=Codec.LZ4)
@example(records=[RawRecord(b"", b"", b""), RawRecord(b"key", b"value", b"\0")], oddity={}, codec=Codec.NONE)
def test_what_is_accepted_can_be_compacted(kit, records: list[RawRecord], oddity: dict, codec: Codec) -> None:
    records[-1] = replace(records[-1], **oddity)
    batch = raw_batch(records, codec)
    try:
        header = check_produced(batch, max_message_bytes=100_000)
        check_keys(batch, header, max_records=100)
    except KafkaError as error:
        event(f"refused: {error.code.name}")
        return
    event("accepted")
    files = kit.files()
    log = kit.log(CONFIG, files)
    log.append(batch, header, LeaderEpoch(0), kit.now_ms)
    log.roll_if_due(kit.now_ms + CONFIG.roll_ms + 1)
    log.flush()
    result = compact(files, log, kit.now_ms)
    assert result is not None
    assert result.records_before == len(records)
    assert result.keyless_records == 0
