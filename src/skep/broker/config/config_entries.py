"""The values in force of a topic's or a broker's options, each with its source.

The first source that has a value wins::

    1 topic             set for this topic; 8 group, set for this group
    2 broker            set for this broker at run time
    3 default broker    set for all brokers at run time
    4 static broker     given at start: file, environment, command line
    5 default           declared with the option

An option of a topic may have a broker option as its default: ``retention.ms`` has ``log.retention.ms``. Then the
sources below 1 are those of the broker option. As in Kafka the default of some is in hours, under the name for that:
``log.retention.hours``.

Options that Kafka has and Skep does not use are described if somebody has set them (``unused_options.py``).
"""

import enum
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from skep.base.addresses import NamedAddress, show_address
from skep.base.config.broker_config import ALIASES, BrokerConfig, topic_defaults_by_broker_name
from skep.base.config.option import Option, declared, meant, parse_into
from skep.base.config.security_config import LISTENER_PREFIX, PLAINTEXT, option_of_listener
from skep.base.config.topic_config import HOUR_MS, TopicConfig
from skep.base.config.unused_options import is_kept, is_read_at_start, unused_option
from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.base.ids import BrokerId
from skep.broker.permissions import CLUSTER, GROUP, TOPIC, check_item
from skep.broker.refusals import repeated
from skep.broker.request import AnyRequest
from skep.broker.services import Services
from skep.broker.topics.topic_creation import INTERNAL_TOPICS
from skep.broker.worker.held_topics import HELD_TARGET, check_held, check_held_room
from skep.metadata.cluster_image import CLUSTER_DEFAULT
from skep.metadata.model import BrokerRecord
from skep.security.operations import CLUSTER_NAME

TOPIC_OPTIONS: Mapping[str, Option] = declared(TopicConfig)

_TOPIC_DEFAULTS = topic_defaults_by_broker_name()

BROKER_OPTIONS: Mapping[str, Option] = {
    **declared(BrokerConfig),
    **{name: replace(option, name=name) for name, option in _TOPIC_DEFAULTS.items()},
}
"""The broker's own options, and the defaults of topic options, which are broker options too."""

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
_OTHER_RESOURCES = {8: "BROKER_LOGGER", 16: "CLIENT_METRICS"}

MAX_CONFIGS = 1_000
"""The limit of configs of one resource in one request. No resource has as many options."""
MAX_VALUE_LENGTH = 32_767
"""The limit of a string in the older versions. A longer value could be set and then not be described."""


class Source(enum.IntEnum):
    """The source of a value, with Kafka's numbers."""

    TOPIC = 1
    BROKER = 2
    DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Synonym(NamedTuple):
    """A value of one source, with the name that the option has there."""

    name: str
    value: str
    source: Source


class ConfigEntry(NamedTuple):
    """An option with its value in force. The first of ``synonyms`` is the source of the value."""

    option: Option
    value: str
    synonyms: tuple[Synonym, ...]

    @property
    def source(self) -> Source:
        return self.synonyms[0].source if self.synonyms else Source.DEFAULT


def topic_entries(services: Services, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Returns every topic option, for a topic with these overrides."""
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
    """Returns every option of this broker, and the unused ones that were set for it."""
    image = services.catalog.image
    entries = [broker_entry(services, option) for option in BROKER_OPTIONS.values()]
    entries += [
        broker_entry(services, option) for option in map(option_of_listener, services.config.of_listeners) if option
    ]
    unused = filter(is_kept, {**image.broker_config(CLUSTER_DEFAULT), **image.broker_config(services.node.id)})
    for option in map(unused_option, unused):
        synonyms = _set_at_run_time(services, option.name)
        entries.append(ConfigEntry(option, synonyms[0].value, tuple(synonyms)))
    return entries


def default_broker_entries(services: Services) -> list[ConfigEntry]:
    """Returns only the options that were set for all brokers, as Kafka describes the broker with the empty name."""
    return [
        ConfigEntry(
            BROKER_OPTIONS.get(name) or option_of_listener(name) or unused_option(name),
            text,
            (Synonym(name, text, Source.DEFAULT_BROKER),),
        )
        for name, text in services.catalog.image.broker_config(CLUSTER_DEFAULT).items()
        if name in BROKER_OPTIONS or name.startswith(LISTENER_PREFIX) or is_kept(name)
    ]


def broker_entry(services: Services, option: Option) -> ConfigEntry:
    name = option.name
    synonyms = _set_at_run_time(services, name)
    # A static value is not taken from the synonyms: it may be in hours where the option is in milliseconds.
    value = synonyms[0].value if synonyms else _in_force(services, option)
    aliases = {alias: factor for alias, (target, factor) in ALIASES.items() if target == name}
    spellings = [name, *aliases]
    if name == "advertised.listeners":
        spellings.append("listeners")  # advertised.listeners has its value unless it is set
    synonyms += [
        Synonym(spelled, services.static_config[spelled], Source.STATIC_BROKER)
        for spelled in spellings
        if spelled in services.static_config
    ]
    synonyms.append(_default(option, aliases))
    return ConfigEntry(option, value, tuple(synonyms))


def _set_at_run_time(services: Services, name: str) -> list[Synonym]:
    image = services.catalog.image
    synonyms = []
    for owner, source in ((services.node.id, Source.BROKER), (CLUSTER_DEFAULT, Source.DEFAULT_BROKER)):
        if (override := image.broker_config(owner).get(name)) is not None:
            synonyms.append(Synonym(name, override, source))
    return synonyms


def _default(option: Option, aliases: Mapping[str, int]) -> Synonym:
    for alias, factor in aliases.items():
        if factor == HOUR_MS:
            return Synonym(alias, str(option.default // factor), Source.DEFAULT)
    return Synonym(option.name, option.show(option.default), Source.DEFAULT)


def shown_endpoints(node: BrokerRecord) -> str:
    """Returns the advertised addresses as the option has them. A single one without TLS and SASL needs no name."""
    if len(node.endpoints) < 2 and all(name == PLAINTEXT for name, _, _ in node.endpoints):
        return show_address(node.host, node.port)
    return ",".join(str(NamedAddress(*endpoint)) for endpoint in node.endpoints)


def _in_force(services: Services, option: Option) -> str:
    if option.name == "advertised.listeners":
        # The empty value means the addresses of the listeners, which are shown instead.
        return shown_endpoints(services.node)
    if option.name in services.config.of_listeners:
        return services.config.of_listeners[option.name]
    holder = services.config.topic_defaults if option.name in _TOPIC_DEFAULTS else services.config
    return option.show(option.value_in(holder))


def owner_of(services: Services, resource_name: str) -> BrokerId | str:
    """Returns the owner of a broker resource's overrides: this broker for its id, all brokers for the empty name."""
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


def check_config(request: AnyRequest, resource_type: int, name: str) -> None:
    """Raises KafkaError unless the client may see or change the configs of a topic, a group or a broker."""
    kind = {TOPIC_RESOURCE: TOPIC, GROUP_RESOURCE: GROUP}.get(resource_type, CLUSTER)
    check_item(request, kind, CLUSTER_NAME if kind is CLUSTER else name)


def unsupported_resource(resource_type: int) -> KafkaError:
    name = _OTHER_RESOURCES.get(resource_type, resource_type)
    return KafkaError(
        ErrorCode.invalid_request, f"Unsupported resource type: {name}. Supported are TOPIC, BROKER and GROUP."
    )


def checked_topic_value(name: str, text: str) -> str:
    """Returns the value as it is stored, in Kafka's spelling. Raises INVALID_CONFIG."""
    return checked_value(name, text, TOPIC_OPTIONS, "topic")


def check_topic_overrides(services: Services, name: str, overrides: Mapping[str, str]) -> None:
    """Raises INVALID_CONFIG if valid values contradict each other."""
    config = parse_into(services.config.topic_defaults, overrides)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} must not be greater than "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}",
        )
    image = services.catalog.image
    check_held(name, config, image, INTERNAL_TOPICS)
    if config.held_target and name in image.topics and not image.topics[name].config.get(HELD_TARGET):
        check_held_room(image, services.config.held_max_partitions, len(image.topics[name].partitions))


