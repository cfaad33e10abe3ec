"""Releases of a held partition: races with recalls and new times, kills at every step, compaction, lost indexes."""

import dataclasses
import threading
from pathlib import Path

import pytest

from skep.worker.held import held_partition
from skep.worker.held.held_index import HeldIndex
from skep.worker.held.held_partition import HeldPartition, HeldSpec
from skep.worker.held.kafka_log import NoTopic, Refused, Unavailable
from skep.worker.held.plan import Kind
from tests.unit.worker.held.memory_log import STEPS, Killed, MemoryCluster, MemoryLog

SPEC = HeldSpec("later", "0" * 32, 0, 0, "orders", 100, 1 << 40, False, 86_400_000)


class Worker:
    """A worker that is driven step by step. ``restart`` is what follows a kill."""

    def __init__(self, cluster, directory, spec=SPEC, is_held=lambda topic: False):
        self.cluster, self.path, self.spec, self.is_held = cluster, str(Path(directory) / "index"), spec, is_held
        self.restart()

    def restart(self, *, loses_index=False):
        index = HeldIndex(self.path, "x")
        if loses_index:
            index.clear()
        self.index = index
        self.partition = HeldPartition(
            self.spec, index, lambda: None, lambda: self.cluster.now_ms, threading.Event(), self.is_held
        )
        self.log = MemoryLog(self.cluster)
        self.partition.open(self.log)

    def steps(self, count=4):
        for _ in range(count):
            self.partition.step(self.log)
            self.cluster.now_ms += SPEC.tick_ms

    def kill_at(self, step):
        """Dies at the next step of this name."""

        def hook(name):
            if name == step:
                raise Killed

        self.cluster.hook = hook
        with pytest.raises(Killed):
            self.steps(5)
        self.cluster.hook = lambda name: None
        self.index.close()


@pytest.fixture
def cluster():
    return MemoryCluster()


@pytest.fixture
def worker(cluster, tmp_path):
    return Worker(cluster, tmp_path)


def schedule(cluster, key, value, **headers):
    pairs = [(name.replace("_", "-"), str(text).encode()) for name, text in headers.items()]
    return cluster.write(key, value, pairs)


def values(cluster):
    return [output.value for output in cluster.delivered()]


def test_a_record_is_released_when_it_is_due_and_not_before(cluster, worker):
    schedule(cluster, b"a", b"1", delay_ms=1000, other="x", deliver_key="b")
    due = cluster.now_ms + 1000
    worker.steps(9)
    assert values(cluster) == []
    worker.steps(3)
    [(at, output)] = cluster.released_at
    assert due <= at <= due + 2 * SPEC.tick_ms
    assert output == ("orders", b"b", b"1", [("other", b"x"), ("due-at", str(due).encode())])
    assert worker.index.count() == 0
    worker.steps(20)
    assert len(cluster.delivered()) == 1


def test_past_due_is_at_once_and_the_earliest_is_first(cluster, worker):
    schedule(cluster, b"b", b"2", deliver_at=5)
    schedule(cluster, b"a", b"1", deliver_at=-5)
    worker.steps()
    assert values(cluster) == [b"1", b"2"]


def test_a_tombstone_recalls_and_a_second_record_reschedules(cluster, worker):
    schedule(cluster, b"a", b"1", delay_ms=300)
    schedule(cluster, b"b", b"2", delay_ms=300)
    worker.steps(1)
    cluster.write(b"a", None)
    schedule(cluster, b"b", b"3", delay_ms=2000)
    worker.steps(10)
    assert values(cluster) == []
    worker.steps(20)
    assert values(cluster) == [b"3"]


@pytest.mark.parametrize("step", ["replace", "replaced", "overtaken"])
def test_a_recall_that_is_in_the_log_first_wins(cluster, worker, step):
    """Also when the worker has not read it, and is about to release the record."""
    schedule(cluster, b"a", b"1", delay_ms=300)
    schedule(cluster, b"b", b"2", delay_ms=300)
    race(cluster, step, lambda: cluster.write(b"a", None))
    worker.steps(20)
    late = step != "replace"
    assert sorted(values(cluster)) == ([b"1", b"2"] if late else [b"2"])


def race(cluster, step, write):
    """Writes once, at the step of the first transaction."""
    done = []

    def hook(name):
        if name == step and not done:
            done.append(write())

    cluster.hook = hook


