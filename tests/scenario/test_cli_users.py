"""``skep users`` and the users of ``kafka-configs``, against a broker."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from skep.cli.failures import CommandError, UsageError
from skep.cli.kafka import kafka_configs
from skep.cli.main import app
from skep.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(autouse=True)
def bootstrap(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKEP_BOOTSTRAP", broker.bootstrap_servers)


@pytest.fixture
def user() -> str:
    return f"user-{uuid4().hex[:8]}"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("hunter2-file\n")
    return path


def skep(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def done(*arguments: object, stdin: str | None = None) -> str:
    result = skep(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    assert "hunter2" not in result.output
    return result.stdout


def failed(*arguments: object, stdin: str | None = None) -> str:
    result = skep(*arguments, stdin=stdin)
    assert isinstance(result.exception, CommandError), result.output
    assert "\n" not in str(result.exception)
    assert "hunter2" not in str(result.exception)
    return str(result.exception)


def mechanisms(user: str) -> dict[str, int | None]:
    shown = json.loads(done("users", "describe", user, "--json"))
    return {row["mechanism"]: row.get("iterations") for row in shown["mechanisms"]}


def test_a_user_lives(user: str, password_file: Path) -> None:
    shown = done("users", "create", user, "--password-file", password_file)
    assert shown == f"Created user {user} for SCRAM-SHA-256, SCRAM-SHA-512.\n"
    assert mechanisms(user) == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
    assert "exists already" in failed("users", "create", user, "--password-file", password_file)
    assert user in done("users", "list")
    assert user in [row["user"] for row in json.loads(done("users", "list", "--json"))]
    done("users", "passwd", user, "--iterations", 5000, stdin="hunter2-stdin\n")
    assert mechanisms(user) == {"SCRAM-SHA-256": 5000, "SCRAM-SHA-512": 5000}
    assert done("users", "delete", user, "-m", "scram-sha-256") == f"Deleted SCRAM-SHA-256 of user {user}.\n"
    assert done("users", "describe", user) == f"user {user}\n  SCRAM-SHA-512, 5000 iterations\n"
    assert done("users", "delete", user) == f"Deleted user {user}.\n"
    assert "does not exist" in failed("users", "delete", user)


def test_a_user_may_have_plain(user: str) -> None:
    done("users", "create", user, "-m", "PLAIN", "-m", "SCRAM-SHA-512", stdin="hunter2")
    assert mechanisms(user) == {"PLAIN": None, "SCRAM-SHA-512": 8192}
    done("users", "passwd", user, "--password-file", "-", stdin="hunter2-new")
    assert "has no SCRAM-SHA-256; it has PLAIN, SCRAM-SHA-512" in failed("users", "delete", user, "-m", "SCRAM-SHA-256")
    done("users", "delete", user)
    assert "does not exist" in failed("users", "describe", user)


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        (["create", "x", "-m", "GSSAPI"], "hunter2", "unknown mechanism 'GSSAPI'"),
        (["create", "x"], "", "standard input: it is empty"),
        (["create", "x"], "\n", "standard input: it is empty"),
        (["create", "x"], "hunter2\nhunter3\n", "expected one line"),
        (["create", "x"], "hunter2" * 1000, "expected one line"),
        (["create", "x"], "hunter2" * 200, "more than 1024 bytes"),
        (["create", "x", "--password-file", "/nowhere"], "", "--password-file /nowhere: No such file or directory"),
        (["create", ""], "hunter2", "Username must not be empty"),
        (["create", "", "-m", "PLAIN"], "hunter2", "Username must not be empty"),
        (["create", "x" * 300], "hunter2", "longer than 255 bytes"),
        (["passwd", "nobody"], "hunter2", "user 'nobody' does not exist"),
    ],
)
def test_what_is_wrong_is_one_line_without_the_password(arguments: list[str], stdin: str, complaint: str) -> None:
    assert complaint in failed("users", *arguments, stdin=stdin)


def test_a_terminal_is_asked_twice_without_showing_the_reply(user: str, broker: EmbeddedBroker) -> None:
    pty = pytest.importorskip("pty")
    environment = {**os.environ, "SKEP_BOOTSTRAP": broker.bootstrap_servers}
    for replies, expected in (
        (["hunter2", "hunter3"], "the two passwords differ; nothing was changed"),
        (["hunter2", "hunter2"], f"Created user {user}"),
    ):
        parent, child = pty.openpty()
        command = [sys.executable, "-m", "skep.cli.main", "users", "create", user]
        process = subprocess.Popen(
            command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True, close_fds=True
        )
        os.close(child)
        shown, waits = "", [": ", "Once more: "]
        while True:
            try:
                piece = os.read(parent, 1000).decode()
            except OSError:
                break
            if not piece:
                break
            shown += piece
            if waits and shown.endswith(waits[0]):
                os.write(parent, replies[2 - len(waits)].encode() + b"\n")
                waits.pop(0)
        os.close(parent)
        process.wait()
        assert expected in shown
        assert "hunter" not in shown


def configs(broker: EmbeddedBroker, *arguments: str) -> None:
    server = ["--bootstrap-server", broker.bootstrap_servers]
    kafka_configs.execute([*server, *arguments])


def test_kafka_configs_sets_and_deletes_scram(broker, user, capsysbinary) -> None:
    entity = ["--entity-type", "users", "--entity-name", user]
    scram = "SCRAM-SHA-256=[iterations=4097,password=hunter2],SCRAM-SHA-512=[password=a=b;c]"
    configs(broker, "--alter", *entity, "--add-config", scram)
    assert f"Completed updating config for user {user}." in capsysbinary.readouterr().out.decode()
    assert mechanisms(user) == {"SCRAM-SHA-256": 4097, "SCRAM-SHA-512": 4096}
    configs(broker, "--describe", *entity)
    shown = capsysbinary.readouterr().out.decode()
    assert f"SCRAM credential configs for user-principal '{user}' are SCRAM-SHA-256=iterations=4097" in shown
    assert "SCRAM-SHA-512=iterations=4096" in shown
    configs(broker, "--alter", *entity, "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")
    assert "does not exist" in failed("users", "describe", user)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("SCRAM-SHA-256=[iterations=100,password=hunter2]", "iterations must be between 4096 and 16384"),
        ("SCRAM-SHA-256=[iterations=many,password=hunter2]", "iterations must be between 4096 and 16384"),
        ("SCRAM-SHA-256=[iterations=4096]", "needs a password"),
        ("SCRAM-SHA-256=hunter2", "expected"),
        ("SCRAM-SHA-256=[hunter2]", "expected"),
        ("SCRAM-SHA-1=[password=hunter2]", "SCRAM-SHA-1"),
    ],
)
def test_kafka_configs_says_what_is_wrong_without_the_password(broker, config: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        configs(broker, "--alter", "--entity-type", "users", "--entity-name", "x", "--add-config", config)
    assert "hunter2" not in str(caught.value)
