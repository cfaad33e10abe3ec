import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from skep.cli.dump import file_inspection
from skep.cli.failures import CommandError, UsageError
from skep.cli.main import app
from skep.records.builder import NewRecord, build_batch
from skep.records.compression import Codec

START_MS = 1_700_000_000_000


def batch_of(base_offset: int, count: int, codec: int = Codec.NONE) -> bytes:
    records = [
        NewRecord(b"key-%d" % n, b"value-%d" % n, START_MS + n, [("h", b"x")])
        for n in range(base_offset, base_offset + count)
    ]
    return build_batch(records, base_offset=base_offset, codec=codec)


class Partition:
    """A directory with one segment of three batches, [10,19] [20,29] [30,39], and true indexes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        batches = [batch_of(10, 10), batch_of(20, 10, Codec.ZSTD), batch_of(30, 10)]
        self.positions = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
        self.log = directory / f"{10:020}.log"
        self.log.write_bytes(b"".join(batches))
        self.index = self.log.with_suffix(".index")
        self.time_index = self.log.with_suffix(".timeindex")
        self.write_index((19, self.positions[1]), (29, self.positions[2]))
        self.write_time_index((START_MS + 29, 19), (START_MS + 39, 29))
        self.checkpoint = directory / "leader-epoch-checkpoint"
        self.checkpoint.write_text("0\n1\n0 10\n")

    def write_index(self, *entries: tuple[int, int]) -> None:
        self.index.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))

    def write_time_index(self, *entries: tuple[int, int]) -> None:
        self.time_index.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))

    def flip(self, position: int) -> None:
        data = bytearray(self.log.read_bytes())
        data[position] ^= 1
        self.log.write_bytes(data)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path)


def dump(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["dump", *map(str, arguments)])


def objects(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def damages_of(partition: Partition) -> list[tuple[str, int]]:
    result = dump(partition.directory, "--json")
    found = [(Path(str(o["file"])).suffix, int(str(o["position"]))) for o in objects(result) if o["type"] == "damage"]
    assert isinstance(result.exception, CommandError) == bool(found)
    return found


def test_a_whole_directory_has_no_damages(partition: Partition) -> None:
    result = dump(partition.directory, "--json")
    assert result.exit_code == 0
    segment, epoch = objects(result)
    assert (segment["batches"], segment["records"]) == (3, 30)
    assert (segment["first_offset"], segment["last_offset"]) == (10, 39)
    assert (segment["min_timestamp"], segment["max_timestamp"]) == (START_MS + 10, START_MS + 39)
    assert (epoch["epoch"], epoch["start_offset"]) == (0, 10)


def test_batches_are_shown_with_their_place_and_codec(partition: Partition) -> None:
    shown = objects(dump(partition.log, "--json"))
    assert [(o["base_offset"], o["last_offset"], o["position"], o["codec"]) for o in shown] == [
        (10, 19, partition.positions[0], "none"),
        (20, 29, partition.positions[1], "zstd"),
        (30, 39, partition.positions[2], "none"),
    ]


def test_records_are_unpacked_when_asked_for(partition: Partition) -> None:
    records = [o for o in objects(dump(partition.log, "--records", "--json")) if o["type"] == "record"]
    assert [o["offset"] for o in records] == list(range(10, 40))
    assert records[15] == {
        "type": "record",
        "file": str(partition.log),
        "offset": 25,
        "timestamp": START_MS + 25,
        "key": "key-25",
        "value": "value-25",
        "headers": [{"key": "h", "value": "x"}],
    }


def test_people_get_columns(partition: Partition) -> None:
    lines = dump(partition.log).stdout.splitlines()
    assert lines[1].split()[:5] == ["offsets", "records", "position", "bytes", "codec"]
    assert lines[2].split()[:3] == ["10-19", "10", "0"]
    assert lines[2].endswith("ok")


def test_control_characters_in_records_do_not_reach_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(build_batch([NewRecord(None, b"\x1b[2J", START_MS)]))
    assert "\x1b" not in dump(log, "--records").stdout


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_flipped_bit_is_found_in_its_batch_and_the_others_are_read(partition: Partition, number: int) -> None:
    partition.flip(partition.positions[number] + 70)
    assert damages_of(partition) == [(".log", partition.positions[number])]
    shown = objects(dump(partition.log, "--json"))
    assert [o["problem"] is not None for o in shown if o["type"] == "batch"] == [n == number for n in range(3)]


@pytest.mark.parametrize("kept", [1, 60, 61, 100])
def test_a_torn_tail_is_found(partition: Partition, kept: int) -> None:
    whole = partition.log.read_bytes()
    partition.log.write_bytes(whole[: partition.positions[2] + kept])
    assert damages_of(partition) == [(".log", partition.positions[2])]


def test_bytes_that_are_no_batch_end_the_reading_where_they_begin(partition: Partition) -> None:
    partition.log.write_bytes(partition.log.read_bytes()[: partition.positions[1]] + b"x" * 500)
    assert damages_of(partition) == [(".log", partition.positions[1])]


def test_offsets_that_go_back_are_found(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    first = batch_of(0, 5)
    log.write_bytes(first + batch_of(4, 5))
    [damage] = [found for found in file_inspection.read_log(log) if getattr(found, "problem", None)]
    assert (damage.position, damage.problem) == (len(first), "offset 4 follows offset 4")


def test_a_batch_below_the_offset_in_the_name_is_found(tmp_path: Path) -> None:
    log = tmp_path / f"{7:020}.log"
    log.write_bytes(batch_of(0, 5))
    assert [found.problem for found in file_inspection.read_log(log)] == ["offset 0 follows offset 6"]


def test_an_index_entry_between_batches_is_found(partition: Partition) -> None:
    partition.write_index((19, partition.positions[1] + 1), (29, partition.positions[2]))
    assert damages_of(partition) == [(".index", 0)]


def test_an_index_entry_that_would_skip_records_is_found(partition: Partition) -> None:
    partition.write_index((5, partition.positions[1]), (29, partition.positions[2]))
    assert damages_of(partition) == [(".index", 0)]


def test_an_index_entry_behind_the_log_is_found(partition: Partition) -> None:
    partition.write_index((19, partition.positions[1]), (29, partition.log.stat().st_size))
    assert damages_of(partition) == [(".index", 8)]


def test_index_entries_have_to_grow(partition: Partition) -> None:
    partition.write_index((29, partition.positions[2]), (19, partition.positions[1]))
    assert (".index", 8) in damages_of(partition)


def test_a_time_that_hides_later_records_is_found(partition: Partition) -> None:
    partition.write_time_index((START_MS + 15, 19), (START_MS + 39, 29))
    assert damages_of(partition) == [(".timeindex", 0)]


def test_a_time_index_entry_past_the_log_is_found(partition: Partition) -> None:
    partition.write_time_index((START_MS + 29, 19), (START_MS + 39, 30))
    assert damages_of(partition) == [(".timeindex", 12)]


def test_half_an_index_entry_is_found(partition: Partition) -> None:
    partition.index.write_bytes(partition.index.read_bytes() + b"\x00\x00\x01")
    assert damages_of(partition) == [(".index", 16)]


@pytest.mark.parametrize("zeros", [8, 4096, (1 << 20) + 8, 10_485_760])
def test_the_unused_part_of_an_index_of_kafka_is_no_damage(partition: Partition, zeros: int) -> None:
    partition.index.write_bytes(partition.index.read_bytes() + bytes(zeros))
    assert damages_of(partition) == []
    assert len(file_inspection.read_entries(partition.index)[0]) == 2


def test_after_a_torn_batch_nothing_is_said_about_the_index_entries_behind_it(partition: Partition) -> None:
    partition.log.write_bytes(partition.log.read_bytes()[: partition.positions[1] + 100])
    assert damages_of(partition) == [(".log", partition.positions[1])]


def test_an_index_is_shown_with_absolute_offsets_and_held_against_its_log(partition: Partition) -> None:
    result = dump(partition.index, "--json")
    assert [(o["offset"], o["position"]) for o in objects(result)] == [
        (29, partition.positions[1]),
        (39, partition.positions[2]),
    ]
    partition.write_index((19, 3))
    assert isinstance(dump(partition.index).exception, CommandError)


def test_a_segment_that_overlaps_the_next_is_found(partition: Partition) -> None:
    second = partition.directory / f"{39:020}.log"
    second.write_bytes(batch_of(39, 1))
    assert damages_of(partition) == [(".log", 0)]


@pytest.mark.parametrize("text", ["", "1\n0\n", "0\n2\n0 10\n", "0\n1\nx y\n", "0\n2\n1 10\n0 20\n"])
def test_a_checkpoint_that_is_none_is_found(partition: Partition, text: str) -> None:
    partition.checkpoint.write_text(text)
    assert damages_of(partition) == [("", 0)]


def test_what_is_not_there_or_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "notes.log").touch()
    assert isinstance(dump(tmp_path / f"{0:020}.log").exception, CommandError)
    for refused in (tmp_path / "notes.txt", tmp_path / "notes.log"):
        assert isinstance(dump(refused).exception, UsageError)
