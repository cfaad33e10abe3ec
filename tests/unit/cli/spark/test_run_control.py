"""What ends a run early: signals, a broker that is away, flows that fail for too long."""

import signal
from collections.abc import Mapping

import pytest

from skep.cli.failures import CommandError
from skep.cli.spark.pipeline_progress import Flow, MicroBatch, RunProgress
from skep.cli.spark.run_control import BrokerWatch, PatienceOver, RunControl, Stopped, StopRequest, retries_within

AWAY = "no broker answers at a:1 (is it running? start one with: skep serve)"


class Told:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.now_s = 0.0

    def note(self, message: str) -> None:
        self.notes.append(message)

    def changed(self, flow: Flow, flows: Mapping[str, Flow]) -> None:
        pass

    counted = changed


class Broker:
    is_up = True

    def metadata(self) -> None:
        if not self.is_up:
            raise CommandError(AWAY)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def progress(told: Told) -> RunProgress:
    return RunProgress(told, attempts=3, clock=lambda: told.now_s)


def test_a_broker_that_is_away_is_told_at_once_and_ends_the_run_when_patience_is_over(
    told: Told, progress: RunProgress
) -> None:
    broker = Broker()
    watch = BrokerWatch(broker, clock=lambda: told.now_s)
    control = RunControl(StopRequest(), watch, 60, clock=lambda: told.now_s)
    watch.ask()
    control.check(progress)
    assert told.notes == []
    broker.is_up, told.now_s = False, 10.0
    for _ in range(3):
        watch.ask()
        control.check(progress)
    assert told.notes == [f"{AWAY}; waiting for it for 60 s (--patience)."]
    told.now_s = 69.0
    watch.ask()
    control.check(progress)
    told.now_s = 70.0
    with pytest.raises(PatienceOver) as over:
        control.check(progress)
    assert str(over.value) == (
        "no broker answers at a:1 for 60 s (--patience); the next run continues where this one stopped"
    )


def test_a_broker_that_returns_in_time_is_told_and_the_patience_begins_anew(told: Told, progress: RunProgress) -> None:
    broker = Broker()
    watch = BrokerWatch(broker, clock=lambda: told.now_s)
    control = RunControl(StopRequest(), watch, 60, clock=lambda: told.now_s)
    for is_up, now_s in ((False, 10.0), (True, 40.0), (False, 80.0), (False, 100.0)):
        broker.is_up, told.now_s = is_up, now_s
        watch.ask()
        control.check(progress)
    assert told.notes[1] == "The broker answers again, after 30 s."
    assert len(told.notes) == 3


def test_the_watch_asks_in_a_thread_until_it_is_ended() -> None:
    import threading

    asked = threading.Semaphore(0)

    class Counting(Broker):
        def metadata(self) -> None:
            asked.release()

    with BrokerWatch(Counting(), pause_s=0.001):
        assert all(asked.acquire(timeout=60) for _ in range(3))


def test_a_flow_that_fails_for_longer_than_the_patience_ends_the_run_with_its_reason(
    told: Told, progress: RunProgress
) -> None:
    control = RunControl(StopRequest(), None, 60, clock=lambda: told.now_s)
    progress.event("Flow orders is RUNNING.")
    progress.event("Flow 'orders' has FAILED.\nError: topic t was deleted")
    control.check(progress)
    told.now_s = 60.0
    with pytest.raises(PatienceOver, match=r"^flow orders failed: topic t was deleted \(attempts: 1, within the pat"):
        control.check(progress)


def test_a_topic_that_does_not_exist_ends_the_run_at_once_with_the_command_that_creates_it(
    told: Told, progress: RunProgress
) -> None:
    control = RunControl(StopRequest(), None, 60, clock=lambda: told.now_s)
    progress.event("Flow orders is RUNNING.")
    progress.event("Flow 'orders' has FAILED.\nError: there is no topic 'eggs'")
    with pytest.raises(
        PatienceOver, match=r"^flow orders failed: there is no topic 'eggs'; .*: skep topics create eggs$"
    ):
        control.check(progress)


def test_an_attempt_that_runs_and_flows_beside_a_failed_one_are_not_given_up(told: Told, progress: RunProgress) -> None:
    control = RunControl(StopRequest(), None, 60, clock=lambda: told.now_s)
    progress.event("Flow orders is RUNNING.")
    progress.event("Flow 'orders' has FAILED.\nError: x")
    progress.event("Flow orders is STARTING.")
    progress.event("Flow bad is RUNNING.")
    progress.event("Flow 'bad' has FAILED more than 2 times and will not be restarted.\nError: x")
    told.now_s = 1000.0
    control.check(progress)


def test_a_stop_waits_for_the_end_of_the_batch(told: Told, progress: RunProgress) -> None:
    stop = StopRequest()
    control = RunControl(stop, None, clock=lambda: told.now_s)
    progress.event("Flow orders is QUEUED.")
    progress.event("Flow orders is RUNNING.")
    progress.batch(MicroBatch("orders", 10))
    control.check(progress)
    stop.number = signal.SIGTERM
    control.check(progress)
    control.check(progress)
    assert told.notes == ["Stopping when the current batch of orders is done; again: at once."]
    progress.batch(MicroBatch("orders", 10))
    with pytest.raises(Stopped, match=r"^Stopped between two batches\. The next run continues there\.$"):
        control.check(progress)


def test_a_stop_waits_for_the_end_of_a_flow_that_is_no_stream(told: Told, progress: RunProgress) -> None:
    stop = StopRequest()
    control = RunControl(stop, None, clock=lambda: told.now_s)
    progress.event("Flow revenue is RUNNING.")
    stop.number = signal.SIGINT
    control.check(progress)
    progress.event("Flow revenue has COMPLETED.")
    control.check(progress)
    progress.end()
    with pytest.raises(Stopped):
        control.check(progress)


def test_a_stop_waits_for_nothing_where_no_flow_runs_or_no_broker_is(told: Told, progress: RunProgress) -> None:
    stop = StopRequest()
    stop.number = signal.SIGINT
    with pytest.raises(Stopped, match="where no batch was running"):
        RunControl(stop, None).check(progress)
    watch = BrokerWatch(Broker(), clock=lambda: told.now_s)
    control = RunControl(StopRequest(), watch, clock=lambda: told.now_s)
    progress.event("Flow orders is RUNNING.")
    watch.lost = (AWAY, 0.0)
    control.check(progress)
    stopped = RunControl(stop, watch, clock=lambda: told.now_s)
    stopped.check(progress)
    with pytest.raises(Stopped):
        stopped.check(progress)


def test_the_first_signal_is_kept_during_a_run_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest().received() as stop:
        stop.waits_for_a_batch = True
        signal.raise_signal(signal.SIGTERM)
        assert (stop.number, stop.exit_code) == (signal.SIGTERM, 143)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_outside_of_a_run_interrupts_at_once() -> None:
    with StopRequest().received() as stop, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert stop.exit_code == 143


@pytest.mark.parametrize(("patience_s", "retries"), [(0, 0), (5, 2), (60, 2), (600, 10), (601, 11)])
def test_spark_still_tries_when_the_patience_is_over(patience_s: float, retries: int) -> None:
    assert retries_within(patience_s) == retries
