"""The configs of groups (KIP-848, KIP-932): values in force and checks.

A group need not exist to have a config. Most options without an override have the value of a broker
option: ``consumer.session.timeout.ms`` has that of ``group.consumer.session.timeout.ms``. Those that no broker option
corresponds to, such as ``share.auto.offset.reset``, have their default.
"""

from collections.abc import Mapping

from skep.base.config.group_config import GROUP_OPTIONS, check_group_config
from skep.base.config.share_group_config import check_share_group_config
from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.broker.config.config_entries import BROKER_OPTIONS, ConfigEntry, Source, Synonym, broker_entry, checked_value
from skep.broker.services import Services
from skep.coordination.group_ids import check_group_id
from skep.metadata.topic_names import is_topic_name

_DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"


def check_group_name(services: Services, group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.invalid_request, "Default group resources are not allowed.")
    check_group_id(services.config.coordinator, group_id)


def group_entries(services: Services, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Returns every group option, for a group with these overrides."""
    entries = []
    for name, option in GROUP_OPTIONS.items():
        value, synonyms = _inherited(services, name)
        if (override := overrides.get(name)) is not None:
            value, synonyms = override, (Synonym(name, override, Source.GROUP), *synonyms)
        entries.append(ConfigEntry(option, value, synonyms))
    return entries


def inherited_by_group(services: Services, name: str) -> str:
    return _inherited(services, name)[0]


def _inherited(services: Services, name: str) -> tuple[str, tuple[Synonym, ...]]:
    option = GROUP_OPTIONS[name]
    if option.broker_name is None:
        default = option.show(option.default)
        return default, (Synonym(name, default, Source.DEFAULT),)
    entry = broker_entry(services, BROKER_OPTIONS[option.broker_name])
    return entry.value, entry.synonyms


def checked_group_value(name: str, text: str) -> str:
    """Returns the value as it is stored. Raises INVALID_CONFIG."""
    return checked_value(name, text, GROUP_OPTIONS, "group")


def check_group_overrides(services: Services, overrides: Mapping[str, str]) -> None:
    """Raises INVALID_CONFIG if values are outside the broker's limits or contradict each other."""
    try:
        check_group_config(overrides, services.config.coordinator)
        check_share_group_config(overrides, services.config.share)
    except OptionError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None
    dead_letter_topic = overrides.get(_DEAD_LETTER_TOPIC, "")
    if dead_letter_topic and not is_topic_name(dead_letter_topic):
        raise KafkaError(
            ErrorCode.invalid_config, f"{_DEAD_LETTER_TOPIC}={dead_letter_topic}: no topic can have this name"
        )
