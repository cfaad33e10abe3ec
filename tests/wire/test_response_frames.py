"""Responses are cut out of the stream whole, however the bytes come, and a long one lies where the socket put it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import DecodeError
from skep.wire.response_frames import LARGEST_SPARE, SCRATCH_SIZE, ResponseFrames


def stream_of(responses: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(response)) + response for response in responses)


def fed(frames: ResponseFrames, stream: bytes, sizes: list[int]) -> list[memoryview]:
    """The frames that come out when the socket gives at most that much each time; the last size is used on and on."""
    found, position, turn = [], 0, 0
    while position < len(stream):
        buffer = frames.get_buffer()
        assert len(buffer) > 0
        piece = stream[position : position + min(len(buffer), sizes[min(turn, len(sizes) - 1)])]
        buffer[: len(piece)] = piece
        found += frames.received(len(piece))
        position, turn = position + len(piece), turn + 1
    return found


@given(
    responses=st.lists(st.binary(min_size=4, max_size=40) | st.just(b"long" * SCRATCH_SIZE), max_size=6),
    sizes=st.lists(st.integers(1, 50) | st.just(SCRATCH_SIZE * 2), min_size=1, max_size=20),
)
def test_what_comes_out_is_what_was_sent(responses: list[bytes], sizes: list[int]) -> None:
    if sizes[-1] < 20:
        sizes = [*sizes, 5000]
    # Kept until the end: a frame must not change when later ones are received.
    assert [bytes(frame) for frame in fed(ResponseFrames(1 << 20), stream_of(responses), sizes)] == responses


def test_byte_by_byte() -> None:
    responses = [b"0001", b"0002 and more", b"0003"]
    assert fed(ResponseFrames(100), stream_of(responses), [1]) == responses


def test_the_rest_of_a_long_response_is_received_in_its_place() -> None:
    frames = ResponseFrames(1 << 20)
    stream = stream_of([b"x" * 500_000])
    assert fed(frames, stream[:1000], [1000]) == []
    assert len(frames.get_buffer()) == len(stream) - 1000
    place = frames.get_buffer().obj
    [frame] = fed(frames, stream[1000:], [len(stream)])
    assert frame.obj is place


@pytest.mark.parametrize("length", [-1, 0, 3, 101, struct.unpack(">i", b"HTTP")[0]])
def test_a_length_that_no_response_has_is_refused(length: int) -> None:
    with pytest.raises(DecodeError, match=f"a response of {length} bytes; the limit is 100"):
        fed(ResponseFrames(100), struct.pack(">i", length) + b"abcdef", [100])


def test_the_room_of_a_response_that_is_given_back_serves_for_the_next_long_one() -> None:
    frames = ResponseFrames(1 << 20)
    (first,) = fed(frames, stream_of([b"1" * 500_000]), [SCRATCH_SIZE])
    (kept,) = fed(frames, stream_of([b"2" * 500_000]), [SCRATCH_SIZE])
    frames.recycle(first)
    (second,) = fed(frames, stream_of([b"3" * 400_000]), [SCRATCH_SIZE])
    assert second.obj is first.obj
    assert bytes(second) == b"3" * 400_000
    (third,) = fed(frames, stream_of([b"4" * 400_000]), [SCRATCH_SIZE])
    assert third.obj is not second.obj
    assert bytes(kept) == b"2" * 500_000


def test_what_is_given_back_of_short_or_enormous_responses_is_not_kept() -> None:
    frames = ResponseFrames(LARGEST_SPARE + 100_000)
    (short,) = fed(frames, stream_of([b"1" * 100]), [SCRATCH_SIZE])
    (enormous,) = fed(frames, stream_of([b"2" * (LARGEST_SPARE + 1)]), [SCRATCH_SIZE])
    frames.recycle(short)
    frames.recycle(enormous)
    (next_one,) = fed(frames, stream_of([b"3" * 400_000]), [SCRATCH_SIZE])
    assert next_one.obj not in (short.obj, enormous.obj)
