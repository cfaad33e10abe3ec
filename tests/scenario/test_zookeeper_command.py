"""``skep zookeeper``: one line when it serves, an end in order, and nothing left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import skep
from skep.base.reserved_port import ReservedPort
from skep.zookeeper_server import HOST
from tests.waiting import wait_until

SOURCE = Path(skep.__file__).parent.parent


def command(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "skep.cli.main", "zookeeper", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )


def is_served(port):
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_one_line_and_ends_when_asked_to(tmp_path, number):
    with command("--data-dir", str(tmp_path / "zk"), "--port", "0") as process:
        line = process.stdout.readline()
        found = re.fullmatch(rf"skep: zookeeper ready on 127\.0\.0\.1:(\d+), data in {tmp_path}/zk\n", line)
        assert found, line
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out, errors) == (0, "", "")
    assert not is_served(int(found[1]))


def test_killed_it_takes_the_server_along(tmp_path):
    reserved = ReservedPort(HOST)
    with command("--data-dir", str(tmp_path), "--port", str(reserved.number)) as process:
        process.stdout.readline()
        assert is_served(reserved.number)
        process.kill()
    wait_until(lambda: not is_served(reserved.number), "the server ended")
    reserved.release()


def test_without_java_it_says_so_in_one_line(tmp_path):
    with command("--data-dir", str(tmp_path), JAVA_HOME=str(tmp_path)) as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert errors == f"skep: ZooKeeper needs Java, and JAVA_HOME={tmp_path} has no bin/java\n"


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with command("--data-dir", str(tmp_path), "--port", str(port)) as process:
            out, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert re.fullmatch(rf"skep: port {port} on 127\.0\.0\.1 is in use; choose another one\n", errors), errors
