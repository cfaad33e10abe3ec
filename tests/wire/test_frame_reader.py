"""Frames out of bytes, however the bytes come; what an unfinished frame holds, and that it is given back."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.errors import DecodeError
from skep.wire import frame_reader
from skep.wire.frame_reader import (
    BUFFERS_KEPT,
    FIRST_GROWTH,
    SCRATCH_SIZE,
    FrameReader,
    LargeBuffers,
    ReceiveBudget,
)

SCRATCH = 64
MAX_BYTES = 10 * FIRST_GROWTH
FIRST_PIECE = 60
"""So much of a large frame is received at first in the tests below; it is still in the scratch buffer then."""


def a_reader(
    budget: ReceiveBudget | None = None, scratch: memoryview | None = None, buffers: LargeBuffers | None = None
) -> FrameReader:
    if scratch is None:
        scratch = memoryview(bytearray(SCRATCH))
    return FrameReader(scratch, MAX_BYTES, budget or ReceiveBudget(1 << 40), buffers or LargeBuffers())


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def not_called() -> None:
    raise AssertionError("there was room")


def receive(reader: FrameReader, data: bytes, on_room=not_called) -> list[bytes]:
    """Gives ``data`` to the reader as a connection would, and takes all frames there are; stops when it is refused."""
    frames = []
    while data:
        buffer = reader.get_buffer()
        assert len(buffer), "a transport takes an empty buffer for an error"
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        data = data[size:]
        reader.received(size)
        frames += take_all(reader)
        if not reader.keep_rest(on_room):
            assert on_room is not not_called
            break
    return frames


def take_all(reader: FrameReader) -> list[bytes]:
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(bytes(frame))
    return frames


frame_bodies = st.lists(st.binary(min_size=1, max_size=3 * SCRATCH), max_size=12)


@given(frame_bodies, st.data())
def test_frames_come_out_whole_and_in_order_whatever_the_pieces(bodies, data):
    reader = a_reader()
    stream = framed(*bodies)
    received: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += receive(reader, stream[:size])
        stream = stream[size:]
    assert received == bodies


@given(frame_bodies)
def test_one_byte_at_a_time(bodies):
    reader = a_reader()
    received = [frame for byte in framed(*bodies) for frame in receive(reader, bytes([byte]))]
    assert received == bodies


@given(st.lists(frame_bodies, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_connections_that_share_the_scratch_buffer_do_not_see_each_others_bytes(all_bodies, random):
    scratch, buffers = memoryview(bytearray(SCRATCH)), LargeBuffers()
    readers = [a_reader(scratch=scratch, buffers=buffers) for _ in all_bodies]
    streams = [framed(*bodies) for bodies in all_bodies]
    received: list[list[bytes]] = [[] for _ in all_bodies]
    while any(streams):
        which = random.choice([n for n, stream in enumerate(streams) if stream])
        size = random.randint(1, SCRATCH)
        received[which] += receive(readers[which], streams[which][:size])
        streams[which] = streams[which][size:]
    assert received == all_bodies


def test_several_frames_of_one_read_need_no_copy():
    reader = a_reader()
    data = framed(b"one", b"two", b"three")
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    frames = [reader.next_frame() for _ in range(3)]
    assert [bytes(frame) for frame in frames if frame is not None] == [b"one", b"two", b"three"]
    assert all(frame is not None and frame.obj is frames[0].obj for frame in frames)
    assert reader.next_frame() is None


def test_a_frame_larger_than_the_first_growth_comes_out_whole():
    body = bytes(range(256)) * (3 * FIRST_GROWTH // 256) + b"the end"
    budget = ReceiveBudget(1 << 40)
    reader = a_reader(budget)
    assert receive(reader, framed(body, b"next")) == [body, b"next"]
    assert budget.held == 0


def test_a_large_frame_is_not_copied_as_it_grows():
    budget = ReceiveBudget(1 << 40)
    reader = a_reader(budget)
    stream = framed(bytes(8 * FIRST_GROWTH))
    receive(reader, stream[: FIRST_GROWTH + 1])
    whole = reader._own.obj
    held = [budget.held]
    for number in range(1, 8):
        receive(reader, stream[number * FIRST_GROWTH + 1 : (number + 1) * FIRST_GROWTH + 1])
        assert reader._own.obj is whole
        held.append(budget.held)
    # What has not arrived does not count, for the kernel gives memory to what is written.
    assert [size // FIRST_GROWTH for size in held] == [2, 4, 4, 8, 8, 8, 8, 8]
    assert receive(reader, stream[8 * FIRST_GROWTH + 1 :]) == [bytes(8 * FIRST_GROWTH)]
    assert budget.held == 0


def test_no_call_receives_more_than_a_mebibyte():
    reader = a_reader()
    stream = framed(bytes(8 * FIRST_GROWTH))
    receive(reader, stream[: 4 * FIRST_GROWTH + 1])
    assert len(reader.get_buffer()) == FIRST_GROWTH


@pytest.mark.parametrize("length", [0, -1, -(2**31), MAX_BYTES + 1, 2**31 - 1])
def test_an_impossible_length_is_refused_before_anything_is_kept(length):
    budget = ReceiveBudget(1 << 40)
    reader = a_reader(budget)
    with pytest.raises(DecodeError, match=str(length)):
        receive(reader, struct.pack(">i", length) + b"x")
    assert budget.held == 0


def test_an_impossible_length_behind_a_good_frame_does_not_take_that_frame_away():
    reader = a_reader()
    data = framed(b"good") + struct.pack(">i", -5)
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    assert bytes(reader.next_frame() or b"") == b"good"
    with pytest.raises(DecodeError):
        reader.next_frame()


def test_a_frame_that_announces_much_costs_no_more_than_the_first_growth_until_more_has_come():
    budget = ReceiveBudget(1 << 40)
    reader = a_reader(budget)
    receive(reader, struct.pack(">i", MAX_BYTES) + bytes(FIRST_PIECE))
    assert budget.held == FIRST_GROWTH
    receive(reader, bytes(FIRST_GROWTH))
    assert budget.held == 2 * FIRST_GROWTH


def test_closing_gives_back_what_an_unfinished_frame_holds():
    budget = ReceiveBudget(1 << 40)
    reader = a_reader(budget)
    receive(reader, struct.pack(">i", MAX_BYTES) + bytes(3 * FIRST_GROWTH))
    assert budget.held == 4 * FIRST_GROWTH
    reader.close()
    assert budget.held == 0
    reader.close()
    assert budget.held == 0


def test_a_reader_that_is_refused_goes_on_when_another_gives_back():
    budget = ReceiveBudget(2 * FIRST_GROWTH)
    within, beyond, refused = (a_reader(budget) for _ in range(3))
    body = b"x" * (2 * FIRST_GROWTH)
    receive(within, framed(body)[:FIRST_PIECE])
    receive(beyond, framed(body)[: FIRST_GROWTH + 1])
    woken: list[bool] = []
    assert receive(refused, framed(body)[:FIRST_PIECE], lambda: woken.append(True)) == []
    assert woken == []
    assert budget.held == 3 * FIRST_GROWTH

    assert receive(beyond, framed(body)[FIRST_GROWTH + 1 :]) == [body]
    assert woken == [True]
    refused.replay_rest()
    assert take_all(refused) == []
    assert refused.keep_rest(not_called)
    assert receive(refused, framed(body)[FIRST_PIECE:]) == [body]
    within.close()
    assert budget.held == 0


def test_a_request_larger_than_the_whole_budget_still_finishes():
    budget = ReceiveBudget(FIRST_GROWTH)
    body = b"x" * (5 * FIRST_GROWTH)
    assert receive(a_reader(budget), framed(body)) == [body]
    assert budget.held == 0


@given(st.lists(st.integers(SCRATCH + 1, 40 * SCRATCH), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_requests_that_together_exceed_the_budget_all_finish_and_hold_little_more_than_it(sizes, random):
    """Each reads on when it is woken, as connections do; no two may wait for each other for ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_reader, "FIRST_GROWTH", 2 * SCRATCH)
        budget = ReceiveBudget(8 * SCRATCH)
        readers = [a_reader(budget) for _ in sizes]
        left = [framed(bytes([n]) * size) for n, size in enumerate(sizes)]
        done: list[bytes] = []
        stopped: set[int] = set()

        def go_on(n: int) -> None:
            readers[n].replay_rest()
            done.extend(take_all(readers[n]))
            if readers[n].keep_rest(lambda: go_on(n)):
                stopped.discard(n)

        while any(left):
            able = [n for n, stream in enumerate(left) if stream and n not in stopped]
            assert able, "all wait for each other"
            n = random.choice(able)
            buffer = readers[n].get_buffer()
            size = min(len(buffer), len(left[n]), random.randint(1, SCRATCH))
            buffer[:size], left[n] = left[n][:size], left[n][size:]
            readers[n].received(size)
            done.extend(take_all(readers[n]))
            if not readers[n].keep_rest(lambda n=n: go_on(n)):
                stopped.add(n)
            assert budget.held <= budget.limit + max(sizes) + 4
    assert sorted(done) == sorted(bytes([n]) * size for n, size in enumerate(sizes))
    assert budget.held == 0


