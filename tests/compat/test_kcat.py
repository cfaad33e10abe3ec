"""kcat, the command line client: -P, -C, -L, -Q."""

import json
import time
from pathlib import Path

from tests.compat.clients import kcat


def test_lines_are_produced_and_consumed(servers: str, topic: str) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(100))
    kcat(servers, "-P", "-t", topic, "-p", "0", stdin=lines)
    assert kcat(servers, "-C", "-t", topic, "-e", "-q") == lines


def test_offsets_are_chosen_from_the_end_and_exactly(servers: str, topic: str) -> None:
    kcat(servers, "-P", "-t", topic, "-p", "0", stdin=b"".join(b"%d\n" % n for n in range(10)))
    options = ("-C", "-t", topic, "-p", "0", "-e", "-q", "-f", "%o:%s ")
    assert kcat(servers, *options, "-o", "-2") == b"8:8 9:9 "
    assert kcat(servers, *options, "-o", "7") == b"7:7 8:8 9:9 "
    assert kcat(servers, *options, "-o", "3", "-c", "2") == b"3:3 4:4 "


def test_a_whole_file_is_one_message(servers: str, topic: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(content)
    kcat(servers, "-P", "-t", topic, "-p", "0", str(tmp_path / "file"))
    assert kcat(servers, "-C", "-t", topic, "-e", "-q", "-D", "") == content


def test_an_idempotent_producer(servers: str, topic: str) -> None:
    lines = b"".join(b"%d\n" % n for n in range(1000))
    kcat(servers, "-P", "-t", topic, "-p", "0", "-X", "enable.idempotence=true", "-z", "zstd", stdin=lines)
    assert kcat(servers, "-C", "-t", topic, "-e", "-q") == lines


def test_metadata_is_listed(servers: str, topic: str) -> None:
    kcat(servers, "-P", "-t", topic, "-p", "0", stdin=b"egg\n")
    listed = json.loads(kcat(servers, "-L", "-J"))
    assert [broker["name"] for broker in listed["brokers"]] == [servers]
    assert listed["controllerid"] == 1
    [found] = [one for one in listed["topics"] if one["topic"] == topic]
    assert [(partition["partition"], partition["leader"]) for partition in found["partitions"]] == [(0, 1)]


def test_offsets_are_queried_by_time(servers: str, topic: str) -> None:
    kcat(servers, "-P", "-t", topic, "-p", "0", stdin=b"0\n1\n2\n")
    later_ms = int(time.time() * 1000) + 60_000
    for timestamp, offset in ((1, 0), (-1, 3), (-2, 0), (later_ms, -1)):
        assert f"{topic} [0] offset {offset}" in kcat(servers, "-Q", "-t", f"{topic}:0:{timestamp}").decode()
