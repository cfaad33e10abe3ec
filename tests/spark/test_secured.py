"""Spark reads and writes topics of a broker with TLS and SASL, and shows the secrets nowhere."""

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import skep
from skep.base.environment_variables import COMMAND_CONFIG
from skep.client.security.properties_file import write_properties
from skep.testing import EmbeddedBroker

pytestmark = pytest.mark.xdist_group("spark")
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(security="sasl_ssl") as broker:
        yield broker


@pytest.fixture
def options(secured: EmbeddedBroker) -> dict[str, str]:
    """As queries on Spark's own Kafka source have them."""
    config = secured.client_config
    java = {
        "security.protocol": config["security.protocol"],
        "sasl.mechanism": config["sasl.mechanism"],
        "sasl.jaas.config": f'{JAAS} username="{config["sasl.username"]}" password="{config["sasl.password"]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": config["ssl.ca.location"],
    }
    return {f"kafka.{name}": value for name, value in {**java, "bootstrap.servers": secured.bootstrap_servers}.items()}


def create(secured: EmbeddedBroker, topic: str) -> None:
    admin = AdminClient(secured.client_config)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)


@pytest.fixture
def filled(secured: EmbeddedBroker, topic: str) -> str:
    create(secured, topic)
    producer = Producer(secured.client_config)
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    return topic


def plan_of(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain("extended")
    return printed.getvalue()


def written(folder: Path) -> str:
    return "".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_a_batch_reads_and_writes_and_its_plan_has_no_secret(
    spark: SparkSession, secured: EmbeddedBroker, options: dict[str, str], filled: str
) -> None:
    rows = spark.read.format("skep").options(**options).option("subscribe", filled).load()
    assert rows.count() == 20
    password = secured.client_config["sasl.password"]
    assert password not in plan_of(rows)
    assert password not in rows._jdf.queryExecution().toString()
    rows.selectExpr("value").write.format("skep").options(**options).option("topic", filled).mode("append").save()
    read = skep.read_arrow(secured.bootstrap_servers, filled, config=secured.client_config)
    assert read.num_rows == 40


def test_a_stream_reads_and_writes_and_nothing_it_leaves_has_a_secret(
    spark: SparkSession, secured: EmbeddedBroker, options: dict[str, str], filled: str, tmp_path: Path
) -> None:
    create(secured, f"{filled}-copy")
    rows = (
        spark.readStream.format("skep")
        .options(**options)
        .option("subscribe", filled)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        rows.selectExpr("value")
        .writeStream.format("skep")
        .options(**options)
        .option("topic", f"{filled}-copy")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    read = skep.read_arrow(secured.bootstrap_servers, f"{filled}-copy", config=secured.client_config)
    assert read.num_rows == 20
    password = secured.client_config["sasl.password"]
    shown = [json.dumps(progress, default=str) for progress in query.recentProgress]
    assert shown
    assert not [text for text in (*shown, written(tmp_path), str(query.explain)) if password in text]


def test_settings_of_the_environment_are_no_options_of_the_query(
    secured: EmbeddedBroker, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_skep.read.read_options import read_options

    write_properties(tmp_path / "client.properties", secured.client_config)
    monkeypatch.setenv(COMMAND_CONFIG, str(tmp_path / "client.properties"))
    read = read_options({"kafka.bootstrap.servers": secured.bootstrap_servers, "subscribe": filled})
    assert repr(read.security) == "ClientSecurity(SASL_SSL, PLAIN, admin)"
    assert secured.client_config["sasl.password"] not in repr(read)
    won = read_options({"kafka.bootstrap.servers": "h:1", "subscribe": filled, "kafka.security.protocol": "SSL"})
    assert won.security.protocol == "SSL"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kafka.sasl.jaas.config": f'{JAAS} username="admin" password="not-it-at-all";'}, "refused the login of user"),
        ({"kafka.sasl.jaas.config": "not.a.Module password=not-it-at-all;"}, "sasl.jaas.config"),
    ],
    ids=["wrong password", "no login module"],
)
def test_a_wrong_setting_fails_the_query_at_once_and_is_not_shown(
    spark: SparkSession, options: dict[str, str], topic: str, change: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        spark.read.format("skep").options(**{**options, **change}).option("subscribe", topic).load().collect()
    assert words in str(refused.value)
    assert "not-it-at-all" not in str(refused.value)
