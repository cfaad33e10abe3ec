"""A broker whose standard error nobody reads serves its clients all the same, and ends when it is told to."""

import signal
import socket
import struct
import subprocess
from pathlib import Path

from skep.broker_process import command, first_line, ready_address
from skep.wire import apis
from tests.raw_client import RawClient
from tests.waiting import PATIENCE_S

PIPE_BYTES = 64 * 1024
LINES = 1500
"""At some hundred bytes each they do not fit into the pipe."""


def test_a_log_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    options = {"listeners": "127.0.0.1:0", "log.dirs": str(tmp_path)}
    process = subprocess.Popen(
        command(options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(first_line(options))
        address = ready_address(process.stdout.readline().decode())
        assert address is not None
        for _ in range(LINES):
            with socket.create_connection(address, PATIENCE_S) as hostile:
                # A frame of a negative length: one line in the log, and the connection is closed.
                hostile.sendall(struct.pack(">i", -1))
                assert hostile.recv(1) == b""
        with RawClient("{}:{}".format(*address)) as client:
            client.ask(apis.METADATA, 9, topics=[])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        log = process.stderr.read()
        assert log.count(b"closed the connection") * 50 > PIPE_BYTES // 4
    finally:
        process.kill()
        process.communicate()
