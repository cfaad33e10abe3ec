"""EmbeddedBroker and the pytest fixtures, as the test suites of other teams use them."""

import os
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

import psutil
import pytest

import skep.testing
from skep.security.tls.certificate_authority import CertificateProblem
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of
from tests.waiting import wait_until


def test_it_leaves_nothing_behind() -> None:
    broker = EmbeddedBroker().start()
    process, directory = psutil.Process(broker.pid), broker.data_dir.parent
    assert directory.exists()
    broker.stop()
    assert not process.is_running()
    assert not directory.exists()
    broker.stop()


def test_a_data_directory_that_was_given_stays(tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic("eggs")
        client.append("eggs", batch_of(b"egg"))
    assert (tmp_path / "eggs-0" / "00000000000000000000.log").stat().st_size > 0
    with EmbeddedBroker(data_dir=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert client.list_offset("eggs", -1).offset == 1


def test_the_port_is_the_same_after_kill_and_restart(skep_fresh_broker: EmbeddedBroker) -> None:
    address = skep_fresh_broker.bootstrap_servers
    skep_fresh_broker.kill()
    with pytest.raises(ConnectionRefusedError), RawClient(address):
        pass
    with pytest.raises(RuntimeError, match="not running"):
        _ = skep_fresh_broker.pid
    skep_fresh_broker.restart()
    assert skep_fresh_broker.bootstrap_servers == address
    with RawClient(address) as client:
        assert client.ask(apis.METADATA, 9, topics=[]).brokers[0].port == int(address.rpartition(":")[2])


def test_a_paused_broker_keeps_its_connections_and_answers_when_resumed(skep_fresh_broker: EmbeddedBroker) -> None:
    with RawClient(skep_fresh_broker.bootstrap_servers) as client:
        client.ask(apis.METADATA, 9, topics=[])
        skep_fresh_broker.pause()
        client.send(apis.METADATA, 9, topics=[])
        client.socket.settimeout(0.3)
        with pytest.raises(socket.timeout):
            client.receive_frame()
        skep_fresh_broker.resume()
        client.socket.settimeout(30)
        assert client.receive().brokers


def test_options_are_the_brokers(tmp_path: Path) -> None:
    with EmbeddedBroker(options={"num.partitions": "4"}) as broker, RawClient(broker.bootstrap_servers) as client:
        [topic] = client.ask(apis.METADATA, 9, topics=[{"name": "x"}], allow_auto_topic_creation=True).topics
        assert len(topic.partitions) == 4


@pytest.mark.parametrize("options", [{"num.partition": "4"}, {"num.partitions": "many"}])
def test_a_bad_option_is_told_in_the_brokers_words(options: dict[str, str]) -> None:
    broker = EmbeddedBroker(options=options)
    with pytest.raises(RuntimeError, match=re.escape(next(iter(options)))) as raised:
        broker.start()
    assert "Traceback" not in str(raised.value)
    broker.stop()


FAILING = """
import os, psutil
from skep.testing import EmbeddedBroker

before = sorted(os.listdir("/proc/self/fd"))
try:
    with EmbeddedBroker(options={"no.such.option": "1"}):
        pass
except RuntimeError as error:
    assert "no.such.option" in str(error), error
    print("refused")
assert sorted(os.listdir("/proc/self/fd")) == before
assert psutil.Process().children() == []
"""


def test_nothing_is_left_when_it_cannot_start(tmp_path: Path) -> None:
    # In a process of its own: in this one clients of earlier tests open and close descriptors at any time.
    command, environment = [sys.executable, "-c", FAILING], {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr) == ("refused\n", "")
    assert list(tmp_path.iterdir()) == []


def test_reading_the_log_while_it_is_written_loses_nothing(skep_fresh_broker: EmbeddedBroker) -> None:
    broker, hang_ups = skep_fresh_broker, 300
    host, _, port = broker.bootstrap_servers.rpartition(":")
    is_over = threading.Event()

    def read_the_log() -> None:
        while not is_over.is_set():
            _ = broker.log

    with ThreadPoolExecutor(1) as executor:
        reading = executor.submit(read_the_log)
        try:
            for _ in range(hang_ups):
                with socket.create_connection((host, int(port))) as stranger:
                    stranger.sendall(b"\xff" * 8)
            wait_until(lambda: logged_hang_ups(broker) >= hang_ups, "every connection is in the log")
        finally:
            is_over.set()
        reading.result()
    assert logged_hang_ups(broker) == hang_ups
    assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in broker.log.splitlines()), "no line is overwritten"


def logged_hang_ups(broker: EmbeddedBroker) -> int:
    return broker.log.count("closed the connection of ")


def test_a_data_directory_in_use_is_refused(tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=tmp_path) as first:
        second = EmbeddedBroker(data_dir=tmp_path)
        with pytest.raises(RuntimeError, match="did not start"):
            second.start()
        second.stop()
        with RawClient(first.bootstrap_servers) as client:
            assert client.ask(apis.METADATA, 9, topics=[]).brokers


OWNER = """
import sys
from skep.testing import EmbeddedBroker
broker = EmbeddedBroker(data_dir=sys.argv[1]).start()
print(broker.pid, flush=True)
input()
"""


def test_it_goes_when_the_test_run_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    broker_pid = int(owner.stdout.readline())
    assert psutil.pid_exists(broker_pid)
    owner.kill()
    owner.communicate()
    wait_until(lambda: not psutil.pid_exists(broker_pid) or is_zombie(broker_pid), "the broker stops by itself")


def is_zombie(pid: int) -> bool:
    """Ended, though whoever inherited it has not looked yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


OTHER_SUITE = """
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

@pytest.fixture(scope="session")
def skep_broker_options():
    return {"num.partitions": "2"}

def test_round_trip(skep_broker):
    producer = Producer({"bootstrap.servers": skep_broker.bootstrap_servers})
    producer.produce("eggs", b"egg", partition=1)
    assert producer.flush(30) == 0
    # Without a group coordinator a commit on close would be waited for until the session times out.
    options = {"group.id": "none", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": skep_broker.bootstrap_servers, **options})
    consumer.assign([TopicPartition("eggs", 1, 0)])
    assert consumer.poll(30).value() == b"egg"
    consumer.close()

def test_fresh(skep_broker, skep_fresh_broker):
    assert skep_broker.bootstrap_servers != skep_fresh_broker.bootstrap_servers
    skep_fresh_broker.kill()
    skep_fresh_broker.restart()
"""


FAILING_SUITE = """
import time

def test_eggs(skep_fresh_broker):
    while " INFO " not in skep_fresh_broker.log:  # it is ready before it has written its first line
        time.sleep(0.01)
    assert skep_fresh_broker is None
"""


def run_suite(tmp_path: Path, text: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "test_eggs.py").write_text(text)
    is_installed = any(point.value == "skep.pytest_plugin" for point in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "skep.pytest_plugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *plugin],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(skep.testing.__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_fixtures_serve_a_test_suite(tmp_path: Path) -> None:
    run = run_suite(tmp_path, OTHER_SUITE)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout


def test_the_report_of_a_test_that_fails_has_the_log_of_its_broker(tmp_path: Path) -> None:
    run = run_suite(tmp_path, FAILING_SUITE)
    assert "1 failed" in run.stdout, run.stdout + run.stderr
    title = run.stdout.index("log of broker on 127.0.0.1:")
    assert " INFO " in run.stdout[title:]


def test_what_was_written_before_a_kill_is_read_after_it(skep_fresh_broker: EmbeddedBroker) -> None:
    broker = skep_fresh_broker
    with RawClient(broker.bootstrap_servers) as client:
        client.create_topic("eggs")
        for _ in range(10):
            client.append("eggs", batch_of(b"egg"))
    os.kill(broker.pid, 9)
    broker.kill()
    broker.restart()
    with RawClient(broker.bootstrap_servers) as client:
        assert client.fetch_one(Want("eggs", 9)).high_watermark == 10


def test_what_secures_a_broker_is_gone_with_it() -> None:
    broker = EmbeddedBroker(security="sasl_ssl")
    authority = Path(broker.client_config["ssl.ca.location"])
    assert authority.exists()
    assert broker.client_config["bootstrap.servers"] == broker.bootstrap_servers
    broker.stop()
    assert not authority.parent.exists()
    assert EmbeddedBroker().client_config.keys() == {"bootstrap.servers"}


def test_an_unknown_security_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="security='tls': expected one of sasl_ssl, ssl, sasl_plaintext"):
        EmbeddedBroker(security="tls")


def test_without_cryptography_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(CertificateProblem, match=r"tls"):
        EmbeddedBroker(security="ssl")
