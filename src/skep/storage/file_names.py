"""The names of files and directories, which are Kafka's, so that Kafka's own tools find what they look for."""

import base64
import re
import uuid

from skep.base.ids import Offset, TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
TEMPORARY = ".tmp"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
OFFSET_GAPS = "offset-gaps"
"""Skep's own: compaction on the leader has left gaps in what was copied, which are not damage."""
SYNCED = "synced"
"""Skep's own: everything that this replica has acknowledged, to a client or to its leader, was synced before."""

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED_UP_TO = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
META_PROPERTIES = "meta.properties"
BOOT_ID = "boot-id"
"""Skep's own: the run of the machine during which the directory was last known to have lost nothing."""

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"

_OFFSET_NAME = re.compile(r"(\d{20})(\.[a-z]+)")
_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9]\d{0,9})")


def offset_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[Offset, str] | None:
    """``00000000000000000042.log`` -> (42, ".log"); None for other names."""
    match = _OFFSET_NAME.fullmatch(name)
    return (Offset(int(match[1])), match[2]) if match else None


def parse_partition_name(name: str) -> TopicPartition | None:
    """``orders-3`` -> (orders, 3); None for other directories, such as one that is being deleted."""
    if name.endswith((DELETE_SUFFIX, STRAY_SUFFIX)):
        return None
    match = _PARTITION_NAME.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def away_name(topic_partition: TopicPartition, suffix: str) -> str:
    """Returns a unique name that no partition has: ``orders-3.5f0c...-delete``.

    Topic names have up to 249 characters and a name on disk up to 255, so the topic may be cut; it is there for people.
    """
    unique = f".{uuid.uuid4().hex}{suffix}"
    partition = f"-{topic_partition.partition}"
    return topic_partition.topic[: 255 - len(unique) - len(partition)] + partition + unique


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    identifier = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"version: 0\ntopic_id: {identifier}\n".encode()


def decode_partition_metadata(data: bytes) -> uuid.UUID | None:
    """Returns the topic id; None for a file that a power loss left empty or damaged."""
    lines = data.decode(errors="replace").splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except (KeyError, ValueError):
        return None
