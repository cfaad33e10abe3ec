"""The sources of a broker's options: which wins, and what a mistake is told with."""

from pathlib import Path

import pytest

from skep.base.config.broker_config import option_names
from skep.base.errors import OptionError
from skep.cli.serve.option_sources import Given, _variable, from_environment, from_file, from_settings, options_from

TOML = """\
# a comment with num.partitions = 1
node.id = 3

[log]
"retention.hours" = 2
[socket.request]
max.bytes = "many"
"""


def file_of(directory: Path, content: str) -> Path:
    path = directory / "skep.toml"
    path.write_text(content)
    return path


def test_a_bad_value_of_a_file_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = file_of(tmp_path, TOML)
    with pytest.raises(OptionError) as refused:
        options_from(from_file(path))
    assert str(refused.value) == f"socket.request.max.bytes=many: expected a 32-bit number ({path}, line 7)"


def test_a_value_whose_line_is_not_found_names_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, "num = { partitions = 0 }")
    with pytest.raises(OptionError) as refused:
        options_from(from_file(path))
    assert str(refused.value) == f"num.partitions=0: must be at least 1 ({path})"


def test_a_bad_value_of_the_environment_names_the_variable() -> None:
    given, _ = from_environment({"SKEP_LOG_RETENTION_HOURS": "long"})
    with pytest.raises(OptionError) as refused:
        options_from(given)
    assert str(refused.value) == "log.retention.hours=long: expected a number (SKEP_LOG_RETENTION_HOURS)"


@pytest.mark.parametrize(
    ("variable", "warning"),
    [
        ("SKEP_NUM_PARTITION", "; did you mean SKEP_NUM_PARTITIONS?"),
        ("SKEP_DISK_REFUSE_RATE", "; did you mean SKEP_DISK_REFUSE_RATIO?"),
        ("SKEP_XYZZY", ""),
    ],
)
def test_a_mistyped_variable_is_reported_with_the_nearest_name(variable: str, warning: str) -> None:
    assert from_environment({variable: "4"}) == ([], [f"{variable} is ignored: there is no such option{warning}"])


@pytest.mark.parametrize(
    "variable", ["SKEP_BOOTSTRAP", "SKEP_TEST_LENGTH", "SKEP_SERVICE_HOST", "SKEP_PORT_9092_TCP_ADDR", "PATH"]
)
def test_variables_with_another_use_are_left_alone(variable: str) -> None:
    assert from_environment({variable: "x"}) == ([], [])


def test_own_options_have_the_prefix_once_or_twice() -> None:
    for variable in ("SKEP_DISK_CLEAN_RATIO", "SKEP_SKEP_DISK_CLEAN_RATIO"):
        assert from_environment({variable: "0.5"}) == ([Given("skep.disk.clean.ratio", "0.5", f" ({variable})")], [])


def test_no_two_options_have_the_same_variable() -> None:
    assert len({_variable(name) for name in option_names()}) == len(option_names())


def test_later_sources_win_also_under_another_name(tmp_path: Path) -> None:
    path = file_of(tmp_path, "log.retention.ms = 5\nnode.id = 1\nnum.partitions = 2\n")
    environment, _ = from_environment({"SKEP_BROKER_ID": "2", "SKEP_NUM_PARTITIONS": "3"})
    options = options_from(from_file(path), environment, from_settings(["log.retention.hours=2", "num.partitions=4"]))
    assert options == {"log.retention.ms": "7200000", "node.id": "2", "num.partitions": "4"}
