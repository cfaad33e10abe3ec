import subprocess
import sys

import pytest
from confluent_kafka import KafkaError, KafkaException

from skep.cli.connection import pairs, unknown_topic, unreachable_text
from skep.cli.failures import CommandError, UsageError, reason, run


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "exit_code", "told"),
    [
        (CommandError("there is no topic 'x'"), 1, "skep: there is no topic 'x'\n"),
        (UsageError("say what"), 2, "skep: say what\n"),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT, "Local: Timed out")), 1, "skep: Timed out\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(0), 0, ""),
        (SystemExit(2), 2, ""),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(
    error: BaseException, exit_code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("skep", lambda: raising(error)) == exit_code
    assert capsys.readouterr().err == told


def test_a_bug_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run("skep", lambda: raising(ZeroDivisionError()))


def test_a_reader_that_went_away_is_no_failure() -> None:
    script = (
        "from skep.cli import output\n"
        "from skep.cli.failures import run\n"
        "raise SystemExit(run('skep', lambda: [output.line('y' * 100) for _ in range(100_000)] and None))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def test_a_reason_is_one_line_without_the_librarys_prefix() -> None:
    assert reason(KafkaError(1, "Broker: too\nlarge.")) == "too large"
    assert reason(KafkaException(KafkaError(1, "Local: gone"))) == "gone"


def test_a_refused_connection_comes_with_the_hint_to_start_a_broker() -> None:
    refused = KafkaError(
        KafkaError._TRANSPORT, "h:1/bootstrap: Connect to ipv4#h:1 failed: Connection refused (after 0ms)"
    )
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    told = unreachable_text("h:1", [refused, down])
    assert told == "no broker answers at h:1 (is it running? start one with: skep serve)"


def test_another_cause_is_told_in_the_librarys_words() -> None:
    unresolved = KafkaError(
        KafkaError._RESOLVE, "h:1/bootstrap: Failed to resolve 'h:1': Name or service not known (after 4ms in state X)"
    )
    told = unreachable_text("h:1", [unresolved])
    assert told == "no broker answers at h:1 (Failed to resolve 'h:1': Name or service not known)"


def test_an_unknown_topic_comes_with_the_names_that_are_close() -> None:
    assert str(unknown_topic("ordrs", ["orders", "audit"])) == "there is no topic 'ordrs'; did you mean orders?"
    assert str(unknown_topic("x", ["orders"])) == "there is no topic 'x'"


def test_pairs_keep_equal_signs_in_the_value() -> None:
    assert pairs(["a=b=c", " d =e"], "--config") == {"a": "b=c", "d": "e"}
    assert pairs(None, "--config") == {}
    with pytest.raises(UsageError, match="--config a: expected NAME=VALUE"):
        pairs(["a"], "--config")
