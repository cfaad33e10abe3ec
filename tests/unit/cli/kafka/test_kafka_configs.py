"""``kafka-configs``: which entity the flags name, and which configs."""

import pytest

from skep.cli.cluster.config_admin import Config, Source, Synonym
from skep.cli.failures import UsageError
from skep.cli.kafka.kafka_configs import _parser, config_row, configs_to_add, entity_of, execute

HERE = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("flags", "entity"),
    [
        ("--entity-type topics --entity-name orders", ("topics", "orders")),
        ("--entity-type topics", ("topics", None)),
        ("--topic orders", ("topics", "orders")),
        ("--entity-type brokers --entity-name 1", ("brokers", "1")),
        ("--broker 1", ("brokers", "1")),
        ("--entity-type brokers --entity-default", ("brokers", "")),
        ("--broker-defaults", ("brokers", "")),
        ("--group billing", ("groups", "billing")),
    ],
)
def test_the_flags_name_an_entity(flags: str, entity: tuple[str, str | None]) -> None:
    assert entity_of(_parser().parse([*HERE, *flags.split()])) == entity


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--describe", "--entity-type must be specified"),
        ("--entity-type topics", "exactly one action"),
        ("--describe --alter --topic orders", "exactly one action"),
        ("--describe --entity-type client-metrics", "only topics, brokers, groups have configs here"),
        ("--describe --entity-type toppics", "Invalid entity type toppics"),
        ("--describe --entity-type topics --entity-default", "--entity-default can only be used with"),
        ("--describe --broker first", "must be a valid integer broker id, found: first"),
        ("--describe --topic orders --entity-name bills", "--topic cannot be used with --entity-name"),
        ("--describe --topic orders --add-config a=1", "cannot be used with --describe"),
        ("--alter --topic orders --all", "--all cannot be used with --alter"),
        ("--alter --topic orders", "At least one of --add-config"),
        ("--alter --entity-type topics --add-config a=1", "An entity name must be specified"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        execute([*HERE, *flags.split()])


@pytest.mark.parametrize(
    ("text", "configs"),
    [
        ("retention.ms=1", {"retention.ms": "1"}),
        ("a=1, b = 2", {"a": "1", "b": "2"}),
        ("a=", {"a": ""}),
        ("cleanup.policy=[compact,delete],a=1", {"cleanup.policy": "compact,delete", "a": "1"}),
    ],
)
def test_brackets_hold_a_value_with_commas_together(text: str, configs: dict[str, str]) -> None:
    assert configs_to_add(_parser().parse([*HERE, "--add-config", text])) == configs


def test_a_config_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match='in the format "key=val"'):
        configs_to_add(_parser().parse([*HERE, "--add-config", "a=1,b"]))


def test_a_row_is_kafkas() -> None:
    synonyms = (Synonym(Source.DYNAMIC_DEFAULT_BROKER_CONFIG, "n", "3"), Synonym(Source.DEFAULT_CONFIG, "n", "1"))
    config = Config("n", "3", Source.DYNAMIC_DEFAULT_BROKER_CONFIG, False, False, synonyms)
    told = "  n=3 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:n=3, DEFAULT_CONFIG:n=1}"
    assert config_row(config) == told
