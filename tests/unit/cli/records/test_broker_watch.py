from typing import Any

import pytest

from skep.cli.records.broker_watch import QUIET_S, RETRY_S, BrokerWatch


class FakeCluster:
    bootstrap = "broker:9092"

    def __init__(self) -> None:
        self.is_up = True
        self.has_error = False
        self.asked = 0

    def answers(self, timeout_s: float) -> bool:
        self.asked += 1
        return self.is_up

    def has_new_errors(self) -> bool:
        found, self.has_error = self.has_error, False
        return found


class Scene:
    def __init__(self) -> None:
        self.cluster: Any = FakeCluster()
        self.now = 0.0
        self.watch = BrokerWatch(self.cluster, lambda: self.now)

    def turn(self, after_s: float, *, got_records: bool = False) -> None:
        self.now += after_s
        self.watch.turn(got_records=got_records)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_reader_that_gets_records_sends_no_request(scene: Scene) -> None:
    for _ in range(10):
        scene.turn(QUIET_S, got_records=True)
    assert scene.cluster.asked == 0


def test_a_quiet_reader_asks_now_and_then(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(10):
        scene.turn(QUIET_S / 2)
    assert scene.cluster.asked == 5
    assert capsys.readouterr().err == ""


def test_an_error_of_the_client_is_followed_up_at_once(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.cluster.has_error = True
    scene.turn(0.1)
    assert scene.cluster.asked == 1
    assert capsys.readouterr().err == ""


def test_each_change_is_said_once(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.cluster.is_up = False
    for _ in range(5):
        scene.turn(QUIET_S)
    assert capsys.readouterr().err == "No broker answers at broker:9092; waiting for one. Ctrl-C ends.\n"
    scene.cluster.is_up = True
    for _ in range(3):
        scene.turn(RETRY_S)
    assert capsys.readouterr().err == "A broker answers at broker:9092 again.\n"
