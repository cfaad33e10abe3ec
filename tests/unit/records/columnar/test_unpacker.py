"""The buffer for unpacked records: whatever room it has, it holds all of them in order, or says what is wrong."""

import numpy as np
import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.records.columnar.unpacker import Unpacker
from skep.records.compression import Codec, compress

BODY = b"".join(b"record %d " % n for n in range(40))


@pytest.mark.parametrize("codec", Codec)
def test_records_are_whole_whatever_room_there_is(codec: Codec) -> None:
    packed = compress(codec, BODY)
    for room in range(2 * len(BODY) + 2):
        unpacker = Unpacker(room)
        unpacker.add(codec, packed)
        unpacker.add(codec, packed)
        assert unpacker.content().tobytes() == BODY * 2


def test_batches_of_different_codecs_lie_one_behind_the_other_and_are_gone_when_cleared() -> None:
    unpacker = Unpacker(10)
    for codec in Codec:
        unpacker.add(codec, compress(codec, BODY + codec.label.encode()))
    assert unpacker.content().tobytes() == b"".join(BODY + codec.label.encode() for codec in Codec)
    unpacker.clear()
    unpacker.add(Codec.ZSTD, compress(Codec.ZSTD, b"next"))
    assert unpacker.content().tobytes() == b"next"


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@pytest.mark.parametrize("room", [0, 10_000])
def test_damage_is_refused_and_what_is_there_stays(codec: Codec, room: int) -> None:
    unpacker = Unpacker(room)
    unpacker.add(Codec.NONE, BODY)
    with pytest.raises(KafkaError, match=f"the {codec.label} data is damaged") as refused:
        unpacker.add(codec, compress(codec, BODY)[:-5])
    assert refused.value.code is ErrorCode.corrupt_message
    assert unpacker.content().tobytes() == BODY


def test_a_codec_that_there_is_not_is_refused() -> None:
    with pytest.raises(KafkaError, match="there is no compression codec 7"):
        Unpacker(10).add(7, BODY)


def test_what_is_given_cannot_be_written_to() -> None:
    unpacker = Unpacker(10)
    unpacker.add(Codec.NONE, b"abc")
    with pytest.raises(ValueError, match="read-only"):
        unpacker.content()[0] = np.uint8(1)
