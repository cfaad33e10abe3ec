"""docs/OPERATING.md: its commands run as printed, one after the other, and print what it says that they print."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import skep
from skep.base.reserved_port import ReservedPort

PAGE = Path(__file__).parents[2] / "docs" / "OPERATING.md"
PROGRAMS = {"skep": "main", "kafka-configs": "kafka.kafka_configs"}


def commands() -> list[tuple[str, str]]:
    """Returns each command with the lines that are printed below it."""
    found = []
    for block in PAGE.read_text().split("```console\n")[1:]:
        for text in block.split("```")[0].removeprefix("$ ").split("\n$ "):
            command, _, shown = text.strip("\n").partition("\n")
            found.append((command, shown))
    return found


def end(directory: Path) -> None:
    """Ends a broker that a failed command left behind."""
    try:
        os.kill(int((directory / "skep.pid").read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        pass


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    for program, module in PROGRAMS.items():
        script = tmp_path / program
        script.write_text(f"#!{sys.executable}\nfrom skep.cli.{module} import main\n\nmain()\n")
        script.chmod(0o755)
    port = ReservedPort("127.0.0.1")
    address = f"127.0.0.1:{port.number}"
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(skep.__file__).parents[1]),
        "SKEP_BOOTSTRAP": address,
    }
    try:
        for command, shown in commands():
            ran = subprocess.run(
                ["bash", "-c", command.replace("localhost:9092", address)],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert ran.returncode == 0, f"{command}\n{ran.stdout}"
            assert ran.stdout.splitlines() == shown.splitlines(), command
    finally:
        end(tmp_path)
        port.release()
