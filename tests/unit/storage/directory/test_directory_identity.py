"""Whose a data directory is, what it may have lost, and the high watermarks that it keeps."""

import uuid

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import StartupError
from skep.base.ids import LeaderEpoch, Offset, TopicPartition
from skep.records.batch import read_header
from skep.records.builder import build_batch
from skep.storage.directory.log_directory import LogDirectory
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles, Survivors

CONFIG = TopicConfig(segment_bytes=300)
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def opened(files: MemoryFiles, boot_id: str = "boot 1") -> LogDirectory:
    directory = LogDirectory(files, "/data", ManualClock(), boot_id=boot_id)
    directory.open()
    return directory


def log_of(directory: LogDirectory, partition: TopicPartition = A):
    return directory.log(partition, CONFIG, uuid.UUID(int=1))


def killed(files: MemoryFiles) -> None:
    files.crash(names=Survivors.ALL, content=Survivors.ALL)


def test_a_directory_belongs_to_one_broker_of_one_cluster() -> None:
    files = MemoryFiles()
    directory = opened(files)
    directory.check_identity("heap-1", 3)
    text = files.read_whole("/data/meta.properties").decode()
    lines = text.splitlines()
    assert lines[:3] == ["version=1", "cluster.id=heap-1", "node.id=3"]
    assert lines[3].startswith("directory.id=")
    directory.check_identity("heap-1", 3)
    assert files.read_whole("/data/meta.properties").decode() == text
    for cluster_id, node_id in [("heap-2", 3), ("heap-1", 4)]:
        with pytest.raises(StartupError) as raised:
            directory.check_identity(cluster_id, node_id)
        assert str(raised.value) == (
            f"/data: belongs to broker 3 of cluster heap-1, this is broker {node_id} of cluster {cluster_id}"
        )


def test_the_file_as_kafka_writes_it_is_understood() -> None:
    for text in (
        "#\n#Sat\nnode.id=3\ndirectory.id=bad\nversion=1\ncluster.id=a\\=b\n",
        "broker.id=3\ncluster.id=a=b\n",
    ):
        files = MemoryFiles()
        directory = opened(files)
        files.write_atomically("/data/meta.properties", text.encode())
        directory.check_identity("a=b", 3)
        with pytest.raises(StartupError):
            directory.check_identity("a=b", 1)


def test_a_damaged_file_is_written_anew() -> None:
    files = MemoryFiles()
    directory = opened(files)
    for text in (b"", b"\xff\xfe", b"node.id=x\ncluster.id=c\n"):
        files.write_atomically("/data/meta.properties", text)
        directory.check_identity("heap", 3)
        with pytest.raises(StartupError):
            directory.check_identity("heap", 4)


