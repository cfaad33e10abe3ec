"""``skep replay``: archived records back in a topic, each once, whatever is killed and whenever."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from skep.client.archive.archive_folder import Archive, ArchiveError
from skep.client.archive.archiver import archive_topic
from skep.client.archive.replay import ReplayResult, Selection, replay
from skep.client.archive.replay_progress import ReplayProgress
from skep.client.cluster_client import ClusterClient
from skep.client.produce.producer import Producer as ColumnProducer
from skep.testing import EmbeddedBroker
from tests.scenario.archive_topics import (
    DAY_MS,
    FIRST_MS,
    SOURCES,
    Killed,
    create,
    done,
    fill,
    in_log,
    same_records,
    skep,
)
from tests.waiting import wait_until


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


def test_a_replay_is_the_topic_again(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic, target = create(admin), create(admin)
    fill(bootstrap, topic, 1000)
    done("archive", topic, "--to", tmp_path)
    assert "Replayed 1,000 records" in done("replay", tmp_path, "--to", target)
    expected = in_log(bootstrap, topic)
    assert same_records(expected, in_log(bootstrap, target), without=("offset",))
    assert "Nothing to replay" in done("replay", tmp_path, "--to", target)
    assert in_log(bootstrap, target).num_rows == 1000
    fill(bootstrap, topic, 100, first=1000)
    done("archive", topic, "--to", tmp_path)
    assert "Replayed 100 records" in done("replay", tmp_path, "--to", target)
    assert same_records(in_log(bootstrap, topic), in_log(bootstrap, target), without=("offset",))
    assert "Replayed 1,100 records" in done("replay", tmp_path, "--to", target, "--name", f"{target}-again")


def test_a_replay_can_be_a_part_of_the_archive(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic = create(admin)
    fill(bootstrap, topic, 300)
    done("archive", topic, "--to", tmp_path)
    records = in_log(bootstrap, topic).to_pylist()

    def replayed(*options: object) -> list[Any]:
        target = create(admin)
        done("replay", tmp_path, "--to", target, *options)
        return [(row["partition"], row["value"], row["timestamp"]) for row in in_log(bootstrap, target).to_pylist()]

    def expected(condition: Any) -> list[Any]:
        return [(row["partition"], row["value"], row["timestamp"]) for row in records if condition(row)]

    first = lambda row: row["timestamp"].timestamp() * 1000 - FIRST_MS  # noqa: E731
    assert replayed("--partition", 1) == expected(lambda row: row["partition"] == 1)
    assert replayed("--from-offset", 20, "--until-offset", 90) == expected(lambda row: 20 <= row["offset"] < 90)
    by_day = replayed("--from", "2026-02-01T00:00:00Z", "--until", "2026-02-02T00:00:00Z")
    assert by_day == expected(lambda row: DAY_MS <= first(row) < 2 * DAY_MS)
    assert 0 < len(by_day) < 300
    assert replayed("--from", "2026-03-01T00:00:00Z") == []


def test_a_target_with_fewer_partitions_is_refused_unless_keys_may_decide(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic, target = create(admin, 4), create(admin, 2)
    fill(bootstrap, topic, 400, partitions=4)
    done("archive", topic, "--to", tmp_path)
    result = skep("replay", tmp_path, "--to", target)
    assert result.exit_code == 1
    assert "--repartition" in str(result.exception)
    assert in_log(bootstrap, target).num_rows == 0
    done("replay", tmp_path, "--to", target, "--repartition")
    assert "Nothing to replay" in done("replay", tmp_path, "--to", target, "--repartition")
    rows = in_log(bootstrap, target).to_pylist()
    assert sorted(str(row["value"]) for row in rows) == sorted(
        str(v) for v in in_log(bootstrap, topic)["value"].to_pylist()
    )
    places: dict[bytes, set[int]] = {}
    for row in rows:
        places.setdefault(row["key"], set()).add(row["partition"])
    assert all(len(found) == 1 for key, found in places.items() if key is not None)


def test_a_topic_that_gives_records_its_own_time_is_refused(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic, target = create(admin), create(admin, message_timestamp_type="LogAppendTime")
    fill(bootstrap, topic, 10)
    done("archive", topic, "--to", tmp_path)
    assert "LogAppendTime" in str(skep("replay", tmp_path, "--to", target).exception)


def test_a_record_that_the_target_does_not_take_is_named(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topic, target = create(admin, 1), create(admin, 1, max_message_bytes="2000")
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for size in (10, 10, os.urandom(5000), 10):
        producer.produce(topic, b"x" * size if isinstance(size, int) else size)
    producer.flush(30)
    done("archive", topic, "--to", tmp_path)
    result = skep("replay", tmp_path, "--to", target)
    assert result.exit_code == 1
    assert "the record at offset 2 of archived partition 0" in str(result.exception)
    assert in_log(bootstrap, target).num_rows == 0


def test_a_replay_that_is_ended_at_every_request_goes_on_and_each_record_is_there_once(
    bootstrap: str, admin: AdminClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(admin)
    fill(bootstrap, topic, 400)
    done("archive", topic, "--to", tmp_path)
    archive = Archive.open(tmp_path / f"topic={topic}")
    expected = in_log(bootstrap, topic)
    monkeypatch.setattr("skep.client.archive.replay._abort", lambda producer, error: None)
    asked = ClusterClient.ask_coordinator
    stop, ended = 0, True
    while ended:
        stop += 1
        target = create(admin)
        count = 0

        def stopping(self: ClusterClient, *arguments: Any, at: int = stop) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise Killed
            response = asked(self, *arguments)
            count += 1
            if count == at:
                raise Killed
            return response

        monkeypatch.setattr(ClusterClient, "ask_coordinator", stopping)
        ended = False
        try:
            with ClusterClient(bootstrap) as cluster:
                replay(cluster, archive, target, name=f"{target}-replay", transaction_bytes=1)
        except Killed:
            ended = True
        monkeypatch.setattr(ClusterClient, "ask_coordinator", asked)
        with ClusterClient(bootstrap) as cluster:
            replay(cluster, archive, target, name=f"{target}-replay", transaction_bytes=1)
        assert same_records(expected, in_log(bootstrap, target), without=("offset",)), f"ended at {stop}"
    assert stop > 10


def test_a_replay_that_is_killed_goes_on_and_each_record_is_there_once(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic, target = create(admin), create(admin)
    fill(bootstrap, topic, 2000)
    with ClusterClient(bootstrap) as cluster:
        # In many small files, hence in many transactions below.
        for until in range(FIRST_MS, FIRST_MS + 2000, 50):
            archive_topic(cluster, topic, tmp_path, until_ms=until)
        archive_topic(cluster, topic, tmp_path)
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from skep.client.archive.archive_folder import Archive\nfrom skep.client.cluster_client import ClusterClient\n"
        "from skep.client.archive.replay import replay\n"
        "bootstrap, folder, target = sys.argv[1:]\n"
        "replay(ClusterClient(bootstrap), Archive.open(Path(folder)), target, name=target, transaction_bytes=1)\n"
    )
    command = [sys.executable, "-c", script, bootstrap, str(tmp_path / f"topic={topic}"), target]
    kills = 0
    for rows in (1, 300, 700, 2000):
        running = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": SOURCES})
        wait_until(lambda r=running, n=rows: r.poll() is not None or in_log(bootstrap, target).num_rows >= n, "rows")
        running.kill()
        kills += running.wait(30) == -signal.SIGKILL
    assert kills > 0
    with ClusterClient(bootstrap) as cluster:
        replay(cluster, Archive.open(tmp_path / f"topic={topic}"), target, name=target)
    assert same_records(in_log(bootstrap, topic), in_log(bootstrap, target), without=("offset",))


def test_a_replay_of_few_of_many_records_ends_its_transactions_in_time_and_moves_on(
    bootstrap: str, admin: AdminClient, tmp_path: Path, cluster: ClusterClient
) -> None:
    topic, target = create(admin), create(admin)
    fill(bootstrap, topic, 400)
    with ClusterClient(bootstrap) as archiving:
        # In many files, of which only the first have records that are wanted.
        for until in range(FIRST_MS, FIRST_MS + 2 * DAY_MS, DAY_MS // 8):
            archive_topic(archiving, topic, tmp_path, until_ms=until)
        archive_topic(archiving, topic, tmp_path)
    archive = Archive.open(tmp_path / f"topic={topic}")
    wanted = Selection(until_ms=FIRST_MS + 20)
    expected = in_log(bootstrap, topic).filter(
        pc.less(pc.cast(in_log(bootstrap, topic)["timestamp"], pa.int64()), (FIRST_MS + 20) * 1000)
    )

    def few(progress: Any = lambda done, total: None) -> ReplayResult:
        return replay(cluster, archive, target, name=target, selection=wanted, transaction_seconds=0, progress=progress)

    steps = 0

    def killed(done_offsets: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if done_offsets == total:
            raise Killed

    with pytest.raises(Killed):
        few(killed)
    assert steps > 2
    assert same_records(expected, in_log(bootstrap, target), without=("offset",))
    # All of it was passed, not only what was wanted.
    again = few()
    assert (again.records, again.transactions) == (0, 0)
    assert set(again.resumed) == {0, 1}


def test_a_name_is_refused_for_another_replay_and_for_a_group_of_readers(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic, other, target = create(admin), create(admin), create(admin)
    for one in (topic, other):
        fill(bootstrap, one, 100)
        done("archive", one, "--to", tmp_path)
    replay_first = ("replay", tmp_path, "--topic", topic, "--to", target, "--name", f"{target}-name")
    done(*replay_first, "--partition", 0)
    for arguments in (
        replay_first,
        (*replay_first, "--partition", 1),
        (*replay_first, "--partition", 0, "--until-offset", 10),
        (*replay_first, "--partition", 0, "--from", "2026-01-01T00:00:00Z"),
        (*replay_first, "--partition", 0, "--repartition"),
        (*replay_first[:2], "--topic", other, *replay_first[4:], "--partition", 0),
    ):
        result = skep(*arguments)
        assert (result.exit_code, "another --name" in str(result.exception)) == (1, True), arguments
    assert "Nothing to replay" in done(*replay_first, "--partition", 0, "--partition", 0)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{target}-readers", "log_level": 0})
    reader.commit(offsets=[TopicPartition(target, 1, 5)], asynchronous=False)
    result = skep("replay", tmp_path, "--topic", topic, "--to", target, "--name", f"{target}-readers")
    assert "that are not of this replay" in str(result.exception)
    assert reader.committed([TopicPartition(target, 1)], timeout=30)[0].offset == 5
    reader.close()
    assert in_log(bootstrap, target).num_rows == 50


def test_the_progress_of_hundreds_of_partitions_is_kept_for_one_and_found_after_it_became_several(
    bootstrap: str, admin: AdminClient, cluster: ClusterClient
) -> None:
    target, count = create(admin, 1), 450
    name = f"{target}-replay"
    far = {partition: (1 << 40) + partition for partition in range(count)}

    def commit(count: int, positions: dict[int, int], touched: list[int]) -> None:
        progress = ReplayProgress(cluster, name, target, count, ["it"])
        with ColumnProducer(cluster, transactional_id=name) as producer:
            producer.begin()
            progress.commit(producer.identity, positions, touched)
            progress.end(producer.identity, until_visible=True)

    commit(1, far, list(far))
    assert ReplayProgress(cluster, name, target, 1, ["it"]).read(far) == far
    admin.create_partitions([NewPartitions(target, 3)])[target].result(30)
    further = far | {5: 1 << 50, 449: 1 << 50}
    commit(3, further, [5, 449])
    wait_until(lambda: ReplayProgress(cluster, name, target, 3, ["it"]).read(far) == further, "the further ones")


def test_a_day_that_was_deleted_from_the_archive_is_not_passed_over_in_silence(
    bootstrap: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic, target = create(admin), create(admin)
    fill(bootstrap, topic, 100)
    done("archive", topic, "--to", tmp_path)
    shutil.rmtree(tmp_path / f"topic={topic}" / "date=2026-02-01")
    result = skep("replay", tmp_path, "--to", target)
    assert result.exit_code == 1
    assert "date=2026-02-01 has 0 of the 1 files that were archived of partition 0" in str(result.exception)
    assert in_log(bootstrap, target).num_rows == 0
    done("replay", tmp_path, "--to", target, "--from", "2026-02-02T00:00:00Z", "--partition", 0)
    done("replay", tmp_path, "--to", target, "--until", "2026-02-01T00:00:00Z", "--partition", 1)
    rest = skep("replay", tmp_path, "--to", create(admin), "--allow-gaps")
    assert rest.exit_code == 0
    assert "date=2026-02-01 has 0 of the 1 files" in rest.stderr


def test_of_two_replays_of_one_name_the_second_goes_on_and_the_first_says_so(
    bootstrap: str, admin: AdminClient, tmp_path: Path, cluster: ClusterClient
) -> None:
    topic, target = create(admin), create(admin)
    fill(bootstrap, topic, 400)
    done("archive", topic, "--to", tmp_path)
    archive = Archive.open(tmp_path / f"topic={topic}")
    has_begun = False

    def second(done_offsets: int, total: int) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            with ClusterClient(bootstrap) as another:
                replay(another, archive, target, name=f"{target}-replay")

    with pytest.raises(ArchiveError, match="another replay with this name"):
        replay(cluster, archive, target, name=f"{target}-replay", transaction_bytes=1, progress=second)
    assert same_records(in_log(bootstrap, topic), in_log(bootstrap, target), without=("offset",))


def test_what_is_asked_wrongly_is_said_in_one_line(bootstrap: str, admin: AdminClient, tmp_path: Path) -> None:
    topics = [create(admin), create(admin)]
    for topic in topics:
        fill(bootstrap, topic, 2)
        done("archive", topic, "--to", tmp_path)
    target = create(admin)
    for arguments, words in (
        (("archive", "missing", "--to", tmp_path), "missing"),
        (("archive", topics[0], "--to", "s3://bucket/lake"), "mount"),
        (("replay", tmp_path, "--to", target), "--topic"),
        (("replay", tmp_path / "none", "--to", target), "there is no archive in"),
        (("replay", tmp_path, "--topic", "other", "--to", target), "is no archive of a topic"),
        (("replay", tmp_path, "--topic", topics[0], "--to", target, "-p", 9), "no partition 9"),
    ):
        result = skep(*arguments)
        assert result.exit_code in (1, 2), arguments
        assert words in str(result.exception), arguments
        assert "\n" not in str(result.exception), arguments
