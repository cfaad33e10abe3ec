"""Options: declared once, read from text, shown as text; and the tables of the broker's and the topics' options."""

from dataclasses import dataclass, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.broker_config import ALIASES, BrokerConfig, read_broker_config, topic_defaults_by_broker_name
from skep.base.config.cluster_config import ClusterConfig
from skep.base.config.coordinator_config import CoordinatorConfig
from skep.base.config.option import (
    OptionType,
    anything,
    at_least,
    between,
    declared,
    each_of,
    one_of,
    option,
    parse_into,
)
from skep.base.config.security_config import SecurityConfig
from skep.base.config.share_config import ShareConfig
from skep.base.config.topic_config import HOUR_MS, TopicConfig
from skep.base.errors import OptionError


@dataclass(frozen=True)
class Sample:
    count: int = option("a.count", 3, at_least(1), "A number.")
    size: int = option("a.size", 1, anything, "A large number.", type=OptionType.LONG)
    ratio: float = option("a.ratio", 0.5, between(0, 1), "A part.")
    switch: bool = option("a.switch", False, anything, "A switch.", dynamic=False)
    kind: str = option("a.kind", "x", one_of("x", "y"), "A word.")
    names: tuple[str, ...] = option("a.names", ("p",), each_of("p", "q"), "Words.")
    other: int = 5


def test_options_are_declared_in_their_order_with_the_type_of_their_default():
    assert {name: o.type for name, o in declared(Sample).items()} == {
        "a.count": OptionType.INT,
        "a.size": OptionType.LONG,
        "a.ratio": OptionType.DOUBLE,
        "a.switch": OptionType.BOOLEAN,
        "a.kind": OptionType.STRING,
        "a.names": OptionType.LIST,
    }
    assert declared(Sample)["a.switch"].dynamic is False
    assert declared(Sample)["a.count"].default == 3


def test_texts_become_values_and_what_is_not_named_keeps_its_value():
    texts = {"a.count": " 7 ", "a.ratio": "1", "a.switch": "TRUE", "a.kind": "y", "a.names": "q, p,"}
    assert parse_into(Sample(size=9), texts) == Sample(7, 9, 1.0, True, "y", ("q", "p"))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.count", "many", "expected a 32-bit number"),
        ("a.count", "", "expected a 32-bit number"),
        ("a.count", "1.5", "expected a 32-bit number"),
        ("a.count", "1_000", "expected a 32-bit number"),
        ("a.count", "\u0663", "expected a 32-bit number"),
        ("a.count", "2147483648", "expected a 32-bit number"),
        ("a.count", "9" * 5000, "expected a 32-bit number"),
        ("a.count", "0", "must be at least 1"),
        ("a.size", "9223372036854775808", "expected a 64-bit number"),
        ("a.ratio", "half", "expected a number"),
        ("a.ratio", "0.1_5", "expected a number"),
        ("a.ratio", "1.1", "must be between 0 and 1"),
        ("a.ratio", "nan", "must be between 0 and 1"),
        ("a.switch", "yes", "expected true or false"),
        ("a.kind", "X", "must be one of x, y"),
        ("a.names", "p,z", "must be a list of p, q"),
        ("a.names", "", "must be a list of p, q"),
    ],
)
def test_a_text_that_is_not_a_value_is_refused_with_the_option_the_text_and_the_reason(name, text, reason):
    with pytest.raises(OptionError) as refused:
        parse_into(Sample(), {name: text})
    assert str(refused.value) == f"{name}={text}: {reason}"


def test_an_unknown_option_is_refused_and_a_near_one_is_suggested():
    with pytest.raises(OptionError, match=r"a\.cuont: there is no such option; did you mean a\.count\?"):
        parse_into(Sample(), {"a.cuont": "1"})
    with pytest.raises(OptionError, match=r"there is no such option$"):
        parse_into(Sample(), {"zzz": "1"})
    with pytest.raises(OptionError):
        parse_into(Sample(), {"other": "1"})


