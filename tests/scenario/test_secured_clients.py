"""Every client of ours against a broker with TLS and SASL, and what each failure says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from typer.testing import CliRunner, Result

import skep
from skep.cli.failures import CommandError
from skep.cli.kafka import kafka_console_consumer, kafka_console_producer, kafka_topics
from skep.cli.main import app
from skep.client.connection import Connection
from skep.client.errors import ClientError, SecurityFailure
from skep.client.security.client_security import ClientSecurity
from skep.client.security.properties_file import write_properties
from skep.testing import EmbeddedBroker, EmbeddedCluster
from tests.scenario.queue_topics import OPTIONS, PATIENCE_S
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS, security="sasl_ssl") as broker:
        yield broker


@pytest.fixture
def config(broker: EmbeddedBroker) -> dict[str, str]:
    return broker.client_config


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


def java_form(config: dict[str, str]) -> dict[str, str]:
    return {
        "security.protocol": config["security.protocol"],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": config["ssl.ca.location"],
        "sasl.mechanism": config["sasl.mechanism"],
        "sasl.jaas.config": f'{JAAS} username="{config["sasl.username"]}" password="{config["sasl.password"]}";',
    }


@pytest.fixture
def properties_file(config: dict[str, str], tmp_path: Path) -> str:
    write_properties(tmp_path / "client.properties", java_form(config))
    return str(tmp_path / "client.properties")


@pytest.fixture
def secured(servers: str, properties_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address and the settings are in the environment."""
    monkeypatch.setenv("SKEP_BOOTSTRAP", servers)
    monkeypatch.setenv("SKEP_COMMAND_CONFIG", properties_file)


def skep_command(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def done(*arguments: object, stdin: str | None = None) -> str:
    result = skep_command(*arguments, stdin=stdin)
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    return result.stdout


def failed(*arguments: object) -> str:
    result = skep_command(*arguments)
    assert isinstance(result.exception, CommandError), f"{result.output}{result.exception!r}"
    assert "\n" not in str(result.exception)
    return str(result.exception)


def make(topic: str, partitions: int = 2) -> None:
    done("topics", "create", topic, "-p", partitions)


@pytest.mark.parametrize("form", ["librdkafka", "java"])
def test_arrow_tables_are_written_and_read(
    servers: str, config: dict[str, str], secured: None, topic: str, form: str
) -> None:
    make(topic)
    settings = config if form == "librdkafka" else java_form(config)
    # Some MB, so that writes and reads are in many pieces.
    table = pa.table({"value": [b"%06d" % number * 100 for number in range(8_000)]})
    assert skep.write_arrow(servers, topic, table, config=settings, compression="none").rows == 8_000
    in_one = skep.write_arrow(servers, topic, table.slice(0, 10), config=settings, transactional_id=f"{topic}-tx")
    assert in_one.rows == 10
    read = skep.read_arrow(servers, topic, config=settings)
    assert read.num_rows == 8_010
    assert sorted(set(read["value"].to_pylist())) == table["value"].to_pylist()


def test_commands_take_the_settings_from_a_file_the_environment_and_the_command_line(
    servers: str, config: dict[str, str], properties_file: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ("-b", servers)
    assert topic in done("topics", "create", topic, *here, "--command-config", properties_file)
    on_the_line = [part for name, value in config.items() for part in ("-X", f"{name}={value}")]
    assert topic in done("topics", "list", *here, *on_the_line)
    monkeypatch.setenv("SKEP_COMMAND_CONFIG", properties_file)
    assert topic in done("topics", "list", *here)
    # The command line wins.
    refused = failed("topics", "list", *here, "-X", "sasl.password=not-it")
    assert "refused the login of user 'admin'" in refused
    assert "not-it" not in refused


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "list"),
        ("groups", "list"),
        ("queues", "list"),
        ("transactions", "list"),
        ("cluster", "describe"),
        ("cluster", "config", "list"),
        ("health",),
    ],
    ids=" ".join,
)
def test_every_family_of_commands_asks_a_secured_cluster(secured: None, command: tuple[str, ...]) -> None:
    done(*command)


def test_records_groups_archives_and_queries(secured: None, topic: str, tmp_path: Path) -> None:
    make(topic, 1)
    done("produce", topic, stdin='{"id": 1}\n{"id": 2}\n')
    assert done("consume", topic, "--group", topic).splitlines() == ['{"id": 1}', '{"id": 2}']
    assert topic in done("groups", "describe", topic)
    assert done("sql", f"SELECT sum(id) AS s FROM `{topic}`", "--engine", "duckdb", "--json").strip() == '{"s":3}'
    assert json.loads(done("archive", topic, "--to", tmp_path / "lake", "--json"))["records"] == 2
    make(f"{topic}-again", 1)
    assert json.loads(done("replay", tmp_path / "lake", "--to", f"{topic}-again", "--json"))["records"] == 2


def test_the_worker_of_a_secured_broker_releases_held_records(secured: None, topic: str) -> None:
    make(topic, 1)
    done("topics", "create", f"{topic}-later", "-p", 1, "--config", f"skep.held.target={topic}")
    done("produce", f"{topic}-later", "--key-separator", ":", "--header", "delay-ms=1", stdin="k:at last\n")
    wait_until(lambda: done("consume", topic) == "at last\n", "the record is released")


def test_a_single_broker_without_a_login_of_its_own_says_that_its_worker_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    options = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "skep.first.user": "admin",
        "skep.first.user.password.file": str(tmp_path / "password"),
    }
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
    login |= {"sasl.username": "admin", "sasl.password": "open sesame"}
    with EmbeddedBroker(options=options) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **login})
        held = NewTopic("later", 1, 1, config={"skep.held.target": "now"})
        admin.create_topics([held])["later"].result(PATIENCE_S)
        wait_until(lambda: "the broker's worker has no login" in broker.log, "the line in the log")


