"""The sender: one write where one is enough, bytes and regions in their order, and a client that reads as it likes."""

import os
import threading

import pytest

from skep.server import sender as sender_module
from skep.server.sender import GATHER_BYTES, PARTS_PER_PIECE, PIECES_PER_TURN
from tests.unit.server.outgoing import Outgoing, framed, open_descriptors, turns, until

PIECE = 1000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that many of them fit into a socket."""
    monkeypatch.setattr(sender_module, "PIECE_BYTES", PIECE)


def pattern(size: int) -> bytes:
    """Bytes of which no two pieces are alike."""
    return b"".join(number.to_bytes(4, "big") for number in range(size // 4 + 1))[:size]


async def test_the_responses_of_one_turn_are_one_write(line: Outgoing) -> None:
    for response in (b"one", b"two", b"three"):
        assert line.sender.send((response,))
    assert line.transport.writes == []
    line.sender.flush()
    assert line.transport.writes == [framed(b"one") + framed(b"two") + framed(b"three")]
    line.sender.flush()
    assert len(line.transport.writes) == 1


async def test_what_was_gathered_does_not_grow_for_ever(line: Outgoing) -> None:
    half = bytes(GATHER_BYTES // 2)
    line.sender.send((half,))
    assert line.transport.writes == []
    line.sender.send((half,))
    assert line.transport.writes == [2 * framed(half)]


async def test_bytes_and_regions_arrive_in_their_order(line: Outgoing) -> None:
    first, second = pattern(2500), pattern(700)[::-1]
    line.sender.send((b"small",))
    assert line.sender.send((b"head", line.region(first), b"middle", line.region(second), b"tail"))
    line.sender.send((b"next",))
    line.sender.flush()
    assert line.received() == framed(b"small") + framed(b"head", first, b"middle", second, b"tail") + framed(b"next")


async def test_what_follows_a_region_does_not_wait_for_the_transport(line: Outgoing) -> None:
    content = pattern(2500)
    line.sender.send((b"head", line.region(content), b"tail"))
    assert line.transport.writes == []
    assert line.received() == framed(b"head", content, b"tail")


async def test_what_follows_a_region_does_not_overtake_the_transport(line: Outgoing) -> None:
    content = pattern(2500)
    line.sender.send((b"head", line.region(content), b"tail"))
    line.make_narrow()
    large = bytes(300_000)
    line.sender.send((large,))
    line.sender.flush()
    line.sender.send((b"head", line.region(content), b"tail"))
    expected = framed(b"head", content, b"tail") + framed(large) + framed(b"head", content, b"tail")
    assert await line.receive(len(expected)) == expected


async def test_a_response_may_begin_with_a_region(line: Outgoing) -> None:
    line.sender.send((b"small",))
    line.sender.send((line.region(b"eggs"),))
    assert line.received() == framed(b"small") + framed(b"eggs")


async def test_a_cached_region_does_not_pass_through_our_memory(line: Outgoing) -> None:
    file = line.region(pattern(3 * PIECE))
    line.sender.send((b"head", file))
    assert line.transport.writes == []
    assert line.sender.region_bytes_sent == 3 * PIECE


async def test_a_region_does_not_overtake_what_the_transport_still_has(line: Outgoing) -> None:
    content = pattern(2500)
    line.transport.is_stuck = True
    line.transport.write(b"before")
    assert line.sender.send((b"head", line.region(content)))
    assert line.received() == b""
    line.transport.is_stuck = False
    line.transport.drain()
    assert line.received() == b"before" + framed(b"head", content)


async def test_without_a_descriptor_to_spare_the_transport_serves(
    line: Outgoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", no_descriptor)
    content = pattern(2500)
    line.sender.send((b"head", line.region(content)))
    assert line.received() == framed(b"head", content)
    assert b"".join(line.transport.writes) == framed(b"head", content)


async def test_a_file_without_a_descriptor_is_read(line: Outgoing) -> None:
    content = pattern(2500)
    region = line.region(content)
    region._file.has_descriptor = False  # type: ignore[misc]
    line.sender.send((b"head", region, b"tail"))
    assert line.received() == framed(b"head", content, b"tail")


async def test_a_cold_region_is_read_in_a_thread_and_what_follows_waits_for_it(line: Outgoing) -> None:
    content = pattern(2500)
    region = line.region(content, is_cold=True)
    file = line.files[0]
    file.may_read.clear()
    assert not line.sender.send((b"head", region, b"tail"))
    line.sender.send((b"next",))
    line.sender.flush()
    await until(lambda: file.readers)
    assert line.received() == framed(b"head", content, b"tail")[: 4 + len(b"head")]
    file.may_read.set()
    expected = content + b"tail" + framed(b"next")
    assert await line.receive(len(expected)) == expected
    assert threading.get_ident() not in file.readers
    assert line.idle_calls == 1


async def test_a_region_that_is_partly_cold_keeps_its_order(line: Outgoing, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pattern(5 * PIECE)
    region = line.region(content)
    monkeypatch.setattr(line.files[0], "is_cached", lambda position, size: position != 2 * PIECE)
    line.sender.send((b"head", region))
    expected = framed(b"head", content)
    assert await line.receive(len(expected)) == expected
    assert len(line.files[0].readers) == 1


async def test_a_slow_client_gets_everything_when_it_reads(line: Outgoing) -> None:
    content = pattern(200_000)
    line.make_narrow()
    assert not line.sender.send((b"head", line.region(content), b"tail"))
    line.sender.send((b"next",))
    await turns(100)
    assert line.sender.region_bytes_sent < len(content)
    assert line.idle_calls == 0
    expected = framed(b"head", content, b"tail") + framed(b"next")
    assert await line.receive(len(expected)) == expected
    assert line.sender.is_idle
    assert line.idle_calls == 1


async def test_a_fast_client_leaves_others_their_turn(line: Outgoing) -> None:
    content = pattern(3 * PIECES_PER_TURN * PIECE)
    line.sender.send((b"head", line.region(content)))
    sizes = [len(line.received())]
    for _ in range(2):
        await turns(1)
        sizes.append(len(line.received()))
    assert sizes == [8 + PIECES_PER_TURN * PIECE, PIECES_PER_TURN * PIECE, PIECES_PER_TURN * PIECE]
    assert line.idle_calls == 1


async def test_a_large_response_in_memory_leaves_others_their_turn(line: Outgoing) -> None:
    parts = [pattern(PIECE)] * (3 * PIECES_PER_TURN)
    line.sender.send(tuple(parts))
    sizes = [len(line.received())]
    for _ in range(2):
        await turns(1)
        sizes.append(len(line.received()))
    assert sizes == [4 + PIECES_PER_TURN * PIECE, PIECES_PER_TURN * PIECE, PIECES_PER_TURN * PIECE]
    assert line.idle_calls == 1


async def test_very_many_small_parts_leave_others_their_turn(line: Outgoing) -> None:
    parts = [b"x"] * (4 * PIECES_PER_TURN * PARTS_PER_PIECE)
    assert not line.sender.send(tuple(parts))
    await until(lambda: line.sender.is_idle)
    assert line.received() == framed(*parts)


async def test_nothing_is_begun_while_paused(line: Outgoing) -> None:
    content = pattern(2500)
    line.sender.pause()
    assert not line.sender.send((b"head", line.region(content)))
    assert line.received() == b""
    line.sender.resume()
    assert line.received() == framed(b"head", content)
    assert line.idle_calls == 1


async def test_a_pause_between_two_pieces_holds_back_the_second(line: Outgoing) -> None:
    content = pattern(2 * PIECE)
    region = line.region(content, is_cold=True)
    line.sender.send((b"head", region))
    line.sender.pause()
    expected = framed(b"head", content)
    assert await line.receive(8 + PIECE) == expected[: 8 + PIECE]
    assert len(line.files[0].readers) == 1
    line.sender.resume()
    assert await line.receive(PIECE) == expected[8 + PIECE :]


async def test_the_second_descriptor_is_taken_once_and_given_back(line: Outgoing) -> None:
    region = line.region(b"eggs")
    before = open_descriptors()
    line.sender.send((b"head", region))
    line.sender.send((b"head", line.region(b"more")))
    taken = open_descriptors() - before - {line.files[1].descriptor}
    assert len(taken) == 1
    line.sender.close()
    assert not taken & open_descriptors()
    line.sender.close()


async def test_the_clients_end_sees_no_end_before_the_transport_closes(line: Outgoing) -> None:
    line.sender.send((b"head", line.region(b"eggs")))
    line.sender.close()
    line.received()
    with pytest.raises(BlockingIOError):
        line.client.recv(1)
