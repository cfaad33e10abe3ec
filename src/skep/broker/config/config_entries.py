"""What is in force for a topic or a broker, option by option, and where each value comes from.

A value is looked for from the strongest source to the weakest; the first one found holds::

    1 topic             set for this topic; 8 group, set for this group
    2 broker            set for this broker while it ran
    3 default broker    set for all brokers while they ran
    4 static broker     given at start: file, environment, command line
    5 default           declared with the option

A topic's option goes on below 1 with the broker option that is its default, if it has one: ``retention.ms`` with
``log.retention.ms``.
"""

import enum
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from skep.base.config.broker_config import ALIASES, BrokerConfig, topic_defaults_by_broker_name
from skep.base.config.option import Option, declared, meant, parse_into
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.base.ids import BrokerId
from skep.broker.refusals import repeated
from skep.broker.services import Services
from skep.metadata.cluster_image import CLUSTER_DEFAULT

TOPIC_OPTIONS: Mapping[str, Option] = declared(TopicConfig)

_TOPIC_DEFAULTS = topic_defaults_by_broker_name()

BROKER_OPTIONS: Mapping[str, Option] = {
    **declared(BrokerConfig),
    **{name: replace(option, name=name) for name, option in _TOPIC_DEFAULTS.items()},
}
"""The broker's own options and the defaults of topics, which are broker options too."""

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
_OTHER_RESOURCES = {8: "BROKER_LOGGER", 16: "CLIENT_METRICS"}

MAX_CONFIGS = 1_000
"""Of one resource in one request. No resource has as many options."""
MAX_VALUE_LENGTH = 32_767
"""Where a string of the older versions ends: a longer value could be set and then not be described."""


class Source(enum.IntEnum):
    """Kafka's numbers for where a value comes from."""

    TOPIC = 1
    BROKER = 2
    DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Synonym(NamedTuple):
    """One place where a value was looked for and found, under the name that it has there."""

    name: str
    value: str
    source: Source


class ConfigEntry(NamedTuple):
    """An option with what is in force; ``synonyms`` begins with where that comes from."""

    option: Option
    value: str
    synonyms: tuple[Synonym, ...]

    @property
    def source(self) -> Source:
        return self.synonyms[0].source if self.synonyms else Source.DEFAULT


def topic_entries(services: Services, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every topic option, for a topic with these overrides."""
    entries = []
    for name, option in TOPIC_OPTIONS.items():
        entry = ConfigEntry(option, option.show(option.default), ())
        if option.broker_name is not None:
            entry = broker_entry(services, BROKER_OPTIONS[option.broker_name])._replace(option=option)
        if (override := overrides.get(name)) is not None:
            entry = ConfigEntry(option, override, (Synonym(name, override, Source.TOPIC), *entry.synonyms))
        entries.append(entry)
    return entries


def broker_entries(services: Services) -> list[ConfigEntry]:
    """Every option of this broker."""
    return [broker_entry(services, option) for option in BROKER_OPTIONS.values()]


def default_broker_entries(services: Services) -> list[ConfigEntry]:
    """What was set for all brokers, and nothing else: as Kafka describes the broker without a name."""
    overrides = services.catalog.image.broker_config(CLUSTER_DEFAULT)
    return [
        ConfigEntry(option, overrides[name], (Synonym(name, overrides[name], Source.DEFAULT_BROKER),))
        for name, option in BROKER_OPTIONS.items()
        if name in overrides
    ]


def broker_entry(services: Services, option: Option) -> ConfigEntry:
    image, name = services.catalog.image, option.name
    synonyms = []
    for owner, source in ((services.node.id, Source.BROKER), (CLUSTER_DEFAULT, Source.DEFAULT_BROKER)):
        if (override := image.broker_config(owner).get(name)) is not None:
            synonyms.append(Synonym(name, override, source))
    # Not "synonyms[0].value" for what was given at start: that may be in hours where the option is in milliseconds.
    value = synonyms[0].value if synonyms else _in_force(services, option)
    synonyms += [
        Synonym(spelled, services.static_config[spelled], Source.STATIC_BROKER)
        for spelled in (name, *(alias for alias, (target, _) in ALIASES.items() if target == name))
        if spelled in services.static_config
    ]
    synonyms.append(Synonym(name, option.show(option.default), Source.DEFAULT))
    return ConfigEntry(option, value, tuple(synonyms))


def _in_force(services: Services, option: Option) -> str:
    if option.name == "advertised.listeners":
        # Left empty it means the address listened on; whoever asks wants to know which.
        host = services.node.host
        return f"[{host}]:{services.node.port}" if ":" in host else f"{host}:{services.node.port}"
    holder = services.config.topic_defaults if option.name in _TOPIC_DEFAULTS else services.config
    return option.show(getattr(holder, option.field))


def owner_of(services: Services, resource_name: str) -> BrokerId | str:
    """Whose overrides a broker resource means: this broker's by its id, all brokers' by the empty name."""
    if resource_name == CLUSTER_DEFAULT:
        return CLUSTER_DEFAULT
    if not resource_name.removeprefix("-").isdecimal():
        raise KafkaError(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {resource_name}")
    if resource_name != str(services.node.id):
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {services.node.id} or empty string, but received {resource_name}",
        )
    return services.node.id


def unsupported_resource(resource_type: int) -> KafkaError:
    name = _OTHER_RESOURCES.get(resource_type, resource_type)
    return KafkaError(ErrorCode.invalid_request, f"Unsupported resource type: {name}; only TOPIC, BROKER and GROUP are")


def checked_topic_value(name: str, text: str) -> str:
    """The value as it is stored, in Kafka's spelling; INVALID_CONFIG names the option and what is wrong."""
    return checked_value(name, text, TOPIC_OPTIONS, "topic")


def check_topic_overrides(services: Services, overrides: Mapping[str, str]) -> None:
    """INVALID_CONFIG when values that are right one by one do not go together."""
    config = parse_into(services.config.topic_defaults, overrides)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is more than max.compaction.lag.ms "
            f"({config.max_compaction_lag_ms})",
        )


