"""``skep archive``: every record once, in order, whatever is killed and whenever."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from skep.client.archive.archive_folder import STATE, Archive, ArchiveError
from skep.client.archive.archive_reader import read_files
from skep.client.archive.archiver import archive_topic
from skep.client.cluster_client import ClusterClient
from skep.testing import EmbeddedBroker
from tests.scenario.archive_topics import (
    DAY_MS,
    FIRST_MS,
    SOURCES,
    Killed,
    create,
    done,
    fill,
    in_archive,
    in_log,
    same_records,
    skep,
)
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def bootstrap(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)
    return broker.bootstrap_servers


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[ClusterClient]:
    with ClusterClient(bootstrap) as client:
        yield client


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def test_every_record_is_archived_in_the_folder_of_its_day(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = create(admin)
    fill(bootstrap, topic, 500)
    summary = json.loads(done("archive", topic, "--to", tmp_path, "--json"))
    assert summary["records"] == 500
    assert [(part["start"], part["end"], part["gaps"]) for part in summary["partitions"]] == [(0, 250, [])] * 2
    assert same_records(in_log(bootstrap, topic), in_archive(tmp_path, topic))
    found = duckdb.sql(
        f"SELECT topic, CAST(date AS VARCHAR), count(*), bool_and(date = CAST(timezone('UTC', timestamp) AS DATE)) "
        f"FROM read_parquet('{tmp_path}/**/*.parquet', hive_partitioning = true) GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    assert [row[:2] for row in found] == [(topic, f"2026-0{day}") for day in ("1-31", "2-01", "2-02")]
    assert sum(row[2] for row in found) == 500
    assert all(row[3] for row in found)


def test_a_second_run_adds_what_is_new_and_a_third_nothing(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = create(admin)
    for first in (0, 100, 100):
        if first == 0 or in_log(bootstrap, topic).num_rows == first:
            fill(bootstrap, topic, 100, first=first)
        done("archive", topic, "--to", tmp_path)
        assert same_records(in_log(bootstrap, topic), in_archive(tmp_path, topic))
    files = set(tmp_path.rglob("*.parquet"))
    assert "Archived 0 records" in done("archive", topic, "--to", tmp_path)
    assert set(tmp_path.rglob("*.parquet")) == files


def test_until_a_moment_leaves_the_rest_for_the_next_run(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = create(admin, 1)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(48):
        producer.produce(topic, b"%d" % number, timestamp=FIRST_MS + number * 3_600_000)
    producer.flush(30)
    done("archive", topic, "--to", tmp_path, "--until", "2026-02-01T00:00:00Z")
    assert [int(value) for value in in_archive(tmp_path, topic)["value"].to_pylist()] == list(range(24))
    done("archive", topic, "--to", tmp_path)
    assert same_records(in_log(bootstrap, topic), in_archive(tmp_path, topic))
    assert "Archived 0 records" in done("archive", topic, "--to", tmp_path, "--until", "2026-02-01T00:00:00Z")


def test_open_and_aborted_transactions_are_not_archived(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = create(admin, 1)

    def open_transaction(name: str, value: bytes) -> Producer:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{name}", "log_level": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        return producer

    open_transaction("a", b"aborted").abort_transaction(30)
    open_transaction("b", b"first").commit_transaction(30)
    still_open = open_transaction("c", b"second")
    open_transaction("d", b"third").commit_transaction(30)
    done("archive", topic, "--to", tmp_path)
    assert in_archive(tmp_path, topic)["value"].to_pylist() == [b"first"]
    still_open.commit_transaction(30)
    wait_until(lambda: in_log(bootstrap, topic).num_rows == 3, "the transaction is seen")
    done("archive", topic, "--to", tmp_path)
    assert in_archive(tmp_path, topic)["value"].to_pylist() == [b"first", b"second", b"third"]


def test_timestamps_outside_the_calendar_have_a_folder_of_their_own(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    configs = {"message_timestamp_after_max_ms": str(1 << 60)}
    topic, target = create(admin, 1, **configs), create(admin, 1, **configs)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(20):
        # Microseconds where milliseconds belong: some year after 50,000.
        producer.produce(topic, b"%d" % number, timestamp=(FIRST_MS + number * DAY_MS) * 1000)
    producer.flush(30)
    done("archive", topic, "--to", tmp_path)
    [file] = tmp_path.rglob("*.parquet")
    assert file.parent.name == "date=__HIVE_DEFAULT_PARTITION__"
    done("replay", tmp_path, "--to", target)
    assert in_log(bootstrap, topic).equals(in_log(bootstrap, target))


def killed_in_process(monkeypatch: pytest.MonkeyPatch, step: int, bootstrap: str, topic: str, lake: Path) -> int:
    """Archives up to a step of the work on the disk: each counts twice, before it is done and after."""
    taken = 0

    def counting(function: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal taken
            taken += 1
            if taken == step:
                raise Killed
            result = function(*arguments, **options)
            taken += 1
            if taken == step:
                raise Killed
            return result

        return counted

    with monkeypatch.context() as patched, ClusterClient(bootstrap) as cluster:
        for name in ("fsync", "replace", "mkdir", "unlink"):
            patched.setattr(os, name, counting(getattr(os, name)))
        with pytest.raises(Killed) if step else nullcontext():
            archive_topic(cluster, topic, lake, piece_bytes=1)
    return taken


def check_killed(lake: Path, topic: str) -> None:
    """What can be seen after a kill is right as far as it goes: no row twice, no file that is not whole."""
    if list(lake.rglob("*.parquet")):
        offsets = in_archive(lake, topic)["offset"].to_pylist()
        assert len(set(offsets)) == len(offsets)
    if (lake / f"topic={topic}" / STATE).exists():
        archive = Archive.open(lake / f"topic={topic}")
        for partition, part in archive.partitions.items():
            batches = read_files(archive.files(partition, part.start, part.end), part.start, part.end, headers=False)
            found = [offset for batch in batches for offset in batch["offset"].to_pylist()]
            assert found == list(range(part.end))


def test_ended_at_every_step_the_archive_is_right_and_the_next_run_ends_the_work(
    bootstrap: str, admin: AdminClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(admin, 1)
    fill(bootstrap, topic, 30, partitions=1, days=2)
    fill(bootstrap, topic, 30, partitions=1, days=2, first=30)
    expected = in_log(bootstrap, topic)
    steps = killed_in_process(monkeypatch, 0, bootstrap, topic, tmp_path / "counted")
    assert steps > 40
    for step in range(1, steps + 1):
        lake = tmp_path / f"ended-{step}"
        killed_in_process(monkeypatch, step, bootstrap, topic, lake)
        check_killed(lake, topic)
        with ClusterClient(bootstrap) as cluster:
            archive_topic(cluster, topic, lake)
        assert same_records(expected, in_archive(lake, topic)), f"step {step}"
        assert not list((lake / f"topic={topic}" / "_skep.tmp").iterdir()), f"step {step}"


def test_the_run_that_ends_the_work_of_a_killed_one_may_be_killed_as_well(
    bootstrap: str, admin: AdminClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(admin, 1)
    fill(bootstrap, topic, 30, partitions=1, days=2)
    expected = in_log(bootstrap, topic)
    steps = killed_in_process(monkeypatch, 0, bootstrap, topic, tmp_path / "counted")
    for step in range(1, steps + 1):
        lake = tmp_path / f"ended-{step}"
        killed_in_process(monkeypatch, step, bootstrap, topic, lake)
        for again in range(1, 6):
            # After so few steps of its own it may have come to its end.
            with suppress(pytest.fail.Exception):
                killed_in_process(monkeypatch, again, bootstrap, topic, lake)
            check_killed(lake, topic)
        with ClusterClient(bootstrap) as cluster:
            archive_topic(cluster, topic, lake)
        assert same_records(expected, in_archive(lake, topic)), f"step {step}"


def test_killed_with_sigkill_at_some_steps_the_next_run_ends_the_work(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic = create(admin, 1)
    fill(bootstrap, topic, 60, partitions=1, days=2)
    for step in (12, 19, 26, 33):
        script = str(Path(__file__).with_name("archive_killed.py"))
        command = [sys.executable, script, str(step), "archive", topic, "--to", str(tmp_path / f"{step}")]
        ran = subprocess.run(command, env=os.environ | {"PYTHONPATH": SOURCES}, capture_output=True, timeout=120)
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        check_killed(tmp_path / f"{step}", topic)
        done("archive", topic, "--to", tmp_path / f"{step}")
        assert same_records(in_log(bootstrap, topic), in_archive(tmp_path / f"{step}", topic)), f"step {step}"


def test_killed_at_random_moments_while_records_come_the_archive_has_each_once(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic = create(admin)
    chance = random.Random(topic)
    command = [sys.executable, "-m", "skep.cli.main", "archive", topic, "--to", str(tmp_path), "--file-mb", "1"]
    kills = 0
    for turn in range(8):
        fill(bootstrap, topic, 4000, first=turn * 4000)
        running = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": SOURCES}, stdout=subprocess.DEVNULL)
        folder = tmp_path / f"topic={topic}"
        wait_until(
            lambda r=running, f=folder: r.poll() is not None or (f / "_skep.lock").exists(), "the run is under way"
        )
        if turn:
            # Somewhere in its work, which the earlier folder does not tell the beginning of.
            time.sleep(chance.uniform(0.3, 1.2))
        running.kill()
        kills += running.wait(30) == -signal.SIGKILL
    assert kills > 0
    done("archive", topic, "--to", tmp_path)
    assert same_records(in_log(bootstrap, topic), in_archive(tmp_path, topic))


def test_a_disk_that_is_full_is_said_in_one_line_and_costs_nothing(
    bootstrap: str, admin: AdminClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(admin)
    fill(bootstrap, topic, 50)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / f"topic={topic}" / "_skep.tmp").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        result = skep("archive", topic, "--to", tmp_path)
    assert (result.exit_code, str(result.exception)) == (1, "No space left on device")
    done("archive", topic, "--to", tmp_path)
    assert same_records(in_log(bootstrap, topic), in_archive(tmp_path, topic))


def test_two_runs_at_once_are_refused(
    bootstrap: str, admin: AdminClient, tmp_path: Path, cluster: ClusterClient
) -> None:
    topic = create(admin)
    fill(bootstrap, topic, 10)
    refused: list[str] = []

    def second(done_offsets: int, total: int) -> None:
        with ClusterClient(bootstrap) as another, pytest.raises(ArchiveError) as error:
            archive_topic(another, topic, tmp_path)
        refused.append(str(error.value))

    archive_topic(cluster, topic, tmp_path, progress=second)
    assert all("another run is archiving" in text for text in refused)
    assert refused
    assert same_records(in_log(bootstrap, topic), in_archive(tmp_path, topic))


def test_a_topic_that_was_made_anew_is_refused(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = create(admin)
    fill(bootstrap, topic, 10)
    done("archive", topic, "--to", tmp_path)
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics, "the topic is gone")
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    result = skep("archive", topic, "--to", tmp_path)
    assert result.exit_code == 1
    assert "it was created again" in str(result.exception)


def test_what_the_log_lost_before_it_was_archived_is_an_error_or_a_gap(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic = create(admin, 2)
    fill(bootstrap, topic, 20, partitions=1)
    done("archive", topic, "--to", tmp_path)
    fill(bootstrap, topic, 20, partitions=1, first=20)
    other = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    other.produce(topic, b"of the other partition", partition=1)
    other.flush(30)
    place = TopicPartition(topic, 0, 30)
    admin.delete_records([place])[place].result(30)
    result = skep("archive", topic, "--to", tmp_path)
    assert result.exit_code == 1
    assert f"offsets 20 to 29 of partition {topic}-0 are lost" in str(result.exception)
    assert in_archive(tmp_path, topic)["value"].to_pylist()[-1] == b"of the other partition"
    summary = json.loads(done("archive", topic, "--to", tmp_path, "--allow-gaps", "--json"))
    assert summary["partitions"][0]["gaps"] == [[20, 30]]
    assert in_archive(tmp_path, topic)["offset"].to_pylist() == [*range(20), *range(30, 40), 0]
    assert Archive.open(tmp_path / f"topic={topic}").missing(0, 10, 50) == [(20, 30), (40, 50)]


def test_a_partition_that_was_empty_or_not_there_at_the_last_run_can_lose_nothing_unnoticed(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic = create(admin, 2)
    fill(bootstrap, topic, 20, partitions=1)
    summary = json.loads(done("archive", topic, "--to", tmp_path, "--json"))
    assert [(part["start"], part["end"]) for part in summary["partitions"]] == [(0, 20), (0, 0)]
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=1 + number % 2)
    producer.flush(30)
    for partition, below in ((1, 4), (2, 10)):
        place = TopicPartition(topic, partition, below)
        admin.delete_records([place])[place].result(30)
    result = skep("archive", topic, "--to", tmp_path)
    assert result.exit_code == 1
    assert f"offsets 0 to 3 of partition {topic}-1 are lost" in str(result.exception)
    assert f"offsets 0 to 9 of partition {topic}-2 are lost" in str(result.exception)
    assert Archive.open(tmp_path / f"topic={topic}").missing(2, 0, 10) == [(0, 10)]
    summary = json.loads(done("archive", topic, "--to", tmp_path, "--allow-gaps", "--json"))
    # The gap is noted also where no record comes after it, so the next run need not be allowed to.
    found = [(part["start"], part["end"], part["gaps"]) for part in summary["partitions"]]
    assert found == [(0, 20, []), (0, 10, [[0, 4]]), (0, 10, [[0, 10]])]
    done("archive", topic, "--to", tmp_path)


def test_the_first_run_begins_where_the_log_begins(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = create(admin, 1)
    fill(bootstrap, topic, 20, partitions=1)
    place = TopicPartition(topic, 0, 15)
    admin.delete_records([place])[place].result(30)
    summary = json.loads(done("archive", topic, "--to", tmp_path, "--json"))
    assert [(part["start"], part["end"], part["gaps"]) for part in summary["partitions"]] == [(15, 20, [])]


def test_a_folder_that_is_damaged_is_named_in_one_line(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = create(admin)
    fill(bootstrap, topic, 10)
    done("archive", topic, "--to", tmp_path)
    state = tmp_path / f"topic={topic}" / STATE
    whole = state.read_bytes()
    for damaged in (b"", b"{", b"[]", b'{"format": 1}', whole[:-20]):
        state.write_bytes(damaged)
        result = skep("archive", topic, "--to", tmp_path)
        assert (result.exit_code, "is damaged" in str(result.exception)) == (1, True), damaged
    state.unlink()
    assert "archive to another folder" in str(skep("archive", topic, "--to", tmp_path).exception)
    state.write_bytes(whole)
    file = next(tmp_path.rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-10])
    result = skep("replay", tmp_path, "--to", create(admin))
    assert result.exit_code == 1
    assert f"{file} cannot be read" in str(result.exception)
