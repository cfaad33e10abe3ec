"""``--command-config``: the format of the file, who gets the option, and what is said of it."""

import os
from pathlib import Path

import pytest

from skep.base.environment_variables import COMMAND_CONFIG
from skep.cli.command_config import in_environment, read_properties
from skep.cli.connection import Cluster
from skep.cli.failures import UsageError
from skep.cli.main import COMMANDS, _load
from skep.client.security.properties_file import write_properties

JAVA = r"""
# A file for Kafka's tools.
! Another comment.
security.protocol=SASL_SSL
sasl.mechanism : PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    username="alice" \
    password="a=b\\"c";
client.id   with\u0020blanks
ssl.endpoint.identification.algorithm=
"""


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "client.properties"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_format_is_that_of_javas_properties(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_properties(written(tmp_path, JAVA.replace('\\\\"', "'")))
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="a=b\'c";',
        "client.id": "with blanks",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert capsys.readouterr().err == ""
    cluster = Cluster("h:1", found)
    assert cluster.properties["sasl.password"] == "a=b'c"
    assert cluster.properties["ssl.endpoint.identification.algorithm"] == "none"


def test_a_secret_that_others_can_read_is_worth_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "sasl.password=p4ss", 0o644)
    read_properties(path)
    assert f"run: chmod 600 {path}" in (warned := capsys.readouterr().err)
    assert "p4ss" not in warned
    read_properties(written(tmp_path, "client.id=mine", 0o644))
    assert capsys.readouterr().err == ""


def test_a_line_that_is_no_property_is_named_and_not_shown(tmp_path: Path) -> None:
    path = written(tmp_path, "client.id=mine\np4ss")
    with pytest.raises(UsageError, match=r"client\.properties, line 2: expected NAME=VALUE") as refused:
        read_properties(path)
    assert "p4ss" not in str(refused.value)
    with pytest.raises(UsageError, match="cannot read"):
        read_properties(str(tmp_path / "missing"))


def test_properties_in_the_environment_are_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMAND_CONFIG, raising=False)
    properties = {"sasl.password": "a\\b\nc=d", "sasl.username": "alice"}
    with in_environment(properties):
        path = Path(os.environ[COMMAND_CONFIG])
        assert path.stat().st_mode & 0o777 == 0o600
        assert read_properties(str(path)) == properties
    assert COMMAND_CONFIG not in os.environ
    assert not path.exists()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    properties = {"ssl.key.pem": "-----BEGIN\nabc\\=\n-----END\t\r\n.", "a.b": "c"}
    write_properties(tmp_path / "file", properties)
    assert read_properties(str(tmp_path / "file")) == properties


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"serve", "zookeeper", "dump", "compile", "tls"}))
def test_every_command_that_asks_a_cluster_has_the_option(name: str) -> None:
    def check(command: object) -> None:
        for one in getattr(command, "commands", {}).values():
            check(one)
        names = {parameter.name for parameter in command.params}  # type: ignore[attr-defined]
        if "bootstrap" in names and getattr(command, "name", "") != "init":
            assert {"properties", "command_config"} <= names, getattr(command, "name", "")

    check(_load(name))


def test_a_wrong_setting_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown login module"):
        Cluster("h:1", {"sasl.jaas.config": "some.Module required;"})