def checked_value(name: str, text: str, options: Mapping[str, Option], kind: str) -> str:
    return _checked(_known(name, options, kind), text, ErrorCode.invalid_config)


def checked_broker_value(name: str, text: str) -> str:
    """The same for a broker. Kafka answers INVALID_REQUEST for a bad value there (KAFKA-13609), and so it stays."""
    option = _known(name, BROKER_OPTIONS, "broker")
    if not option.dynamic:
        raise KafkaError(
            ErrorCode.invalid_request, f"Cannot update these configs dynamically: {name}; it is read at start only"
        )
    return _checked(option, text, ErrorCode.invalid_request)


def _known(name: str, options: Mapping[str, Option], kind: str) -> Option:
    if name not in options:
        # A name of a megabyte is not a slip of the finger, and looking for what it resembles would take seconds.
        hint = meant(name, options) if len(name) < 100 else ""
        raise KafkaError(ErrorCode.invalid_config, f"Unknown {kind} config name: {name}{hint}")
    return options[name]


def _checked(option: Option, text: str, code: ErrorCode) -> str:
    if len(text.encode()) > MAX_VALUE_LENGTH:
        raise KafkaError(code, f"{option.name}: the value is longer than {MAX_VALUE_LENGTH} bytes")
    try:
        return option.show(option.parse(text))
    except OptionError as error:
        raise KafkaError(code, f"Invalid value for configuration {error}") from None


def check_count(configs: Sequence[Any]) -> Sequence[Any]:
    """``configs``, or INVALID_REQUEST when there are many more than options: they are looked at without a pause."""
    if len(configs) > MAX_CONFIGS:
        raise KafkaError(
            ErrorCode.invalid_request, f"A resource has {len(configs)} configs, there may be {MAX_CONFIGS}."
        )
    return configs


def texts_in(configs: Sequence[Any], *, null_is: ErrorCode, may_be_null: Container[str] = ()) -> dict[str, str]:
    """Names and values as a request gives them; a name twice is refused, and one without a value unless it may be."""
    configs = check_count(configs)
    if twice := repeated(config.name for config in configs):
        raise KafkaError(ErrorCode.invalid_request, f"Error due to duplicate config keys: {', '.join(sorted(twice))}")
    if nulls := [config.name for config in configs if config.value is None and config.name not in may_be_null]:
        raise KafkaError(null_is, f"Null value not supported for configs: {', '.join(nulls)}")
    return {config.name: config.value for config in configs if config.value is not None}