def test_a_new_directory_may_have_lost_data_until_that_is_settled(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    assert directory.may_have_lost_data
    directory.check_identity("heap", 1)
    directory.close()
    directory = opened(files)
    assert directory.may_have_lost_data, "stopped before anybody was told"
    directory.losses_settled()
    assert not directory.may_have_lost_data
    killed(files)
    assert not opened(files).may_have_lost_data


@pytest.mark.parametrize(
    ("is_clean", "boot_id", "expected"),
    [(True, "boot 1", False), (True, "boot 2", False), (False, "boot 1", False), (False, "boot 2", True)],
)
def test_only_a_machine_that_went_down_unasked_loses_data(kit, is_clean: bool, boot_id: str, expected: bool) -> None:
    files = MemoryFiles()
    directory = opened(files)
    directory.check_identity("heap", 1)
    directory.losses_settled()
    kit.append(log_of(directory))
    if is_clean:
        directory.close()
    killed(files)
    directory = opened(files, boot_id)
    assert directory.may_have_lost_data is expected
    killed(files)
    assert opened(files, boot_id).may_have_lost_data is expected, "until it is settled"


def test_a_directory_from_before_goes_on_working(kit) -> None:
    for is_clean in (True, False):
        files = MemoryFiles()
        directory = opened(files)
        kit.append(log_of(directory))
        directory.close()
        files.remove("/data/boot-id")
        files.remove("/data/replication-offset-checkpoint")
        if not is_clean:
            files.remove("/data/.kafka_cleanshutdown")
        directory = opened(files)
        assert directory.may_have_lost_data is not is_clean
        assert directory.high_watermarks == {}
        directory.check_identity("heap", 1)
        log = log_of(directory)
        assert (log.log_end_offset, log.lost_data) == (1, False)


def test_the_run_of_the_machine_is_known_without_being_told() -> None:
    files = MemoryFiles()
    for _ in range(2):
        directory = LogDirectory(files, "/data", ManualClock())
        directory.open()
        directory.check_identity("heap", 1)
        directory.losses_settled()
        killed(files)
    directory = LogDirectory(files, "/data", ManualClock())
    directory.open()
    assert not directory.may_have_lost_data


def test_high_watermarks_are_kept(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    for partition in (A, B):
        for _ in range(5):
            kit.append(log_of(directory, partition))
    directory.write_checkpoints({A: Offset(2), B: Offset(3), TopicPartition("never written", 0): Offset(0)})
    directory.write_checkpoints({A: Offset(4)})
    assert files.read_whole("/data/replication-offset-checkpoint") == b"0\n2\na 0 4\nb 0 3\n"
    directory.write_checkpoints()
    killed(files)
    directory = opened(files)
    assert directory.high_watermarks == {A: 4, B: 3}
    log_of(directory)
    log_of(directory, B)
    directory.close({A: Offset(5)})
    assert opened(files).high_watermarks == {A: 5, B: 3}


def test_a_damaged_file_of_high_watermarks_means_that_none_is_known(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    kit.append(log_of(directory))
    directory.close({A: Offset(1)})
    files.write_atomically("/data/replication-offset-checkpoint", b"0\n7\n")
    assert opened(files).high_watermarks == {}


def test_no_checkpoint_is_past_the_end_of_a_truncated_log(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    log = log_of(directory)
    for _ in range(9):
        kit.append(log)
    log.flush()
    directory.note_cleaned(A, Offset(6))
    directory.write_checkpoints({A: Offset(8)})
    log.truncate_to(Offset(4))
    assert directory.high_watermarks == {A: 4}
    for name in ("recovery-point", "replication", "cleaner"):
        assert files.read_whole(f"/data/{name}-offset-checkpoint") == b"0\n1\na 0 4\n", name
    steps = files.steps
    kit.append(log)
    log.truncate_to(Offset(4))
    assert files.steps - steps < 10, "what nobody was promised needs no checkpoint"


def test_what_a_log_has_given_up_is_removed_when_there_is_time(kit) -> None:
    files = MemoryFiles()
    directory = opened(files)
    log = log_of(directory)
    for _ in range(20):
        kit.append(log)
    log.truncate_to(Offset(2))
    assert [name for name in files.list_directory("/data/a-0") if name.endswith(".deleted")]
    directory.leftovers()()
    assert not [name for name in files.list_directory("/data/a-0") if name.endswith(".deleted")]
    log.start_over_at(Offset(30))
    assert [name for name in files.list_directory("/data") if name.endswith("-delete")]
    directory.leftovers()()
    assert not [name for name in files.list_directory("/data") if name.endswith("-delete")]
    assert kit.append(log).base_offset == 30


def test_a_log_that_has_lost_data_says_so(kit) -> None:
    def damaged(*, is_clean: bool = False, torn: bool = False, lost: str = "", flipped: bool = False) -> bool:
        files = MemoryFiles()
        directory = opened(files)
        directory.check_identity("heap", 1)
        directory.losses_settled()
        log = log_of(directory)
        for _ in range(9):
            kit.append(log)
        log.flush()
        kit.append(log)
        segments = [segment.file.path for segment in log.segments]
        if is_clean:
            directory.close()
        else:
            directory.write_checkpoints()
            killed(files)
        data = bytearray(files.read_whole(segments[-1]))
        if torn:
            del data[-7:]
        if flipped:
            data[-1] ^= 1
        files.write_atomically(segments[-1], bytes(data))
        if lost == "segment":
            files.remove(segments[1])
            files.remove("/data/recovery-point-offset-checkpoint")
        if lost == "directory":
            files.remove_tree("/data/a-0")
        directory = opened(files)
        assert not directory.may_have_lost_data
        log = log_of(directory)
        kit.append(log)
        killed(files)
        assert opened(files).may_have_lost_data is log.lost_data, "as long as nobody has dealt with it"
        return log.lost_data

    assert not damaged()
    assert not damaged(is_clean=True)
    assert not damaged(torn=True), "a batch that was being written, and so never acknowledged"
    assert damaged(flipped=True)
    assert damaged(is_clean=True, torn=True)
    assert damaged(lost="segment")
    assert damaged(lost="directory")
    assert damaged(lost="directory", is_clean=True)


def six_batches(directory):
    """A log of several segments."""
    log = log_of(directory)
    batch = build_batch([(None, b"x" * 100, -1, ())])
    for _ in range(6):
        log.append(batch, read_header(batch), LeaderEpoch(2), 0)
    return log


def test_a_log_that_lost_its_beginning_is_noticed() -> None:
    files = MemoryFiles()
    directory = opened(files)
    log = six_batches(directory)
    log.flush()
    assert len(log.segments) > 2
    directory.close()
    files.remove("/data/a-0/00000000000000000000.log")
    log = log_of(opened(files))
    assert log.lost_data
    assert log.log_start_offset > 0


def test_a_log_whose_beginning_was_deleted_has_lost_nothing() -> None:
    files = MemoryFiles()
    directory = opened(files)
    log = six_batches(directory)
    removal = log.detach(log.segments[:1], 0)
    removal.mark()
    removal.remove()
    log.flush()
    directory.close()
    log = log_of(opened(files))
    assert not log.lost_data
    assert log.log_start_offset > 0
