"""docs/GROUPS.md: its commands run as printed, one after the other, and print what it says that they print."""

import os
import subprocess
import sys
from pathlib import Path

import skep
from skep.testing import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "GROUPS.md"
PROGRAMS = {
    "skep": "main",
    "kafka-console-consumer": "kafka.kafka_console_consumer",
    "kafka-consumer-groups": "kafka.kafka_consumer_groups",
    "kafka-transactions": "kafka.kafka_transactions",
}


def commands() -> list[tuple[str, str]]:
    """Each command with the lines that are printed below it."""
    found = []
    for block in PAGE.read_text().split("```console\n")[1:]:
        for text in block.split("```")[0].removeprefix("$ ").split("\n$ "):
            command, _, shown = text.strip("\n").partition("\n")
            found.append((command, shown))
    return found


def test_the_page_has_commands_of_every_kind() -> None:
    lines = [command for command, _ in commands()]
    assert len(lines) > 30
    assert all(any(program in line for line in lines) for program in PROGRAMS)


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    for program, module in PROGRAMS.items():
        script = tmp_path / program
        script.write_text(f"#!{sys.executable}\nfrom skep.cli.{module} import main\n\nmain()\n")
        script.chmod(0o755)
    with EmbeddedBroker() as broker:
        path = f"{tmp_path}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        sources = str(Path(skep.__file__).parents[1])
        environment = os.environ | {
            "PATH": path,
            "PYTHONPATH": sources,
            "SKEP_BOOTSTRAP": broker.bootstrap_servers,
        }
        for command, shown in commands():
            ran = subprocess.run(
                ["bash", "-c", command.replace("localhost:9092", broker.bootstrap_servers)],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert ran.returncode == 0, f"{command}\n{ran.stdout}"
            if shown:
                # Lines of stdout and stderr, which come in an order of their own.
                assert sorted(ran.stdout.splitlines()) == sorted(shown.splitlines()), command
