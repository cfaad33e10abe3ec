import importlib
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner, Result

from skep.cli.failures import UsageError
from skep.cli.main import COMMANDS, app


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
        "print(sorted({'confluent_kafka', 'kio', 'rich', 'skep.cli.topics'} & set(sys.modules)), file=sys.stderr)"
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
    if name != "topics":
        assert "Examples:" in result.stdout


@pytest.mark.parametrize("name", ["create", "list", "describe", "alter", "delete"])
def test_every_command_on_topics_has_its_help_with_examples(name: str) -> None:
    assert "Examples:\n" in skep("topics", name, "--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_module_of_the_table_registers_its_command(name: str) -> None:
    group = typer.Typer()
    importlib.import_module(COMMANDS[name][0]).register(group)
    assert [c.name for c in group.registered_commands] + [g.name for g in group.registered_groups] == [name]


@pytest.mark.parametrize(
    "arguments",
    [
        ["tpics"],
        ["topics", "create"],
        ["consume", "t", "-n", "few"],
        ["produce", "t", "--codec", "rar"],
        ["bench", "-n", "0"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert skep(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["topics", "alter", "t"], "say what to alter"),
        (["topics", "create", "t", "--config", "x"], "name=value"),
        (["consume", "t", "--from-beginning", "--from-offset", "3"], "begin at one place"),
        (["consume", "t", "--from-time", "yesterday"], "is not a time"),
        (["produce", "t", "--idempotent", "--acks", "1"], "--idempotent needs --acks all"),
        (["produce", "t", "--header", "x"], "name=value"),
        (["produce", "t", "--key-separator", ""], "key.separator is empty"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_broker_is_asked(arguments: list[str], complaint: str) -> None:
    result = skep(*arguments)
    assert isinstance(result.exception, UsageError)
    assert complaint in str(result.exception)
