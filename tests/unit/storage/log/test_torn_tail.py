"""What a power cut leaves of writes that were not synced is a torn tail; what it does not explain is damage."""

import uuid

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.ids import Offset, TopicPartition
from skep.records.batch import HEADER_SIZE, read_header, write_header
from skep.records.builder import build_batch
from skep.storage.directory.log_directory import LogDirectory
from skep.storage.log.log import Log
from skep.storage.log.torn_tail import SECTOR_BYTES, is_torn
from tests.manual_clock import ManualClock
from tests.memory_files import MemoryFiles, Survivors

A = TopicPartition("a", 0)
LOG = "/data/a-0/00000000000000000000.log"
SYNCED = TopicConfig(flush_messages=1)


def opened(files: MemoryFiles, boot_id: str = "boot 1", config: TopicConfig = SYNCED) -> tuple[LogDirectory, Log]:
    directory = LogDirectory(files, "/data", ManualClock(), boot_id=boot_id)
    directory.open()
    directory.check_identity("heap", 1)
    directory.losses_settled()
    return directory, directory.log(A, config, uuid.UUID(int=1))


class Scene:
    """A synced log of some batches, and what a broker finds that starts with another tail behind them."""

    def __init__(self, kit, batches: int = 3) -> None:
        self.files = MemoryFiles()
        self.directory, log = opened(self.files)
        for _ in range(batches):
            kit.append(log, size=100)
            log.flush()
        self.count = batches
        self.directory.write_checkpoints()
        self.synced = self.files.read_whole(LOG)

    def batch(self, size: int, base_offset: int | None = None) -> bytes:
        """As the log would have it next; it ends in a zero, the number of the record's headers."""
        batch = build_batch([(None, b"x" * size, -1, ())])
        at = self.count if base_offset is None else base_offset
        return write_header(read_header(batch)._replace(base_offset=Offset(at))) + batch[HEADER_SIZE:]

    def start_with(self, tail: bytes, boot_id: str = "boot 2") -> Log:
        files = self.files
        files.write_atomically(LOG, self.synced + tail)
        files.crash(names=Survivors.ALL, content=Survivors.ALL)
        return opened(files, boot_id)[1]

    def is_torn(self, tail: bytes, boot_id: str = "boot 2") -> bool:
        log = self.start_with(tail, boot_id)
        assert log.log_end_offset == self.count, "the tail is cut in any case"
        assert log.was_synced is not log.lost_data, "a broker that finds damage leaves the ISR"
        return not log.lost_data

    def boundary(self, number: int) -> int:
        """How many bytes of a tail lie before the next sector boundary, or one further on."""
        return -len(self.synced) % SECTOR_BYTES + number * SECTOR_BYTES


@pytest.mark.parametrize("size", [1, 60, 61, 100, 512, 5000, 3 << 20])
def test_zeros_to_the_end_of_the_file_are_a_torn_write_after_a_power_cut(kit, size: int) -> None:
    assert Scene(kit).is_torn(bytes(size))


@pytest.mark.parametrize("size", [61, 100, 512, 5000])
def test_zeros_are_damage_after_a_crash_of_the_process_alone(kit, size: int) -> None:
    assert not Scene(kit).is_torn(bytes(size), boot_id="boot 1")


@pytest.mark.parametrize("sectors", [0, 1, 3])
@pytest.mark.parametrize("more", [0, 700])
def test_a_batch_whose_first_sectors_were_written_is_torn_after_a_power_cut(kit, sectors: int, more: int) -> None:
    """``more`` zeros are those of batches behind it."""
    for boot_id, expected in (("boot 2", True), ("boot 1", False)):
        scene = Scene(kit)
        batch = scene.batch(3000)
        written = batch[: scene.boundary(sectors)]
        assert scene.is_torn(written.ljust(len(batch) + more, b"\0"), boot_id) is expected


def test_a_batch_of_which_a_part_of_the_header_was_written_is_torn(kit) -> None:
    for batches in range(1, 80):
        scene = Scene(kit, batches)
        if 0 < scene.boundary(0) < HEADER_SIZE:
            break
    batch = scene.batch(3000)
    assert scene.is_torn(batch[: scene.boundary(0)].ljust(len(batch), b"\0"))