@pytest.mark.parametrize("step", STEPS[:3])
def test_a_new_time_is_never_lost_to_the_tombstone_of_the_old_one(cluster, tmp_path, step):
    """Driven to each side of the tombstone; then compaction, and a worker that knows nothing."""
    worker = Worker(cluster, tmp_path)
    schedule(cluster, b"a", b"old", delay_ms=300)
    race(cluster, step, lambda: schedule(cluster, b"a", b"new", delay_ms=3000))
    worker.steps(10)
    before = [] if step == "replace" else [b"old"]
    assert values(cluster) == before
    worker.index.close()
    cluster.compact()
    worker.restart(loses_index=True)
    worker.steps(40)
    assert values(cluster) == [*before, b"new"]


def test_a_write_in_an_open_transaction_holds_up_its_own_key_alone(cluster, worker):
    schedule(cluster, b"a", b"1", delay_ms=300)
    schedule(cluster, b"b", b"2", delay_ms=300)
    worker.steps(1)
    users = 999
    cluster.state[users], cluster.outputs[users] = "open", []
    cluster.write(b"a", b"3", [("delay-ms", b"5000")], users)
    worker.steps(10)
    assert values(cluster) == [b"2"]
    cluster.state[users] = "aborted"
    worker.steps(10)
    assert values(cluster) == [b"2", b"1"]


@pytest.mark.parametrize("step", [step for step in STEPS if step != "abort"])
@pytest.mark.parametrize("loses_index", [False, True])
def test_a_kill_at_any_step_releases_each_record_once(cluster, worker, step, loses_index):
    for number in range(5):
        schedule(cluster, b"%d" % number, b"%d" % number, delay_ms=100 * number)
    schedule(cluster, b"beat", b"beat", schedule="@every 1s")
    worker.kill_at(step)
    worker.restart(loses_index=loses_index)
    worker.steps(15)
    assert sorted(values(cluster)) == [b"0", b"1", b"2", b"3", b"4", b"beat"]


def test_a_deposed_worker_writes_nothing(cluster, worker, tmp_path):
    (tmp_path / "other").mkdir()
    schedule(cluster, b"a", b"1", delay_ms=300)
    worker.steps(1)
    other = Worker(cluster, tmp_path / "other")
    cluster.now_ms += 1000
    with pytest.raises(Exception, match="fenced"):
        worker.steps(2)
    other.steps(3)
    assert values(cluster) == [b"1"]


def test_a_schedule_fires_again_and_again_and_leaves_out_what_was_missed(cluster, worker):
    schedule(cluster, b"beat", b"x", schedule="@every 1s", kept="y")
    worker.steps(35)
    assert len(values(cluster)) == 3
    assert {tuple(name for name, _ in output.headers) for output in cluster.delivered()} == {("kept", "due-at")}
    cluster.now_ms += 60_000
    worker.steps(15)
    assert len(values(cluster)) == 3 + 2
    due = [int(dict(output.headers)["due-at"]) for output in cluster.delivered()]
    assert {(one - due[0]) % 1000 for one in due} == {0}
    cluster.write(b"beat", None)
    worker.steps(30)
    assert len(values(cluster)) == 5


def test_an_invalid_record_stays_and_stops_nobody(cluster, worker, caplog):
    schedule(cluster, b"bad", b"1", delay_ms="soon")
    schedule(cluster, b"good", b"2", delay_ms=0)
    worker.steps(10)
    assert values(cluster) == [b"2"]
    assert worker.index.get(b"bad").due_ms is None
    assert "the record at 0 stays: delay-ms is not a number of milliseconds: 'soon'" in caplog.text
    schedule(cluster, b"bad", b"3", delay_ms=0)
    worker.steps(10)
    assert values(cluster) == [b"2", b"3"]


def limited(cluster, directory, limit, **changes):
    spec = dataclasses.replace(SPEC, max_firings_per_second=limit)
    return Worker(cluster, directory, spec, **changes)


def fired(cluster):
    return sorted({output.key for output in cluster.delivered()})