def test_kafkas_commands_take_their_flags(
    servers: str, properties_file: str, topic: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ["--bootstrap-server", servers]
    config = ["--command-config", properties_file]
    kafka_topics.execute([*here, *config, "--create", "--topic", topic])
    kafka_topics.execute([*here, *config, "--list"])
    assert topic in capfd.readouterr().out.split()
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        kafka_console_producer.execute([*here, "--producer.config", properties_file, "--topic", topic])
    kafka_console_consumer.execute(
        [*here, "--consumer.config", properties_file, "--topic", topic, "--from-beginning", "--timeout-ms", "500"]
    )


def test_functions_work_and_answer(servers: str, config: dict[str, str], secured: None, topic: str) -> None:
    make(topic, 1)
    make(f"{topic}-questions", 1)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, topic, incremental_configs=[entry])
    admin = AdminClient(config)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    producer = Producer({**config, "log_level": 0})
    producer.produce(topic, b"job")
    assert producer.flush(PATIENCE_S) == 0
    seen: list[skep.Message] = []
    settings = java_form(config)

    def work(message: skep.Message) -> None:
        seen.append(message)
        if len(seen) == 1:
            # Its delay is a command of Skep to the leader, through our own client.
            raise skep.RetryLater(0)

    with skep.consume(topic, work, group=topic, bootstrap_servers=servers, config=settings):
        wait_until(lambda: len(seen) == 2, "the job comes twice")
    with skep.answer(
        f"{topic}-questions", lambda one: one.value or b"", group=f"{topic}-answers", bootstrap_servers=servers,
        config=settings,
    ):  # fmt: skip
        asked = skep.ask(f"{topic}-questions", "why?", bootstrap_servers=servers, config=settings, timeout=PATIENCE_S)
    assert asked == b"why?"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sasl.password": "not-it"}, r"refused the login of user 'admin' with PLAIN"),
        ({"sasl.mechanism": "SCRAM-SHA-512"}, "does not accept sasl.mechanism=SCRAM-SHA-512; it accepts PLAIN"),
        ({"ssl.ca.location": "/etc/ssl/certs"}, "is not trusted .*: set ssl.ca.location"),
        ({"security.protocol": "PLAINTEXT"}, "does this port want TLS"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "does this port want TLS"),
    ],
    ids=lambda value: "=".join(*value.items()) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_one_clear_line_for_every_client(
    servers: str, config: dict[str, str], topic: str, change: dict[str, str], words: str, tmp_path: Path
) -> None:
    wrong = {**config, **change}
    write_properties(tmp_path / "wrong.properties", wrong)
    here = ("-b", servers, "--command-config", tmp_path / "wrong.properties")
    said = [failed("topics", "list", *here), failed("cluster", "describe", *here)]
    with pytest.raises(ClientError) as refused:
        skep.read_arrow(servers, topic, config=wrong, timeout_s=2)
    if "PLAINTEXT" not in wrong["security.protocol"]:
        assert isinstance(refused.value, SecurityFailure), "it is not tried again"
    for text in (*said, str(refused.value)):
        assert re.search(words, text), text
        assert config["sasl.password"] not in text
        assert "not-it" not in text


@pytest.mark.parametrize("security", ["ssl", "sasl_plaintext"])
def test_a_broker_of_another_protocol_survives_a_kill(security: str, topic: str) -> None:
    with EmbeddedBroker(security=security) as broker:
        config = broker.client_config
        assert ("sasl.username" in config) is (security == "sasl_plaintext")
        assert ("ssl.key.location" in config) is (security == "ssl")
        producer = Producer({**config, "log_level": 0})
        producer.produce(topic, b"before")
        assert producer.flush(PATIENCE_S) == 0
        broker.kill()
        broker.restart()
        assert broker.client_config == config
        assert skep.read_arrow(broker.bootstrap_servers, topic, config=config)["value"].to_pylist() == [b"before"]


def test_a_client_outlives_its_sessions(topic: str) -> None:
    with EmbeddedBroker(security="sasl_ssl", options={"connections.max.reauth.ms": "300"}) as broker:
        config, (host, port) = broker.client_config, broker.bootstrap_servers.split(":")
        producer = Producer({**config, "log_level": 0})
        producer.produce(topic, b"first")
        assert producer.flush(PATIENCE_S) == 0

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(4):
                yield pa.record_batch({"value": [b"%d" % number]})
                security = ClientSecurity.of(config)
                with Connection(host, int(port), client_id="watch", timeout_s=PATIENCE_S, security=security) as watch:
                    # It was opened after that of the writer.
                    wait_until(lambda: watch.is_expiring, "the sessions end")

        assert skep.write_arrow(broker.bootstrap_servers, topic, batches(), config=config).rows == 4
        assert skep.read_arrow(broker.bootstrap_servers, topic, config=config).num_rows == 5
        assert "did not authenticate again" not in broker.log


def test_a_cluster_is_secured_between_its_brokers_too(topic: str) -> None:
    with EmbeddedCluster(brokers=3, security="sasl_ssl") as cluster:
        producer = Producer({**cluster.client_config, "acks": "all", "log_level": 0})
        producer.produce(topic, b"before")
        assert producer.flush(PATIENCE_S) == 0
        cluster.wait_until_in_sync()
        leader = cluster.leader_of(topic)
        cluster.kill(leader)
        producer.produce(topic, b"after")
        assert producer.flush(PATIENCE_S) == 0
        cluster.restart(leader)
        cluster.wait_until_in_sync()
        read = skep.read_arrow(cluster.bootstrap_servers, topic, config=cluster.client_config)
        assert sorted(read["value"].to_pylist()) == [b"after", b"before"]