def test_other_bytes_before_the_zeros_than_a_batch_begins_with_are_damage(kit) -> None:
    scene = Scene(kit)
    before = scene.boundary(1)
    assert not scene.is_torn((b"garbage" * 300)[:before] + bytes(3000))
    scene = Scene(kit)
    elsewhere = scene.batch(3000, base_offset=scene.count + 5)
    assert not scene.is_torn(elsewhere[:before].ljust(4000, b"\0"))


@pytest.mark.parametrize("place", [HEADER_SIZE, 700, 2000])
def test_a_whole_batch_with_wrong_bytes_in_the_middle_is_damage(kit, place: int) -> None:
    for tail in (b"", bytes(2000)):
        scene = Scene(kit)
        batch = bytearray(scene.batch(3000))
        batch[place] ^= 1
        assert not scene.is_torn(bytes(batch) + tail)


def test_zeros_with_a_batch_behind_them_are_damage(kit) -> None:
    scene = Scene(kit)
    batch = scene.batch(3000)
    with_a_hole = batch[: scene.boundary(0)].ljust(scene.boundary(1), b"\0") + batch[scene.boundary(1) :]
    assert not scene.is_torn(with_a_hole)
    scene = Scene(kit)
    assert not scene.is_torn(bytes(len(batch)) + scene.batch(300))


def test_a_whole_batch_keeps_the_zero_that_it_ends_in(kit) -> None:
    for tail in (b"", bytes(1000)):
        scene = Scene(kit)
        batch = scene.batch(300)
        assert batch.endswith(b"\0")
        log = scene.start_with(batch + tail)
        assert (log.log_end_offset, log.lost_data, log.was_synced) == (scene.count + 1, False, True)


def test_a_wrong_byte_is_damage_also_where_only_the_last_zero_of_the_batch_lies_in_another_sector(kit) -> None:
    scene = Scene(kit)
    batch = scene.batch(3000)
    size = scene.boundary(3) + 1
    batch = scene.batch(3000 - (len(batch) - size))
    assert len(batch) == size
    # The last sector is lost, and with it nothing: the zero is there anyway.
    assert scene.start_with(batch[:-1] + bytes(800)).log_end_offset == scene.count + 1
    scene = Scene(kit)
    wrong = bytearray(batch)
    wrong[700] ^= 1
    assert not scene.is_torn(bytes(wrong))
    assert not Scene(kit).is_torn(bytes(wrong) + bytes(800))


def test_zeros_below_the_recovery_point_are_damage(kit) -> None:
    scene = Scene(kit)
    size = len(scene.synced)
    scene.synced = scene.synced[: size - size // scene.count]
    log = scene.start_with(bytes(size - len(scene.synced)))
    assert (log.log_end_offset, log.lost_data, log.was_synced) == (scene.count - 1, True, False)


def test_zeros_in_a_segment_that_is_not_the_last_are_damage(kit) -> None:
    files, config = MemoryFiles(), TopicConfig(flush_messages=1, segment_bytes=500)
    _, log = opened(files, config=config)
    while len(log.segments) < 2:
        kit.append(log, size=100)
        log.flush()
    whole = files.read_whole(LOG)
    files.write_atomically(LOG, whole[:-200] + bytes(200))
    files.crash(names=Survivors.ALL, content=Survivors.ALL)
    _, log = opened(files, "boot 2", config)
    assert (log.lost_data, log.was_synced) == (True, False)


def test_a_torn_batch_may_follow_a_gap_where_compaction_leaves_gaps() -> None:
    batch = build_batch([(None, b"x" * 3000, -1, ())])
    batch = write_header(read_header(batch)._replace(base_offset=Offset(20))) + batch[HEADER_SIZE:]
    files = MemoryFiles()
    files.make_directory("/data")
    file = files.open("/data/log", create=True)
    file.append([batch[:1024].ljust(5000, b"\0")])
    for gaps_below, expected in ((0, False), (19, False), (20, True)):
        found = is_torn(
            file,
            0,
            base_offset=Offset(0),
            next_offset=Offset(10),
            gaps_below=Offset(gaps_below),
            lost_power=True,
        )
        assert found is expected
