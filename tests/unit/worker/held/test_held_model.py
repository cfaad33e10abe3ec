"""Random lives of a held partition against the model: delays, schedules, half messages, recalls, races, kills, lost
indexes, compaction and a clock that jumps."""

import dataclasses
from collections import Counter
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.worker.held.held_model import HeldModel, released
from tests.unit.worker.held.memory_log import STEPS, Killed, MemoryCluster
from tests.unit.worker.held.test_held_partition import SPEC, Worker, race, schedule

CHECK = {"check_topic": "ask", "check_after_ms": 1000, "check_attempts": 2}
LAST_STEPS = 40

keys = st.sampled_from([b"a", b"b"])
writes = st.one_of(
    st.tuples(st.just("once"), keys, st.sampled_from([0, 50, 150, 300, 1000])),
    st.tuples(st.just("repeat"), keys, st.sampled_from([1, 2])),
    st.tuples(st.just("half"), keys, st.booleans()),
    st.tuples(st.just("commit"), keys, st.booleans()),
    st.tuples(st.just("recall"), keys),
)
RACES = ["replace", "overtaken", "send", "committed"]
commands = st.one_of(
    writes,
    st.tuples(st.just("steps"), st.integers(1, 12)),
    # Something due is released at the next step; somebody writes to its key, or to the other, meanwhile.
    st.tuples(st.just("duel"), st.sampled_from(RACES), keys, st.sampled_from(["once", "commit"]), writes),
    st.tuples(st.just("kill"), st.sampled_from(STEPS), st.booleans()),
    st.tuples(st.just("restart"), st.booleans()),
    st.tuples(st.just("compact")),
    st.tuples(st.just("sleep"), st.sampled_from([700, 3300])),
)


@pytest.mark.parametrize("rolls_back", [False, True], ids=["keep", "rollback"])
@example([("duel", "replace", b"a", "once", ("recall", b"a"))])
@example([("duel", "replace", b"a", "once", ("once", b"a", 1000)), ("compact",), ("restart", True)])
@example([("duel", "committed", b"a", "once", ("once", b"a", 0)), ("kill", "commit", True), ("compact",)])
@example([("half", b"a", True), ("steps", 12), ("commit", b"a", False), ("kill", "committed", True), ("compact",)])
@example([("half", b"a", True), ("commit", b"a", True), ("commit", b"a", True), ("restart", True)])
@example([("repeat", b"a", 1), ("steps", 12), ("kill", "commit", True), ("sleep", 3300), ("compact",)])
@example([("repeat", b"a", 2), ("half", b"a", False), ("compact",), ("restart", True), ("commit", b"a", False)])
@settings(max_examples=100)
@given(st.lists(commands, max_size=30))
def test_whatever_happens_each_version_is_released_as_often_as_it_asks_for(rolls_back, script):
    with TemporaryDirectory() as directory:
        cluster = MemoryCluster()
        worker = Worker(cluster, directory, dataclasses.replace(SPEC, rolls_back_undecided=rolls_back))
        for number, command in enumerate(script):
            perform(cluster, worker, command, number)
        cluster.hook = lambda name: None
        worker.steps(LAST_STEPS)
        worker.index.close()
        check(cluster, rolls_back)


def write(cluster, command, number):
    kind, key, *said = command
    value = b"%d" % number
    if kind == "once":
        schedule(cluster, key, value, delay_ms=said[0])
    elif kind == "repeat":
        schedule(cluster, key, value, schedule=f"@every {said[0]}s")
    elif kind == "half":
        schedule(cluster, key, value, **(CHECK if said[0] else {}))
    elif kind == "commit":
        schedule(cluster, key, value if said[0] else b"", commit="")
    else:
        cluster.write(key, None)


def perform(cluster, worker, command, number):
    if command[0] == "steps":
        worker.steps(command[1])
    elif command[0] == "duel":
        _, step, key, kind, other = command
        if kind == "once":
            schedule(cluster, key, b"%d first" % number, delay_ms=0)
        else:
            schedule(cluster, key, b"%d first" % number)
            schedule(cluster, key, b"", commit="")
        race(cluster, step, lambda: write(cluster, other, number))
        worker.steps(1)
        cluster.hook = lambda name: None
    elif command[0] == "compact":
        cluster.compact()
    elif command[0] == "sleep":
        cluster.now_ms += command[1]
    elif command[0] == "restart":
        worker.index.close()
        worker.restart(loses_index=command[1])
    elif command[0] == "kill":
        kill(cluster, worker, *command[1:])
    else:
        write(cluster, command, number)


def kill(cluster, worker, step, loses_index):
    """Kills the worker at the next step of this name, if there is one soon, and starts the next worker."""

    def hook(name):
        if name == step:
            raise Killed

    cluster.hook = hook
    try:
        worker.steps(3)
    except Killed:
        cluster.hook = lambda name: None
        worker.index.close()
        worker.restart(loses_index=loses_index)
    cluster.hook = lambda name: None


def check(cluster, rolls_back):
    model = HeldModel((written.record for written in cluster.committed()), rolls_back=rolls_back)
    assert Counter(released(*output) for output in cluster.delivered()) == model.released
    assert model.overdue(cluster.now_ms - 3 * SPEC.tick_ms) == []
    for at, output in cluster.released_at:
        assert at >= int(dict(output.headers).get("due-at", b"0"))


def test_the_model_finds_what_is_released_twice_or_against_a_recall():
    cluster = MemoryCluster()
    schedule(cluster, b"a", b"1", delay_ms=0)
    cluster.write(b"a", None)
    schedule(cluster, b"a", None, released_offset=0)
    with pytest.raises(AssertionError, match="twice, or after its recall"):
        HeldModel(one.record for one in cluster.committed())
