"""The comparison of replicas by their files: where segments end does not matter, a single byte does."""

from pathlib import Path

import pytest

from tests.cluster.replica_bytes import differences


def batch(base_offset: int, count: int, payload: bytes = b"records", epoch: int = 0) -> bytes:
    length = 4 + 1 + 4 + 2 + 4 + len(payload)
    header = base_offset.to_bytes(8, "big") + length.to_bytes(4, "big") + epoch.to_bytes(4, "big") + b"\x02crc."
    return header + b"\0\0" + (count - 1).to_bytes(4, "big") + payload


def copy(path: Path, *segments: bytes) -> Path:
    path.mkdir()
    for number, data in enumerate(segments):
        (path / f"{number:020}.log").write_bytes(data)
    return path


def test_copies_with_other_segment_boundaries_are_the_same(tmp_path: Path) -> None:
    one, two, three = batch(0, 2), batch(2, 1), batch(3, 5)
    copies = {1: copy(tmp_path / "a", one + two + three), 2: copy(tmp_path / "b", one, two + three)}
    assert differences(copies, 8) == []


@pytest.mark.parametrize(
    "other",
    [batch(2, 1, b"recordz"), batch(2, 1, epoch=1), batch(2, 2)],
    ids=["one byte", "the epoch", "the number of records"],
)
def test_a_batch_that_differs_is_found(tmp_path: Path, other: bytes) -> None:
    copies = {1: copy(tmp_path / "a", batch(0, 2) + batch(2, 1)), 2: copy(tmp_path / "b", batch(0, 2) + other)}
    [difference] = differences(copies, 4)
    assert "broker 2: 2 to" in difference


def test_what_lies_past_the_high_watermark_may_differ(tmp_path: Path) -> None:
    copies = {1: copy(tmp_path / "a", batch(0, 2) + batch(2, 1)), 2: copy(tmp_path / "b", batch(0, 2) + batch(2, 9))}
    assert differences(copies, 2) == []


def test_copies_that_all_end_too_early_are_found(tmp_path: Path) -> None:
    copies = {1: copy(tmp_path / "a", batch(0, 2)), 2: copy(tmp_path / "b", batch(0, 2))}
    assert len(differences(copies, 3)) == 2


def test_a_copy_that_is_empty_is_found(tmp_path: Path) -> None:
    copies = {1: copy(tmp_path / "a", batch(0, 2)), 2: copy(tmp_path / "b")}
    assert differences(copies, 2) == ["the copies differ: broker 1: 0 to 1 of epoch 0, 34 bytes, broker 2: nothing"]
