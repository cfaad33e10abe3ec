"""A port that is kept for a server."""

import errno
import socket

import pytest

from skep.base.reserved_port import ReservedPort


def listener(port: int, *, share: bool) -> socket.socket:
    bound = socket.socket()
    try:
        if share:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


def test_a_reserved_port_is_for_a_server_to_listen_on_again_and_again() -> None:
    reserved = ReservedPort("127.0.0.1")
    try:
        for _ in range(2):
            with listener(reserved.number, share=True), socket.create_connection(("127.0.0.1", reserved.number)):
                pass
    finally:
        reserved.release()


def test_a_reserved_port_on_which_nobody_listens_refuses_connections() -> None:
    reserved = ReservedPort("127.0.0.1")
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", reserved.number))
    finally:
        reserved.release()


def test_a_reserved_port_is_nobody_elses() -> None:
    reserved = ReservedPort("127.0.0.1")
    try:
        with pytest.raises(OSError, match="in use") as raised:
            listener(reserved.number, share=False)
        assert raised.value.errno == errno.EADDRINUSE
    finally:
        reserved.release()
    listener(reserved.number, share=False).close()