def given_bytes(reader: FrameReader, data: bytes) -> memoryview | None:
    """Gives ``data``, all of it at once, to the reader; the frame that is whole by that, as a view."""
    buffer = reader.get_buffer()
    buffer[: len(data)] = data
    reader.received(len(data))
    return reader.next_frame()


def large_frame(reader: FrameReader, body: bytes) -> memoryview:
    stream = framed(body)
    receive(reader, stream[:FIRST_PIECE])
    frame = given_bytes(reader, stream[FIRST_PIECE:])
    assert frame is not None
    return frame


def test_the_buffer_of_a_large_frame_is_used_for_the_next_one_of_any_connection():
    buffers = LargeBuffers()
    one, other = a_reader(buffers=buffers), a_reader(buffers=buffers)
    first = large_frame(one, b"1" * 500)
    assert bytes(first) == b"1" * 500
    second = large_frame(other, b"2" * 900)
    assert bytes(second) == b"2" * 900
    assert first.obj is second.obj


def test_a_frame_is_whole_until_it_is_read_although_its_end_wakes_readers_that_wait_for_room():
    buffers, budget = LargeBuffers(), ReceiveBudget(2 * SCRATCH)
    finishing, waiting = (a_reader(budget, buffers=buffers) for _ in range(2))
    stream = framed(b"1" * 3 * SCRATCH)
    receive(finishing, stream[:FIRST_PIECE])

    def woken() -> None:
        waiting.replay_rest()
        assert waiting.next_frame() is None
        assert waiting.keep_rest(not_called)

    assert receive(waiting, framed(b"2" * 3 * SCRATCH)[:FIRST_PIECE], woken) == []
    frame = given_bytes(finishing, stream[FIRST_PIECE:])
    assert waiting.large_bytes is not None
    assert frame is not None
    assert bytes(frame) == b"1" * 3 * SCRATCH


