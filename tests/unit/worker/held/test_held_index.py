"""The index of a held partition: against a dictionary, and with files that are damaged or of somebody else."""

import os
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.worker.held.held_index import (
    Entry,
    HeldIndex,
    Position,
    decode_headers,
    encode_headers,
    remove_index,
)
from skep.worker.held.plan import Kind

headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)


def entry(offset, key=b"k", due_ms=0, value=b"v"):
    return Entry(offset, key, due_ms, Kind.DELIVER, 7, (("a", b"b"), ("c", None)), value)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "index")


@given(headers)
def test_headers_are_read_as_they_were_written(given_headers):
    assert decode_headers(encode_headers(given_headers)) == given_headers


keys = st.sampled_from([b"", b"a", b"b", b"c"])
changes = st.dictionaries(
    keys, st.none() | st.tuples(st.none() | st.integers(-5, 20), headers, st.none() | st.binary())
)
commands = st.one_of(
    st.tuples(st.just("apply"), changes),
    st.tuples(st.just("remove"), st.integers(0, 40)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("clear")),
)


@settings(max_examples=40)
@given(st.lists(commands, max_size=15))
def test_it_has_what_a_dictionary_has(script):
    model: dict[bytes, Entry] = {}
    offset = 0
    with TemporaryDirectory() as directory:
        index = HeldIndex(str(Path(directory) / "index"), "x")
        for command, *arguments in script:
            if command == "apply":
                entries: dict[bytes, Entry | None] = {}
                for key, wanted in arguments[0].items():
                    offset += 1
                    due_ms, given_headers, value = wanted or (None, (), None)
                    made = Entry(offset, key, due_ms, Kind.HALF, -offset, given_headers, value)
                    entries[key] = None if wanted is None else made
                index.apply(entries, Position(offset, 3, 4))
                model = {key: one for key, one in (model | entries).items() if one is not None}
            elif command == "remove":
                index.remove(arguments)
                model = {key: one for key, one in model.items() if one.offset not in arguments}
            elif command == "clear":
                index.clear()
                model, offset = {}, 0
            else:
                index.close()
                index = HeldIndex(str(Path(directory) / "index"), "x")
            assert index.position.next_offset == offset
            assert index.count() == len(model)
            assert {key: one for key in (b"", b"a", b"b", b"c") if (one := index.get(key)) is not None} == model
            due = sorted(one.due_ms for one in model.values() if one.due_ms is not None)
            assert index.next_due() == (due[0] if due else None)
            found = index.due(10, 100, 1 << 20)
            assert [one.due_ms for one in found] == [one for one in due if one <= 10]
            assert all(model[one.key] == one for one in found)
        index.close()


def test_what_is_due_is_limited_in_number_and_size_but_never_to_nothing(path):
    index = HeldIndex(path, "x")
    index.apply({b"%d" % at: entry(at, b"%d" % at, at, b"x" * 100) for at in range(10)}, Position(10))
    assert [one.offset for one in index.due(5, 3, 1 << 20)] == [0, 1, 2]
    assert [one.offset for one in index.due(5, 100, 250)] == [0, 1]
    assert [one.offset for one in index.due(5, 100, 1)] == [0]
    assert [one.offset for one in index.due(5, 2, 1000, lambda key: key in (b"0", b"2"))] == [1, 3]


def test_an_index_of_another_topic_is_made_anew(path):
    index = HeldIndex(path, "x")
    index.apply({b"k": entry(1)}, Position(2, 3, 4))
    index.close()
    assert HeldIndex(path, "y").position == Position()


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 100])
def test_a_damaged_file_is_made_anew(path, damage):
    Path(path).write_bytes(damage)
    index = HeldIndex(path, "x")
    assert (index.position, index.count()) == (Position(), 0)
    index.apply({b"k": entry(1)}, Position(2, 3, 4))
    assert index.get(b"k") == entry(1)


def test_a_file_that_is_damaged_inside_is_never_believed(path):
    index = HeldIndex(path, "x")
    index.apply({b"%d" % at: entry(at, b"%d" % at, at, b"x" * 1000) for at in range(500)}, Position(500))
    index.close()
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        for at in range(8192, size, 4096):
            file.seek(at)
            file.write(b"\xff" * 64)
    index = HeldIndex(path, "x")
    try:
        found = index.due(1 << 40, 1000, 1 << 30)
    except sqlite3.DatabaseError:
        index.clear()
        found = []
    assert (found, index.count(), index.position) == ([], 0, Position())


def test_removing_leaves_nothing_behind(path, tmp_path):
    index = HeldIndex(path, "x")
    index.apply({b"k": entry(1)}, Position(2))
    remove_index(path)
    remove_index(path)
    assert list(tmp_path.iterdir()) == []
