"""The keys of the store, and how an image is built from them.

=======================  ==============================================================================
``cluster``              the cluster id, written once
``topics/<name>``        a topic: id, partitions, config overrides
``deleting/<topic id>``  the name of a deleted topic, and the brokers that have not removed its files yet
``configs/cluster``      config overrides of all brokers
``configs/broker-<id>``  config overrides of one broker
``configs/group-<id>``   config overrides of one group, its id percent-encoded
``users/=<name>``        the credentials of a user
``acls/=<pattern>``      the ACLs of one resource pattern
``quotas/=<entity>``     the quotas of one entity
``secrets/=<use>``       a random key that all brokers share, by what it is used for
``brokers/<id>``         a live broker; ephemeral
``controller``           the broker that elects leaders; ephemeral
``controller-epoch``     the number of controllers so far; its version guards the writes of a controller
``producer-ids``         the first producer id that is not allocated
``broker-epochs``        the first broker epoch that is not allocated
=======================  ==============================================================================
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from skep.base.ids import BrokerId
from skep.metadata.cluster_image import CLUSTER_DEFAULT, ENTRY_KINDS, ClusterImage, ConfigOwner, Fields
from skep.metadata.metadata_store import Versioned
from skep.metadata.model import (
    BrokerRecord,
    ControllerRecord,
    TopicRecord,
    UnreadableRecord,
    decode_field,
    decode_fields,
    encode_fields,
)

logger = logging.getLogger(__name__)

LARGE_RECORD = 16 << 10
"""Records of more bytes are decoded in a thread."""

CLUSTER = "cluster"
PRODUCER_IDS = "producer-ids"
BROKER_EPOCHS = "broker-epochs"
CONTROLLER = "controller"
CONTROLLER_EPOCH = "controller-epoch"

_TOPICS = "topics/"
_BROKERS = "brokers/"
_DELETING = "deleting/"
_CONFIGS = "configs/"
_CONFIG_OF_BROKER = "configs/broker-"
_CONFIG_OF_CLUSTER = "configs/cluster"
_CONFIG_OF_GROUP = "configs/group-"


def topic_key(name: str) -> str:
    return _TOPICS + name


def broker_key(broker_id: BrokerId) -> str:
    return f"{_BROKERS}{broker_id}"


def config_key(owner: ConfigOwner) -> str:
    return _CONFIG_OF_CLUSTER if owner == CLUSTER_DEFAULT else f"{_CONFIG_OF_BROKER}{owner}"


def group_config_key(group_id: str) -> str:
    return _CONFIG_OF_GROUP + quote(group_id, safe="")


def entry_key(kind: str, name: str) -> str:
    """Returns the key of an entry. The sign before the name keeps ``.`` and ``..`` apart from paths of ZooKeeper."""
    return f"{kind}/={quote(name, safe='')}"


def deletion_key(topic_id: uuid.UUID) -> str:
    return _DELETING + topic_id.hex


class Deletion(NamedTuple):
    """A deleted topic, and the brokers that may still have its files."""

    name: str
    brokers: tuple[BrokerId, ...]

    def encode(self) -> bytes:
        return encode_fields(name=self.name, brokers=self.brokers)

    @classmethod
    def decode(cls, key: str, value: bytes) -> "Deletion":
        brokers = decode_fields(key, value).get("brokers", ())
        return cls(decode_field(key, value, "name"), tuple(brokers))


def encode_config(overrides: Mapping[str, str]) -> bytes:
    return encode_fields(config=dict(overrides))


def decode_config(key: str, value: bytes) -> dict[str, str]:
    config: dict[str, str] = decode_field(key, value, "config")
    return config


def encode_entry(fields: Fields) -> bytes:
    return encode_fields(fields=dict(fields))


def decode_entry(key: str, value: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = decode_field(key, value, "fields")
    return fields


def _kind_and_name(key: str) -> tuple[str, str] | None:
    """Returns what ``entry_key`` was called with; None for a key of another sort."""
    kind, slash, name = key.partition("/=")
    return (kind, unquote(name)) if slash and kind in ENTRY_KINDS else None


def _entries_of(tree: Mapping[str, Versioned], before: ClusterImage | None) -> dict[str, Mapping[str, Fields]]:
    """Returns the entries by kind. The mapping of a kind that has not changed is the one of ``before``."""
    found: dict[str, dict[str, Fields]] = {}
    for key, entry in tree.items():
        if (place := _kind_and_name(key)) is not None:
            kind, name = place
            found.setdefault(kind, {})[name] = decode_entry(key, entry.value)
    known: Mapping[str, Mapping[str, Fields]] = {} if before is None else before.entries
    return {kind: known[kind] if known.get(kind) == entries else entries for kind, entries in found.items()}


def image_of(cluster_id: str, tree: Mapping[str, Versioned], before: ClusterImage | None = None) -> ClusterImage:
    """Returns the image of the whole store. Topics that have not changed since ``before`` are the same objects."""
    known = {} if before is None else before.topics
    return ClusterImage.of(
        cluster_id,
        [_broker(key, entry) for key, entry in tree.items() if key.startswith(_BROKERS)],
        [_known_or_read(known, key, entry) for key, entry in tree.items() if key.startswith(_TOPICS)],
        {
            _config_owner(key): decode_config(key, entry.value)
            for key, entry in tree.items()
            if key.startswith(_CONFIGS) and not key.startswith(_CONFIG_OF_GROUP)
        },
        {
            unquote(key.removeprefix(_CONFIG_OF_GROUP)): decode_config(key, entry.value)
            for key, entry in tree.items()
            if key.startswith(_CONFIG_OF_GROUP)
        },
        ControllerRecord.decode(tree[CONTROLLER].value) if CONTROLLER in tree else None,
        _entries_of(tree, before),
    )


def image_after(image: ClusterImage, key: str, entry: Versioned | None) -> ClusterImage:
    """Returns the image with ``key`` set to ``entry``, or the same object if that changes nothing."""
    if key.startswith(_TOPICS):
        if entry is None:
            return image.without_topic(key.removeprefix(_TOPICS))
        known = image.topics.get(key.removeprefix(_TOPICS))
        topic = _with_latest_elections(_topic(key, entry), known)
        return image if known == topic else image.with_topic(topic)
    if key.startswith(_BROKERS):
        if entry is None:
            return image.without_broker(_broker_id(key.removeprefix(_BROKERS)))
        broker = _broker(key, entry)
        return image if image.brokers.get(broker.id) == broker else image.with_broker(broker)
    if key == CONTROLLER:
        controller = None if entry is None else ControllerRecord.decode(entry.value)
        return image if image.controller == controller else image.with_controller(controller)
    if key.startswith(_CONFIG_OF_GROUP):
        group_id = unquote(key.removeprefix(_CONFIG_OF_GROUP))
        overrides = {} if entry is None else decode_config(key, entry.value)
        return image if image.group_config(group_id) == overrides else image.with_group_config(group_id, overrides)
    if key.startswith(_CONFIGS):
        owner = _config_owner(key)
        overrides = {} if entry is None else decode_config(key, entry.value)
        return image if image.broker_config(owner) == overrides else image.with_broker_config(owner, overrides)
    if (place := _kind_and_name(key)) is not None:
        fields = None if entry is None else decode_entry(key, entry.value)
        return image if image.entries_of(place[0]).get(place[1]) == fields else image.with_entry(*place, fields)
    return image


def deletions_of(tree: Mapping[str, Versioned]) -> dict[uuid.UUID, Deletion]:
    """Returns the topics that are being deleted, by id."""
    found: dict[uuid.UUID, Deletion] = {}
    for key, entry in tree.items():
        found = deletions_after(found, key, entry)
    return found


def deletions_after(
    deletions: dict[uuid.UUID, Deletion], key: str, entry: Versioned | None
) -> dict[uuid.UUID, Deletion]:
    """Returns the pending deletions with ``key`` set to ``entry``."""
    if not key.startswith(_DELETING):
        return deletions
    topic_id = uuid.UUID(hex=key.removeprefix(_DELETING))
    if entry is None:
        return {other: deletion for other, deletion in deletions.items() if other != topic_id}
    return {**deletions, topic_id: Deletion.decode(key, entry.value)}


def _known_or_read(known: Mapping[str, TopicRecord], key: str, entry: Versioned) -> TopicRecord:
    """Reuses the known record if it is unchanged: decoding ten thousand takes a second, and most are unchanged."""
    topic = known.get(key.removeprefix(_TOPICS))
    # Versions may restart after a delete, so the id is compared too; it is at the beginning of the value.
    if topic is not None and topic.version == entry.version and topic.topic_id.hex.encode() in entry.value[:64]:
        return topic
    try:
        return _with_latest_elections(_topic(key, entry), topic)
    except UnreadableRecord as error:
        if topic is None:
            raise
        # One unreadable record must not keep the others stale.
        logger.error("%s", error)
        return topic


def _with_latest_elections(read: TopicRecord, known: TopicRecord | None) -> TopicRecord:
    """Returns the record as read, except that each partition keeps the state with the higher leader epoch.

    Later elections may be known already (``Catalog.apply_elections``), and a lagging ZooKeeper server must not re-elect
    us.
    """
    if known is None or known.topic_id != read.topic_id:
        return read
    pairs = zip(read.partitions, known.partitions, strict=False)
    kept = tuple(old if old.leader_epoch > new.leader_epoch else new for new, old in pairs)
    return replace(read, partitions=kept + read.partitions[len(kept) :])


def _topic(key: str, entry: Versioned) -> TopicRecord:
    return TopicRecord.decode(key.removeprefix(_TOPICS), entry.value, entry.version)


def _broker(key: str, entry: Versioned) -> BrokerRecord:
    return BrokerRecord.decode(_broker_id(key.removeprefix(_BROKERS)), entry.value)


def _config_owner(key: str) -> ConfigOwner:
    return CLUSTER_DEFAULT if key == _CONFIG_OF_CLUSTER else _broker_id(key.removeprefix(_CONFIG_OF_BROKER))


def _broker_id(text: str) -> BrokerId:
    try:
        return BrokerId(int(text))
    except ValueError as error:
        raise UnreadableRecord(f"the metadata store has a key for broker {text!r}, which is not a broker id") from error