def checked_value(name: str, text: str, options: Mapping[str, Option], kind: str) -> str:
    return _checked(_known(name, options, kind), text, ErrorCode.invalid_config)


def checked_broker_value(name: str, text: str) -> str:
    """Returns the value as it is stored. Raises INVALID_REQUEST for an invalid value, as Kafka does (KAFKA-13609)."""
    if name not in BROKER_OPTIONS:
        if (of_listener := _option_of_listener(name)) is not None:
            return _checked_at_run_time(of_listener, text)
        if is_kept(name):
            return _checked(unused_option(name), text, ErrorCode.invalid_request)
        if is_read_at_start(name):
            raise KafkaError(
                ErrorCode.invalid_request, f"Cannot update these configs dynamically: {name}; Skep does not use it"
            )
    return _checked_at_run_time(_known(name, BROKER_OPTIONS, "broker"), text)


def _checked_at_run_time(option: Option, text: str) -> str:
    if not option.dynamic:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Cannot update these configs dynamically: {option.name}; it is read only at start",
        )
    return _checked(option, text, ErrorCode.invalid_request)


def _option_of_listener(name: str) -> Option | None:
    try:
        return option_of_listener(name)
    except OptionError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None


def _known(name: str, options: Mapping[str, Option], kind: str) -> Option:
    if name not in options:
        # A name of a megabyte is not a typo, and a search for similar names would take seconds.
        hint = meant(name, options) if len(name) < 100 else ""
        raise KafkaError(ErrorCode.invalid_config, f"Unknown {kind} config name: {name}{hint}")
    return options[name]


def _checked(option: Option, text: str, code: ErrorCode) -> str:
    if len(text.encode()) > MAX_VALUE_LENGTH:
        raise KafkaError(
            code, f"{option.name}: the value has {len(text.encode())} bytes; at most {MAX_VALUE_LENGTH} are allowed"
        )
    try:
        return option.show(option.parse(text))
    except OptionError as error:
        raise KafkaError(code, f"Invalid value for configuration {error}") from None


class NamedValue(Protocol):
    """A config of a request."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> str | None: ...


V = TypeVar("V", bound=NamedValue)


def check_count(configs: Sequence[V]) -> Sequence[V]:
    """Returns ``configs``. Raises INVALID_REQUEST if there are too many: they are processed without a pause."""
    if len(configs) > MAX_CONFIGS:
        raise KafkaError(
            ErrorCode.invalid_request, f"A resource has {len(configs)} configs; at most {MAX_CONFIGS} are allowed."
        )
    return configs


def texts_in(configs: Sequence[NamedValue], *, null_is: ErrorCode, may_be_null: Container[str] = ()) -> dict[str, str]:
    """Returns the values of a request by name. Raises KafkaError for a repeated name or a null that is not allowed."""
    configs = check_count(configs)
    if twice := repeated(config.name for config in configs):
        raise KafkaError(ErrorCode.invalid_request, f"Error due to duplicate config keys: {', '.join(sorted(twice))}")
    if nulls := [config.name for config in configs if config.value is None and config.name not in may_be_null]:
        raise KafkaError(null_is, f"Null value not supported for configs: {', '.join(nulls)}")
    return {config.name: config.value for config in configs if config.value is not None}