def test_no_more_buffers_are_kept_than_the_limit_says():
    buffers = LargeBuffers()
    readers = [a_reader(buffers=buffers) for _ in range(BUFFERS_KEPT + 3)]
    for reader in readers:
        receive(reader, framed(bytes(FIRST_GROWTH - 4))[:FIRST_PIECE])
    for reader in readers:
        reader.close()
    kept = {id(buffers.take(FIRST_GROWTH).obj) for _ in range(BUFFERS_KEPT)}
    assert len(kept) == BUFFERS_KEPT
    assert len(buffers.take(FIRST_GROWTH).obj) == FIRST_GROWTH
    assert buffers._free == []


def test_frames_that_were_not_taken_are_there_when_the_connection_takes_requests_again():
    reader = a_reader()
    data = framed(b"one", b"two", b"three")[:-2]
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    assert bytes(reader.next_frame() or b"") == b"one"
    assert reader.keep_rest(not_called)
    reader.replay_rest()
    assert take_all(reader) == [b"two"]
    assert reader.keep_rest(not_called)
    assert receive(reader, b"ee") == [b"three"]


def test_a_large_frame_that_is_not_taken_yet_is_not_copied_again_and_again():
    reader = a_reader()
    body = b"x" * (4 * SCRATCH)
    stream = framed(body)
    while stream:
        buffer = reader.get_buffer()
        size = min(len(buffer), len(stream))
        buffer[:size], stream = stream[:size], stream[size:]
        reader.received(size)
        assert reader.keep_rest(not_called)
    before = reader._own
    assert reader.keep_rest(not_called)
    assert reader._own is before
    assert take_all(reader) == [body]


def test_a_client_that_has_authenticated_no_longer_counts_among_the_strangers():
    strangers, clients = ReceiveBudget(1 << 20), ReceiveBudget(1 << 30)
    scratch = memoryview(bytearray(SCRATCH_SIZE))
    reader = FrameReader(scratch, 1 << 19, strangers, LargeBuffers())
    buffer = reader.get_buffer()
    buffer[:4] = (400_000).to_bytes(4, "big")
    reader.received(4)
    assert reader.next_frame() is None
    assert reader.keep_rest(lambda: None)
    assert (strangers.held > 0, clients.held) == (True, 0)
    reader.allow(1 << 30, clients)
    assert (strangers.held, clients.held > 0) == (0, True)
    reader.close()
    assert (strangers.held, clients.held) == (0, 0)
