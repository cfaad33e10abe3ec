"""What a user types after ``skep serve`` works in a new terminal."""

from pathlib import Path

from skep.cli.serve.serve_command import next_steps


def lines(bootstrap: str, prefix: Path) -> list[str]:
    heading, *steps = next_steps(bootstrap, str(prefix)).splitlines()
    assert heading == "In another terminal:"
    assert len(steps) == 2
    return [step.removeprefix("  ") for step in steps]


def test_without_a_virtual_environment_the_commands_are_on_the_path(tmp_path: Path) -> None:
    assert lines("127.0.0.1:9092", tmp_path) == ['echo "one egg" | skep produce basket', "skep consume basket"]


def test_a_virtual_environment_is_activated_first(tmp_path: Path) -> None:
    environment = tmp_path / "my clone" / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "activate").touch()
    first, second = lines("127.0.0.1:9092,127.0.0.1:9093", environment)
    assert first == f"source '{environment}/bin/activate'"
    assert second == 'echo "one egg" | skep produce basket && skep consume basket'


def test_another_address_is_told_to_the_commands(tmp_path: Path) -> None:
    assert lines("m1:9192", tmp_path)[0] == "export SKEP_BOOTSTRAP=m1:9192"
