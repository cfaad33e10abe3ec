"""The files in deploy/: they name commands, options and variables that exist, and run nothing as root.

A linter of words, as far as the standard library goes: no service manager and no container engine is started.
"""

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from skep.base.config.broker_config import read_broker_config
from skep.cli.main import _load
from skep.cli.serve.option_sources import from_environment, from_file, options_from

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
INSTRUCTION = re.compile(r"([A-Z]+)\s+(.*)", re.DOTALL)
INSTRUCTIONS = {
    *("FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME"),
    *("EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
}
DATA = "/var/lib/skep"


def check_command(words: list[str]) -> None:
    """Fails if ``skep`` has no such command, or the command no such option."""
    name, *arguments = words
    command: Any = _load(name)
    with typer.main.get_command(typer.Typer(callback=lambda: None)).make_context("skep", []) as context:
        command.make_context(name, arguments, parent=context)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read(DEPLOY / "skep.service")
    return parser


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    found = []
    for text in "\n".join(lines).replace("\\\n", " ").splitlines():
        parsed = INSTRUCTION.fullmatch(text)
        assert parsed is not None, text
        found.append((parsed[1], parsed[2].strip()))
    return found


def argument(name: str) -> str:
    """Returns the last such instruction, which counts."""
    return [text for instruction, text in instructions() if instruction == name][-1]


def test_the_unit_starts_a_command_that_exists_with_the_data_where_systemd_makes_it() -> None:
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "skep"
    check_command(words)
    assert words[words.index("--data-dir") + 1] == f"/var/lib/{service['StateDirectory']}" == DATA
    assert service["Environment"] == f"NUMBA_CACHE_DIR=/var/cache/{service['CacheDirectory']}"


def test_the_unit_stops_by_sigterm_restarts_after_a_crash_and_is_confined() -> None:
    parsed = unit()
    assert parsed.sections() == ["Unit", "Service", "Install"]
    service = parsed["Service"]
    assert service["User"] not in ("", "root")
    assert (service["KillSignal"], service["Restart"]) == ("SIGTERM", "on-failure")
    assert int(service["TimeoutStopSec"]) >= 120
    assert int(service["LimitNOFILE"]) >= 100_000
    # The exit code of wrong options: see skep.app.run.
    assert service["RestartPreventExitStatus"] == "2"
    assert service["NoNewPrivileges"] == "true"
    assert service["ProtectSystem"] == "strict"
    # numba compiles at run time.
    assert "MemoryDenyWriteExecute" not in service


def test_the_options_of_the_example_exist_and_are_good() -> None:
    options = options_from(from_file(DEPLOY / "skep.toml"))
    assert read_broker_config(options).node_id == 1
    # Also those that are commented out.
    text = (DEPLOY / "skep.toml").read_text()
    for name, value in re.findall(r"^# ([a-z.]+) = \"?([^\"\n]+)\"?$", text, re.MULTILINE):
        read_broker_config({name: value})


def test_the_image_is_built_from_the_clone_of_files_that_exist() -> None:
    assert {name for name, _ in instructions()} <= INSTRUCTIONS
    sources = [
        word
        for name, text in instructions()
        if name == "COPY" and not text.startswith("--from")
        for word in text.split()[:-1]
    ]
    assert sources
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


def test_the_image_runs_as_another_user_and_checks_its_broker() -> None:
    assert int(argument("USER")) > 0
    assert json.loads(argument("ENTRYPOINT")) == ["skep"]
    check_command(json.loads(argument("CMD")))
    program, *words = json.loads(argument("HEALTHCHECK").partition("CMD ")[2])
    assert (program, words[0]) == ("skep", "health")
    check_command(words)
    assert argument("STOPSIGNAL") == "SIGTERM"
    assert argument("VOLUME") == DATA


def test_the_variables_of_the_image_are_options() -> None:
    variables = dict(pair.split("=", 1) for pair in shlex.split(argument("ENV")))
    given, warnings = from_environment(variables)
    assert not warnings
    options = options_from(given)
    assert options == {"listeners": "0.0.0.0:9092", "skep.insecure": "true", "log.dirs": DATA}
    assert argument("EXPOSE") == options["listeners"].rpartition(":")[2]


@pytest.mark.parametrize("words", [["serve", "--confg", "x"], ["health", "--alife"]])
def test_a_mistyped_option_would_be_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        check_command(words)
