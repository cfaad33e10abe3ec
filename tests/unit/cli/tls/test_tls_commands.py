import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from skep.cli.failures import CommandError
from skep.cli.main import app


def tls(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["tls", *map(str, arguments)])
    if isinstance(result.exception, CommandError):
        raise result.exception
    return result


def test_init_makes_the_files_and_prints_the_settings_of_every_client(tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    printed = tls("init", directory, "--client", "alice", "--client", "bob", "--host", "b1.example.org").output
    assert {path.name for path in directory.iterdir()} == {"ca.pem", "ca.key", "broker.pem", "alice.pem", "bob.pem"}
    for client in ("confluent-kafka", "kafka-python", "aiokafka", "Java", "Spark"):
        assert client in printed
    for setting in ("ssl.ca.location=", "ssl_cafile=", "create_ssl_context(cafile=", "ssl.truststore.location="):
        assert f"{setting}" in printed
    assert "b1.example.org:9093" in printed
    assert "BEGIN" not in printed


def test_the_broker_options_that_init_prints_are_toml(tmp_path: Path) -> None:
    printed = tls("init", tmp_path / "tls", "--client", "alice").output
    options = printed[printed.index("# The broker's options") : printed.index("# confluent-kafka")]
    values = tomllib.loads(options)
    assert values["ssl"]["keystore"] == {"type": "PEM", "location": str(tmp_path / "tls" / "broker.pem")}
    assert values["ssl"]["client"]["auth"] == "required"


def test_show_tells_names_and_expiry(tmp_path: Path) -> None:
    tls("init", tmp_path, "--host", "b1.example.org", "--days", 10)
    printed = tls("show", tmp_path / "broker.pem").output
    assert "CN=broker" in printed
    assert "b1.example.org" in printed
    assert "9 days left" in printed
    assert '"daysLeft": 9' in tls("show", "--json", tmp_path / "broker.pem").output


def test_sign_adds_a_client_and_renews_a_broker(tmp_path: Path) -> None:
    tls("init", tmp_path)
    assert tls("sign", tmp_path, "carol").output.strip() == str(tmp_path / "carol.pem")
    before = (tmp_path / "broker.pem").read_bytes()
    tls("sign", tmp_path, "broker", "--host", "b2.example.org", "--renew")
    assert (tmp_path / "broker.pem").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--client", "broker"), "taken by the broker"),
        (("--client", "a/b"), "letters, digits"),
        (("--client", "ca"), "taken by the authority"),
        (("--host", "x:9092"), "without a port"),
        (("--days", "0"), "expected 1 to"),
    ],
)
def test_a_bad_argument_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    directory = tmp_path / "tls"
    with pytest.raises(CommandError, match=message):
        tls("init", directory, *arguments)
    assert not directory.exists()


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    tls("init", tmp_path)
    with pytest.raises(CommandError, match="exists already"):
        tls("init", tmp_path)


def test_sign_without_an_authority_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot read"):
        tls("sign", tmp_path, "alice")
