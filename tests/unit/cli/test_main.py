import importlib
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner, Result

from skep.cli.failures import UsageError, run
from skep.cli.main import COMMANDS, app, call

GROUPS_OF_COMMANDS = {
    "topics": ["create", "list", "describe", "alter", "delete"],
    "groups": ["list", "describe", "reset-offsets", "export", "delete", "delete-offsets"],
    "queues": ["list", "describe", "retry", "dead", "redrive", "scheduled", "recall"],
    "queues config": ["list", "set", "delete"],
    "users": ["create", "list", "describe", "passwd", "delete"],
    "quotas": ["list", "set", "remove"],
    "acls": ["list", "add", "remove", "check"],
    "transactions": ["list", "describe", "producers", "find-hanging", "abort"],
    "cluster": ["describe", "wait", "reassign", "elect", "drain", "unregister"],
    "cluster config": ["list", "set", "delete"],
    "tls": ["init", "sign", "show"],
    "pipeline": ["init", "run", "validate", "graph", "show"],
}


def skep(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_help_lists_every_command_with_a_sentence() -> None:
    shown = skep("--help").stdout
    for name, (_, sentence) in COMMANDS.items():
        assert name in shown
        assert sentence in shown


def test_help_needs_neither_the_client_library_nor_the_codec() -> None:
    script = (
        "import sys\n"
        "from skep.cli.main import main\n"
        "sys.argv = ['skep', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'confluent_kafka', 'kio', 'rich', 'skep.cli.topics.topic_commands'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr == "[]\n"


def test_serving_does_not_import_the_client_library() -> None:
    script = "import sys, skep.cli.main as m; m._load('serve'); print('confluent_kafka' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help_with_examples(name: str) -> None:
    result = skep(name, "--help")
    assert result.exit_code == 0
    if name not in GROUPS_OF_COMMANDS:
        assert "Examples:" in result.stdout


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, names in GROUPS_OF_COMMANDS.items() for name in names]
)
def test_every_command_of_a_group_has_its_help_with_examples(group: str, name: str) -> None:
    assert "Examples:\n" in skep(*group.split(), name, "--help").stdout


@pytest.mark.parametrize("group", ["", *GROUPS_OF_COMMANDS])
def test_the_summaries_of_commands_fit_80_columns(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, _, commands = skep(*group.split(), "--help").stdout.partition("Commands:\n")
    assert commands
    assert "..." not in commands


ARGUMENTS = [
    ("topics create", "TOPIC"),
    ("topics delete", "TOPIC..."),
    ("topics describe", "[TOPIC...]"),
    ("queues recall", "TOPIC KEY..."),
    ("queues retry", "GROUP TOPIC PARTITION OFFSET"),
    ("cluster config set", "NAME=VALUE..."),
    ("dump", "PATH..."),
    ("pipeline show", "NAME [DIR]"),
]


@pytest.mark.parametrize(("command", "arguments"), ARGUMENTS, ids=[command for command, _ in ARGUMENTS])
def test_the_help_of_a_command_shows_arguments_by_name_without_types_of_python(command: str, arguments: str) -> None:
    shown = skep(*command.split(), "--help").stdout
    assert shown.splitlines()[0].endswith(f"{command} [OPTIONS] {arguments}")
    assert not re.search(r"<(str|int|path|list|bool)", shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_module_of_the_table_registers_its_command(name: str) -> None:
    group = typer.Typer()
    importlib.import_module(COMMANDS[name][0]).register(group)
    assert [c.name for c in group.registered_commands] + [g.name for g in group.registered_groups] == [name]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tpics"], "no such command 'tpics'"),
        (["topics", "create"], "missing argument 'TOPIC' (see skep topics create --help)"),
        (["topics", "list", "--josn"], "no such option: --josn"),
        (["consume", "t", "-n", "few"], "invalid value for '--max-messages'"),
        (["produce", "t", "--codec", "rar"], "invalid value for '--codec' / '-z': 'rar' is not one of"),
        (["bench", "-n", "0"], "invalid value for '--records'"),
        (["groups", "reset-offsets"], "missing argument 'GROUP'"),
        (["groups", "describe", "line\nbreak", "--x"], "no such option: --x"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("skep", lambda: call(arguments)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"skep: {told}")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["topics"], ["groups"], ["transactions"]])
def test_a_group_of_commands_without_one_shows_its_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("skep", lambda: call(arguments)) == 2
    assert "Commands:\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["topics", "alter", "t"], "nothing to alter"),
        (["topics", "create", "t", "--config", "x"], "expected NAME=VALUE"),
        (["consume", "t", "--from-beginning", "--from-offset", "3"], "only one of --from-beginning"),
        (["consume", "t", "--from-time", "yesterday"], "is not a time"),
        (["produce", "t", "--idempotent", "--acks", "1"], "--idempotent needs --acks all"),
        (["produce", "t", "--header", "x"], "expected NAME=VALUE"),
        (["produce", "t", "--key-separator", ""], "key.separator must not be empty"),
        (["consume", "t", "--group", "g", "--from-offset", "3"], "cannot be used with --group"),
        (["consume", "t", "--group", "g", "-p", "0"], "cannot be used with --group"),
        (["groups", "describe"], "give either group names or --all"),
        (["groups", "describe", "g", "--all"], "give either group names or --all"),
        (["groups", "describe", "g", "--members", "--state"], "--members and --state cannot be used together"),
        (["groups", "reset-offsets", "g", "--topic", "t"], "exactly one destination"),
        (
            ["groups", "reset-offsets", "g", "--to-earliest", "--shift-by", "0", "-t", "t"],
            "exactly one destination",
        ),
        (["groups", "reset-offsets", "g", "--to-earliest"], "name the partitions to reset"),
        (["groups", "reset-offsets", "g", "--from-file", "f", "-t", "t"], "--from-file names the partitions"),
        (
            ["groups", "reset-offsets", "g", "-t", "t", "--by-duration", "1h", "--to-datetime", "now"],
            "cannot be used together",
        ),
        (["transactions", "abort"], "give either TRANSACTIONAL_ID"),
        (["transactions", "abort", "x", "--topic", "t"], "give either TRANSACTIONAL_ID"),
        (["transactions", "abort", "--topic", "t", "--partition", "0"], "give either TRANSACTIONAL_ID"),
        (["transactions", "list", "--longer-than", "long"], "is not a duration"),
        (["cluster", "reassign", "--brokers", "1", "--cancel"], "only one of --replicas"),
        (["cluster", "reassign", "--replicas", "1,2"], "--replicas needs --topic"),
        (["cluster", "reassign", "--topic", "t"], "give a destination"),
        (["cluster", "reassign", "--dry-run"], "give a destination"),
        (["cluster", "reassign", "--brokers", "1,x"], "is not a list of different broker ids"),
        (["cluster", "reassign", "-t", "t", "--replicas", "1", "-r", "2"], "can only be used with --brokers"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_broker_is_asked(arguments: list[str], complaint: str) -> None:
    result = skep(*arguments)
    assert isinstance(result.exception, UsageError)
    assert complaint in str(result.exception)
