"""The ``skep`` commands against a real broker; as processes of their own where exit codes and signals matter."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from skep.cli.failures import CommandError
from skep.cli.main import app
from skep.testing import EmbeddedBroker
from tests.waiting import wait_until

SKEP = [sys.executable, "-m", "skep.cli.main"]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def bootstrap(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)


def skep(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def done(*arguments: object, stdin: bytes | None = None) -> str:
    """What a command printed that went well."""
    result = skep(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*arguments: object, stdin: bytes | None = None) -> str:
    """The one line of a command that could not be done."""
    result = skep(*arguments, stdin=stdin)
    assert isinstance(result.exception, CommandError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def records(topic: str, *arguments: object) -> list[dict[str, object]]:
    return [json.loads(line) for line in done("consume", topic, "--json", *arguments).splitlines()]


def test_a_topic_is_created_described_altered_and_deleted(topic: str) -> None:
    assert done("topics", "create", topic, "-p", 3, "-c", "retention.ms=3600000") == f"Created topic {topic}.\n"
    [described] = json.loads(done("topics", "describe", topic, "--json"))
    assert described["configs"] == {"retention.ms": "3600000"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert {(p["leader"], p["earliest"], p["latest"]) for p in described["partitions"]} == {(1, 0, 0)}

    done("topics", "alter", topic, "-p", 5, "-c", "segment.bytes=100000", "--delete-config", "retention.ms")
    [described] = json.loads(done("topics", "describe", topic, "--json"))
    assert described["configs"] == {"segment.bytes": "100000"}
    assert len(described["partitions"]) == 5

    assert {"topic": topic, "partitions": 5, "replicas": 1} in json.loads(done("topics", "list", "--json"))
    assert done("topics", "delete", topic) == f"Deleted topic {topic}.\n"
    assert topic not in done("topics", "list")


def test_what_the_broker_refuses_is_told_in_its_words(topic: str) -> None:
    done("topics", "create", topic, "-p", 2)
    assert failed("topics", "create", topic) == f"topic '{topic}' already exists"
    assert done("topics", "create", topic, "--if-not-exists") == ""
    assert "nope" in failed("topics", "create", f"{topic}-2", "--config", "nope=1")
    assert "cannot add partitions" in failed("topics", "alter", topic, "-p", 1)
    assert "cannot alter the configs" in failed("topics", "alter", topic, "-c", "retention.ms=soon")


def test_an_unknown_topic_is_named_with_those_that_are_close(topic: str) -> None:
    done("topics", "create", topic)
    mistyped = topic[:-1] + "_"
    for arguments in (["topics", "describe"], ["topics", "delete"], ["topics", "alter", "-p", "9"], ["consume"]):
        assert failed(*arguments, mistyped).startswith(f"there is no topic '{mistyped}'; did you mean {topic}")
    done("topics", "delete", mistyped, "--if-exists")
    assert mistyped not in done("topics", "list")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(topic: str, codec: str) -> None:
    lines = b"k1:v1\nk2:\xff\xfe\nk3:\n"
    done("topics", "create", topic)
    done("produce", topic, "-k", ":", "--header", "source=test", "--codec", codec, "--idempotent", stdin=lines)
    found = records(topic)
    assert [(r["offset"], r["key"], r["value"]) for r in found] == [
        (0, "k1", "v1"),
        (1, "k2", {"base64": "//4="}),
        (2, "k3", ""),
    ]
    assert found[0]["headers"] == [{"key": "source", "value": "test"}]
    assert found[0]["timestamp_type"] == "CreateTime"


def test_a_file_is_produced_in_order_and_the_summary_goes_to_stderr(topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"".join(b"%d\n" % n for n in range(20_000)))
    done("topics", "create", topic)
    result = skep("produce", topic, "--file", file)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("20,000 records in ")
    assert done("consume", topic).encode() == file.read_bytes()


def test_a_topic_that_is_not_there_is_created_by_the_cluster_and_that_is_said(topic: str) -> None:
    result = skep("produce", topic, stdin=b"x\n")
    assert f"Topic {topic} did not exist; the cluster created it with 1 partition." in result.stderr
    assert done("consume", topic) == "x\n"


def test_without_auto_creation_a_missing_topic_is_refused(topic: str) -> None:
    with EmbeddedBroker(options={"auto.create.topics.enable": "false"}) as strict:
        assert failed("produce", topic, "-b", strict.bootstrap_servers, stdin=b"x\n") == f"there is no topic '{topic}'"


def test_lines_before_a_bad_one_are_delivered(topic: str) -> None:
    done("topics", "create", topic)
    assert failed("produce", topic, "-k", ":", stdin=b"a:1\nb\nc:3\n") == "line 2 has no key separator ':'"
    assert done("consume", topic, "--print-key", "-k", "=") == "a=1\n"


def test_a_record_that_the_broker_refuses_is_a_failure_with_the_reason(topic: str) -> None:
    done("topics", "create", topic, "-c", "max.message.bytes=1000")
    told = failed("produce", topic, stdin=b"x" * 5000 + b"\n")
    assert f"cannot deliver a record to topic '{topic}'" in told
    assert "large" in told


def test_consuming_begins_where_it_is_told(topic: str) -> None:
    done("topics", "create", topic, "-p", 2)
    for partition in (0, 1):
        done("produce", topic, "-p", partition, stdin=b"".join(b"%d-%d\n" % (partition, n) for n in range(5)))
    assert sorted(done("consume", topic).split()) == [f"{p}-{n}" for p in (0, 1) for n in range(5)]
    assert done("consume", topic, "-p", 1, "--from-offset", 3).split() == ["1-3", "1-4"]
    assert sorted(done("consume", topic, "--from-offset", -1).split()) == ["0-4", "1-4"]
    assert len(done("consume", topic, "-n", 3).split()) == 3
    assert done("consume", topic, "-n", 0) == ""
    assert len(records(topic, "--from-time", "-1h")) == 10
    assert records(topic, "--from-time", int(time.time() * 1000) + 60_000) == []
    moment = records(topic, "-p", 0)[2]["timestamp"]
    assert all(int(str(r["timestamp"])) >= int(str(moment)) for r in records(topic, "-p", 0, "--from-time", moment))
    assert "has no partition 2" in failed("consume", topic, "-p", 2)
    assert "offset 6 is past the end" in failed("consume", topic, "--from-offset", 6)
    assert "has no partition 7" in failed("produce", topic, "-p", 7, stdin=b"x\n")


def test_following_shows_what_arrives_until_ctrl_c(topic: str) -> None:
    done("topics", "create", topic)
    done("produce", topic, stdin=b"old\n")
    with subprocess.Popen(
        [*SKEP, "consume", topic, "--follow", "--from-beginning"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert following.stdout.readline() == b"old\n"
        done("produce", topic, stdin=b"new\n")
        assert following.stdout.readline() == b"new\n"
        following.send_signal(signal.SIGINT)
        assert (following.stdout.read(), following.stderr.read(), following.wait()) == (b"", b"", 130)


def test_a_closed_pipe_ends_the_command_quietly(topic: str) -> None:
    done("topics", "create", topic)
    done("produce", topic, stdin=b"".join(b"%0100d\n" % n for n in range(20_000)))
    with subprocess.Popen([*SKEP, "consume", topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == b"%0100d\n" % 0
        reading.stdout.close()
        assert (reading.stderr.read(), reading.wait()) == (b"", 0)


def test_without_a_broker_one_line_says_so() -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else gets the port, and connecting to it is refused.
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        lines = (
            "topics list",
            "consume t",
            "produce t",
            "bench -n 1",
            "cluster describe",
            "health",
            "transactions list",
        )
        commands = [
            subprocess.Popen(
                [*SKEP, *arguments.split()],
                env=os.environ | {"SKEP_BOOTSTRAP": nobody},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for arguments in lines
        ]
        ended = [(*command.communicate(), command.returncode) for command in commands]
    told = f"skep: no broker answers at {nobody} (is it running? start one with: skep serve)\n"
    assert ended == [(b"", told.encode(), 1)] * len(lines)


def test_a_broker_that_dies_is_noticed_and_nothing_is_claimed(topic: str) -> None:
    with EmbeddedBroker() as dying:
        done("topics", "create", topic, "-b", dying.bootstrap_servers)
        with subprocess.Popen(
            [*SKEP, "produce", topic, "-b", dying.bootstrap_servers, "-X", "message.timeout.ms=10000"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as producing:
            assert producing.stdin is not None
            assert producing.stderr is not None
            producing.stdin.write(b"before\n")
            producing.stdin.flush()
            wait_until(lambda: records(topic, "-b", dying.bootstrap_servers), "the first one is delivered")
            dying.kill()
            producing.stdin.write(b"after\n")
            producing.stdin.close()
            told = producing.stderr.read().decode()
            assert producing.wait() == 1
    assert told.startswith(f"skep: cannot deliver a record to topic '{topic}': ")
    assert told.count("\n") == 1


def test_a_broker_that_dies_while_its_topic_is_read_is_noticed(topic: str) -> None:
    with EmbeddedBroker() as dying:
        there = ("-b", dying.bootstrap_servers)
        done("produce", topic, *there, stdin=b"".join(b"%0100d\n" % n for n in range(20_000)))
        few_at_once = ("-X", "queued.min.messages=1", "-X", "fetch.message.max.bytes=10000")
        with subprocess.Popen(
            [*SKEP, "consume", topic, *there, *few_at_once], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as reading:
            assert reading.stdout is not None
            assert reading.stderr is not None
            # With nobody reading on, the pipe is full before the topic is at its end, and the command waits for us.
            assert reading.stdout.readline() == b"%0100d\n" % 0
            dying.kill()
            assert len(reading.stdout.read()) < 19_999 * 101
            told = reading.stderr.read().decode()
            assert reading.wait() == 1
    assert told.startswith(f"skep: no broker answers at {dying.bootstrap_servers}")
    assert told.count("\n") == 1


def test_what_a_broker_wrote_is_found_whole(topic: str, tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=tmp_path / "data") as writing:
        there = ("-b", writing.bootstrap_servers)
        done("topics", "create", topic, "-c", "segment.bytes=100000", "-c", "index.interval.bytes=1000", *there)
        for codec in ("none", "zstd"):
            lines = b"".join(b"%050d\n" % n for n in range(5_000))
            done("produce", topic, "--codec", codec, "-X", "batch.size=2000", *there, stdin=lines)
    directory = tmp_path / "data" / f"{topic}-0"
    shown = [json.loads(line) for line in done("dump", directory, "--json").splitlines()]
    segments = [o for o in shown if o["type"] == "segment"]
    assert len(segments) > 2
    assert sum(o["records"] for o in segments) == 10_000
    assert segments[-1]["last_offset"] == 9_999
    first = directory / f"{0:020}.log"
    assert len(done("dump", first.with_suffix(".index")).splitlines()) > 10
    assert '"value":"' + "0" * 50 in done("dump", first, "--records", "--json")


def test_the_bench_measures_and_leaves_nothing_behind(broker: EmbeddedBroker) -> None:
    before = done("topics", "list")
    written, read = json.loads(done("bench", "-n", 5_000, "-s", 50, "-p", 2, "--codec", "lz4", "--json"))
    assert (written["work"], written["records"], written["bytes"]) == ("write", 5_000, 250_000)
    assert (read["work"], read["records"], read["bytes"]) == ("read", 5_000, 250_000)
    assert written["records_per_s"] > 0
    assert done("topics", "list") == before