@pytest.mark.parametrize("loses_index", [False, True])
def test_schedules_that_would_fire_too_often_are_refused_and_say_why(cluster, tmp_path, caplog, loses_index):
    """A worker that has lost its index refuses the same: those that have fired before have their place."""
    worker = limited(cluster, tmp_path, 3)
    schedule(cluster, b"0", b"x", schedule="@every 30m")
    for number in range(1, 8):
        schedule(cluster, b"%d" % number, b"x", schedule="@every 1s")
    schedule(cluster, b"8", b"x", delay_ms=0)
    worker.steps(15)
    assert fired(cluster) == [b"1", b"2", b"3", b"8"]
    assert "(and 3 more) stays: the schedules of later-0 would fire more than 3 times a second" in caplog.text
    worker.index.close()
    cluster.compact()
    worker.restart(loses_index=loses_index)
    worker.steps(30)
    assert fired(cluster) == [b"1", b"2", b"3", b"8"]
    schedule(cluster, b"1", None)
    schedule(cluster, b"7", b"y", schedule="@every 1s")
    worker.steps(15)
    assert fired(cluster) == [b"1", b"2", b"3", b"7", b"8"]
    assert worker.index.get(b"6").kind is Kind.INVALID
    cluster.now_ms += 1_800_000
    worker.steps(10)
    assert worker.index.get(b"0").kind is Kind.INVALID, "it fires rarely, and there is no room at all"


