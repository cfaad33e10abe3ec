"""How sending ends before its time: the connection closes in the middle, the disk fails, the client is gone."""

import errno
import os
import weakref
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from skep.base.errors import StorageError
from skep.base.files.file_region import FileRegion
from skep.server import sender as sender_module
from tests.unit.server.outgoing import Outgoing, framed, open_descriptors, turns, until

PIECE = 1000
LARGE = bytes(200_000)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "PIECE_BYTES", PIECE)


async def waiting_for_its_turn(line: Outgoing) -> None:
    line.sender.send((b"head", line.region(LARGE)))


async def waiting_for_the_socket(line: Outgoing) -> None:
    line.make_narrow()
    line.sender.send((b"head", line.region(LARGE)))
    await turns(100)


async def waiting_for_the_disk(line: Outgoing) -> None:
    region = line.region(LARGE, is_cold=True)
    line.files[0].may_read.clear()
    line.sender.send((b"head", region))
    await until(lambda: line.files[0].readers)


async def paused_after_a_piece(line: Outgoing) -> None:
    line.sender.send((b"head", line.region(LARGE)))
    line.sender.pause()
    await turns(2)


MIDDLES = [waiting_for_its_turn, waiting_for_the_socket, waiting_for_the_disk, paused_after_a_piece]
Middle = Callable[[Outgoing], Awaitable[None]]


@pytest.mark.parametrize("middle", MIDDLES)
async def test_after_a_close_nothing_is_sent_and_nothing_stays_open(line: Outgoing, middle: Middle) -> None:
    before = open_descriptors()
    await middle(line)
    assert not line.sender.is_idle
    taken = open_descriptors() - before - {line.files[0].descriptor}
    assert len(taken) == 1
    line.received()
    line.sender.close()
    assert not taken & open_descriptors()
    line.files[0].may_read.set()
    await until(lambda: line.files[0].reads_ended == len(line.files[0].readers))
    line.sender.resume()
    await turns(100)
    assert line.received() == b""
    assert line.failures == []


@pytest.mark.parametrize("failure", [None, StorageError("eggs: Input/output error")])
async def test_a_close_in_the_turn_in_which_the_disk_answers(line: Outgoing, failure: StorageError | None) -> None:
    region = line.region(LARGE, is_cold=True)
    line.files[0].failure = failure
    line.sender.send((b"head", region))
    reading = line.sender._reading
    assert reading is not None
    # Turn by turn: callbacks run one turn after a future is done, so we know before the sender does.
    while not reading.done():
        await turns(1)
    line.sender.close()
    await turns(10)
    assert line.received() == framed(b"head", LARGE)[:8]
    assert line.failures == []


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_region_that_cannot_be_read_is_a_failure_and_the_end(line: Outgoing, is_cold: bool) -> None:
    region = line.region(LARGE, is_cold=is_cold)
    line.files[0].has_descriptor = False
    line.files[0].failure = failure = StorageError("eggs: Input/output error")
    line.sender.send((b"head", region, b"tail"))
    await until(lambda: line.failures)
    assert line.failures == [failure]
    await nothing_follows(line)


async def nothing_follows(line: Outgoing) -> None:
    """After the first eight bytes: the length and the head of a response."""
    line.sender.send((b"next", b"more"))
    line.sender.flush()
    await turns(10)
    assert len(line.received()) == 8
    assert len(line.failures) <= 1
    assert line.idle_calls == 0


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_file_that_is_shorter_than_it_should_be_is_a_failure(line: Outgoing, is_cold: bool) -> None:
    line.region(b"eggs", is_cold=is_cold)
    file = line.files[0]
    line.sender.send((b"head", FileRegion(file, 0, 10), b"tail"))
    await until(lambda: line.failures)
    [failure] = line.failures
    assert str(failure) == f"{file.path}: ends before byte 4"


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.ENOMEM])
async def test_an_error_of_sendfile_is_a_failure_and_the_end(
    line: Outgoing, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "sendfile", refusing(number))
    line.sender.send((b"head", line.region(LARGE), b"tail"))
    [failure] = line.failures
    assert os.strerror(number) in str(failure)
    assert line.files[0].path in str(failure)
    await nothing_follows(line)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ECONNRESET])
async def test_a_client_that_is_gone_is_no_failure_of_the_disk(
    line: Outgoing, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = open_descriptors()
    monkeypatch.setattr(os, "sendfile", refusing(number))
    line.sender.send((b"head", line.region(LARGE), b"tail"))
    assert line.failures == []
    assert open_descriptors() - before == {line.files[0].descriptor}
    await nothing_follows(line)


async def test_a_client_that_goes_while_the_socket_is_full_ends_it(line: Outgoing) -> None:
    await waiting_for_the_socket(line)
    sent = line.sender.region_bytes_sent
    line.client.close()
    await turns(10)
    assert line.sender.region_bytes_sent == sent
    assert line.failures == []


def refusing(number: int) -> Callable[..., int]:
    def sendfile(*arguments: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return sendfile


async def test_a_closed_sender_keeps_nobody_alive_who_waited_for_it(line: Outgoing) -> None:
    class Owner:
        def told(self, *_: object) -> None:
            """Of what the sender has to say."""

    owner = Owner()
    line.sender._on_idle = line.sender._on_failure = owner.told
    gone = weakref.ref(owner)
    line.sender.close()
    del owner
    assert gone() is None, "a connection and its sender would be a cycle, which nobody collects"
