"""Bodies of the requests that tests send most, as mappings for ``raw_client``, and batches to put into them."""

import datetime
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from skep.records.builder import NewRecord, build_batch

MEBIBYTE = 1 << 20


class Want(NamedTuple):
    """One partition of a fetch; the topic by name below version 13, by id from there on."""

    topic: str | UUID
    offset: int
    partition: int = 0
    max_bytes: int = MEBIBYTE


def seconds(number: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=number)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch_of(*values: bytes, **options: Any) -> bytes:
    """One batch with these values, without keys; ``options`` are those of ``build_batch``."""
    timestamp = options.pop("timestamp", None) or now_ms()
    return build_batch([NewRecord(None, value, timestamp) for value in values], **options)


def create_topics_body(name: str, partitions: int = 1, configs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    options = {option.replace("_", "."): str(value) for option, value in (configs or {}).items()}
    return {
        "topics": [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": [{"name": option, "value": value} for option, value in options.items()],
            }
        ],
        "timeout": seconds(30),
        "validate_only": False,
    }


def produce_body(batches: Mapping[tuple[str, int], bytes | None], *, acks: int = -1) -> dict[str, Any]:
    """A topic entry for each batch, in the order given, so that answers can be told apart by place."""
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": seconds(30),
        "topic_data": [
            {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
            for (topic, partition), batch in batches.items()
        ],
    }


def fetch_body(
    wanted: Iterable[Want],
    version: int,
    *,
    max_wait_s: float = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 * MEBIBYTE,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    leader_epoch: int = -1,
    forgotten: Iterable[tuple[str | UUID, int]] = (),
) -> dict[str, Any]:
    topic_field = "topic_id" if version >= 13 else "topic"
    return {
        "max_wait": seconds(max_wait_s),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [
            {
                topic_field: want.topic,
                "partitions": [
                    {
                        "partition": want.partition,
                        "current_leader_epoch": leader_epoch,
                        "fetch_offset": want.offset,
                        "partition_max_bytes": want.max_bytes,
                    }
                ],
            }
            for want in wanted
        ],
        "forgotten_topics_data": [{topic_field: topic, "partitions": [index]} for topic, index in forgotten],
    }


def partitions_in(answer: Any) -> dict[tuple[str | UUID, int], Any]:
    """The partitions of a fetch answer by topic (name or id) and index."""
    return {
        (getattr(topic, "topic", None) or topic.topic_id, partition.partition_index): partition
        for topic in answer.responses
        for partition in topic.partitions
    }