def test_schedules_that_run_count_before_their_last_firing_is_read_again(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(held_partition, "MOST_RELEASED", 3)
    worker = limited(cluster, tmp_path, 3)
    running = [b"0", b"1", b"2"]
    for key in running:
        schedule(cluster, key, b"x", schedule="@every 1s")
    worker.steps(15)
    assert fired(cluster) == running
    schedule(cluster, b"new", b"x", schedule="@every 1s")
    worker.partition.step(worker.log)
    cluster.now_ms += 1000
    monkeypatch.setattr(worker.log, "read", lambda timeout_s, most: ([], None))
    for _ in range(5):
        worker.partition.step(worker.log)
    assert len(values(cluster)) > 3
    assert fired(cluster) == running


def test_schedules_that_were_admitted_count_before_they_are_read_again(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(held_partition, "MOST_RELEASED", 2)
    worker = limited(cluster, tmp_path, 3)
    for number in range(6):
        schedule(cluster, b"%d" % number, b"x", schedule="@every 1s")
    worker.steps(1)
    cluster.now_ms += 1000
    monkeypatch.setattr(worker.log, "read", lambda timeout_s, most: ([], None))
    for _ in range(5):
        worker.partition.step(worker.log)
    assert fired(cluster) == [b"0", b"1", b"2"]
    assert len(values(cluster)) == 3


def test_a_schedule_that_runs_goes_on_when_the_limit_is_lowered(cluster, tmp_path):
    worker = limited(cluster, tmp_path, 2)
    schedule(cluster, b"0", b"x", schedule="@every 1s")
    worker.steps(15)
    worker.index.close()
    worker = limited(cluster, tmp_path, 0)
    worker.steps(30)
    assert len(values(cluster)) == 4


def test_nobody_is_asked_through_a_held_topic_and_the_message_waits_for_its_commit(cluster, tmp_path, caplog):
    worker = Worker(cluster, tmp_path, is_held=lambda topic: topic == "other.later")
    schedule(cluster, b"a", b"1", check_topic="other.later", check_after_ms=1000)
    schedule(cluster, b"b", b"2", check_topic="questions", check_after_ms=1000, check_attempts=1)
    worker.steps(30)
    assert [(output.topic, output.key) for output in cluster.delivered()] == [("questions", b"b")]
    assert "no question is sent about the half message at 0: check-topic is other.later, a held topic" in caplog.text
    entry = worker.index.get(b"a")
    assert (entry.kind, entry.due_ms) == (Kind.HALF, None)
    schedule(cluster, b"a", b"", commit="")
    worker.steps()
    assert [(output.topic, output.value, output.headers) for output in cluster.delivered()][1:] == [
        ("orders", b"1", [])
    ]


def test_a_half_message_is_released_by_its_commit(cluster, worker):
    schedule(cluster, b"a", b"1", kept="y", deliver_key="k")
    schedule(cluster, b"b", b"2")
    schedule(cluster, b"c", b"3")
    worker.steps(20)
    assert values(cluster) == []
    schedule(cluster, b"a", b"", commit="")
    cluster.write(b"b", None)
    schedule(cluster, b"c", b"4", commit="")
    worker.steps()
    assert [(output.key, output.value, output.headers) for output in cluster.delivered()] == [
        (b"k", b"1", [("kept", b"y")]),
        (b"c", b"4", []),
    ]
    assert worker.index.count() == 0


def test_a_commit_is_decided_once(cluster, worker):
    schedule(cluster, b"a", b"1")
    schedule(cluster, b"a", None, commit="")
    schedule(cluster, b"a", b"", commit="")
    worker.steps()
    assert values(cluster) == [b"1"]
    schedule(cluster, b"a", b"", commit="")
    worker.steps()
    assert values(cluster) == [b"1"]


@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_half_message_without_a_decision_is_asked_about(cluster, tmp_path, rolls_back):
    spec = HeldSpec("later", "0" * 32, 0, 0, "orders", 100, 1 << 40, rolls_back, 86_400_000)
    worker = Worker(cluster, tmp_path, spec)
    schedule(cluster, b"a", b"1", check_topic="ask", check_after_ms=1000, check_attempts=2)
    worker.steps(60)
    asked = [(output.topic, output.key, dict(output.headers)) for output in cluster.delivered()]
    assert asked == [
        ("ask", b"a", {"check-attempt": attempt, "held-topic": b"later", "held-partition": b"0"})
        for attempt in (b"1", b"2")
    ]
    assert worker.index.count() == (0 if rolls_back else 1)
    schedule(cluster, b"a", b"", commit="")
    worker.steps()
    assert [output.topic for output in cluster.delivered()][2:] == ([] if rolls_back else ["orders"])


def test_a_record_that_the_target_never_takes_stops_nobody(cluster, worker):
    for number in range(4):
        schedule(cluster, b"%d" % number, b"x" * (100 if number == 1 else 1), delay_ms=100)
    send = worker.log.send

    def refuse_large(outputs):
        outputs = list(outputs)
        if any(len(output.value) > 50 for output in outputs):
            raise Refused("too large")
        send(outputs)

    for _ in range(8):
        worker.log.send = refuse_large
        try:
            worker.steps(5)
        except Refused:
            worker.log = MemoryLog(cluster)
            worker.partition.open(worker.log)
            send = worker.log.send
    assert [output.key for output in cluster.delivered()] == [b"0", b"2", b"3"]
    cluster.now_ms += 120_000
    worker.log.send = send
    worker.steps(5)
    assert [output.key for output in cluster.delivered()] == [b"0", b"2", b"3", b"1"]


def test_many_records_that_are_never_taken_leave_time_for_the_others(cluster, worker):
    """Each attempt takes five seconds, and they are due before the good one."""
    for number in range(20):
        schedule(cluster, b"bad%d" % number, b"x" * 100, delay_ms=100)
    schedule(cluster, b"good", b"x", delay_ms=200)
    schedule(cluster, b"fixed", b"x" * 100, delay_ms=200)
    for _ in range(100):
        send = worker.log.send

        def refuse_large(outputs, send=send):
            outputs = list(outputs)
            if any(len(output.value) > 50 for output in outputs):
                cluster.now_ms += 5_000
                raise Refused("too large")
            send(outputs)

        worker.log.send = refuse_large
        try:
            worker.steps(3)
        except Refused:
            worker.log = MemoryLog(cluster)
            worker.partition.open(worker.log)
    assert [output.key for output in cluster.delivered()] == [b"good"]
    # What is written under the key again does not wait for the next attempt.
    schedule(cluster, b"fixed", b"y", delay_ms=0)
    worker.steps(5)
    assert [output.key for output in cluster.delivered()] == [b"good", b"fixed"]


@pytest.mark.parametrize("topic", ["orders", "questions"])
def test_a_missing_topic_of_questions_concerns_its_own_messages(cluster, worker, topic):
    schedule(cluster, b"a", b"1", delay_ms=100)

    def refuse(outputs):
        raise NoTopic(topic, "unknown topic")

    worker.log.send = refuse
    with pytest.raises(Unavailable if topic == "orders" else NoTopic):
        worker.steps(5)


def test_an_index_that_is_old_or_of_another_history_is_made_again(cluster, worker, tmp_path):
    """Meanwhile another worker has released the record, and its tombstone was compacted away."""
    schedule(cluster, b"a", b"1", delay_ms=1000)
    worker.steps(1)
    (tmp_path / "other").mkdir()
    other = Worker(cluster, tmp_path / "other")
    other.steps(20)
    assert values(cluster) == [b"1"]
    cluster.log = []
    cluster.now_ms += SPEC.delete_retention_ms
    worker.index.close()
    worker.restart()
    worker.steps(10)
    assert values(cluster) == [b"1"]