@pytest.mark.parametrize("config", [TopicConfig(), BrokerConfig()])
def test_every_default_passes_its_own_check_and_is_read_back_from_what_is_shown(config):
    for declared_option in declared(config).values():
        assert declared_option.parse(declared_option.show(declared_option.default)) == declared_option.default


@given(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(0, 1), st.sampled_from([("p",), ("q", "p")]))
def test_any_value_is_read_back_from_what_is_shown(number, switch, ratio, names):
    values = {"a.size": number, "a.switch": switch, "a.ratio": ratio, "a.names": names}
    texts = {name: declared(Sample)[name].show(value) for name, value in values.items()}
    assert parse_into(Sample(), texts) == replace(Sample(), size=number, switch=switch, ratio=ratio, names=names)


def test_no_two_options_share_a_name_and_each_has_a_sentence():
    broker, topic_defaults = declared(BrokerConfig), topic_defaults_by_broker_name()
    assert not set(broker) & set(topic_defaults)
    assert len(topic_defaults) == len([o for o in declared(TopicConfig).values() if o.broker_name])
    assert not set(ALIASES) & (set(broker) | set(topic_defaults))
    assert {target for target, _ in ALIASES.values()} <= set(broker) | set(topic_defaults)
    assert all(o.doc.endswith(".") for config in (BrokerConfig, TopicConfig) for o in declared(config).values())


def test_broker_options_and_topic_defaults_are_read_from_one_set_of_texts():
    config = read_broker_config({"node.id": "7", "log.segment.bytes": "1000", "log.retention.ms": "-1"})
    assert config.node_id == 7
    assert config.topic_defaults == replace(TopicConfig(), segment_bytes=1000, retention_ms=-1)
    assert read_broker_config({"num.partitions": "3"}, config) == replace(config, num_partitions=3)


def test_the_options_of_sections_are_options_of_the_broker():
    config = read_broker_config({"node.id": "7", "skep.metadata": "sqlite:x", "group.max.size": "5"})
    assert (config.node_id, config.cluster.metadata, config.coordinator.group_max_size) == (7, "sqlite:x", 5)
    again = read_broker_config({"replica.fetch.min.bytes": "2"}, config)
    assert again == replace(config, cluster=replace(config.cluster, replica_fetch_min_bytes=2))
    options = declared(BrokerConfig)
    assert {options[name].value_in(config) for name in ("node.id", "skep.metadata", "group.max.size")} == {
        7,
        "sqlite:x",
        5,
    }
    own = [field for field in fields(BrokerConfig) if "name" in field.metadata]
    sections = (ClusterConfig, CoordinatorConfig, SecurityConfig, ShareConfig)
    assert len(options) == len(own) + sum(len(declared(section)) for section in sections)


def test_an_alias_is_read_in_its_own_unit_and_minus_one_is_still_never():
    assert read_broker_config({"log.retention.hours": "2"}).topic_defaults.retention_ms == 2 * HOUR_MS
    assert read_broker_config({"log.retention.minutes": "-1"}).topic_defaults.retention_ms == -1
    assert read_broker_config({"broker.id": "4"}).node_id == 4
    with pytest.raises(OptionError, match=r"log\.retention\.hours=soon"):
        read_broker_config({"log.retention.hours": "soon"})


def test_a_bad_topic_default_is_refused_under_the_name_that_the_operator_wrote():
    with pytest.raises(OptionError, match=r"log\.segment\.bytes=1: must be between"):
        read_broker_config({"log.segment.bytes": "1"})


def test_a_misspelt_broker_option_is_suggested_from_all_that_there_are():
    with pytest.raises(OptionError, match=r"did you mean log\.retention\.ms\?"):
        read_broker_config({"log.retention.m": "5"})


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_units_the_finer_one_wins_in_any_order(order):
    given = [("log.retention.ms", "5"), ("log.retention.minutes", "1"), ("log.retention.hours", "1")]
    assert read_broker_config(dict(given[::order])).topic_defaults.retention_ms == 5
    assert read_broker_config(dict(given[1:][::order])).topic_defaults.retention_ms == 60_000
