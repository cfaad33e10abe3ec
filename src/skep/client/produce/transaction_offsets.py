"""Offsets of a group inside a transaction: committed or aborted with its records.

A program that writes can keep its progress together with its output.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode
from skep.client.cluster_client import GROUP, TRANSACTION, ClusterClient
from skep.client.retry import call_with_retries, check
from skep.records.producer_identity import ProducerIdentity
from skep.wire.apis import ADD_OFFSETS_TO_TXN, OFFSET_FETCH, TXN_OFFSET_COMMIT

_OF_ONE_GROUP = OFFSET_FETCH._replace(oldest=7, newest=7)
"""Version 7 added ``require_stable``: offsets that no open transaction will change. Version 8 is for several groups."""
_BEFORE_KIP_890 = {"add": ADD_OFFSETS_TO_TXN._replace(newest=3), "commit": TXN_OFFSET_COMMIT._replace(newest=3)}


class Position(NamedTuple):
    offset: int
    metadata: str


def commit_in_transaction(
    cluster: ClusterClient,
    transactional_id: str,
    identity: ProducerIdentity,
    group: str,
    topic: str,
    positions: Mapping[int, Position],
) -> None:
    """Adds the positions of a topic's partitions to the open transaction."""
    producer = {
        "transactional_id": transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
        "group_id": group,
    }

    def add() -> Any:
        api = _BEFORE_KIP_890["add"]
        return cluster.ask_coordinator(TRANSACTION, transactional_id, api, producer, lambda added: added.error_code)[1]

    added = call_with_retries(cluster, f"group '{group}' in a transaction", add)
    check(added.error_code, f"transactional id '{transactional_id}': group '{group}'")
    partitions = [
        {
            "partition_index": partition,
            "committed_offset": position.offset,
            "committed_leader_epoch": -1,
            "committed_metadata": position.metadata,
        }
        for partition, position in positions.items()
    ]
    body = producer | {"topics": [{"name": topic, "partitions": partitions}]}

    def commit() -> Any:
        return cluster.ask_coordinator(GROUP, group, _BEFORE_KIP_890["commit"], body, _first_code)[1]

    response = call_with_retries(cluster, f"offsets of group '{group}'", commit)
    check(_first_code(response), f"group '{group}': offsets of topic '{topic}'")


def committed_positions(cluster: ClusterClient, group: str, topic: str, partition_count: int) -> dict[int, Position]:
    """Returns the committed position of each partition; waits for transactions that are ending."""
    wanted = [{"name": topic, "partition_indexes": list(range(partition_count))}]
    body = {"group_id": group, "topics": wanted, "require_stable": True}

    def ask() -> Any:
        return cluster.ask_coordinator(GROUP, group, _OF_ONE_GROUP, body, _code_of_fetch)[1]

    response = call_with_retries(cluster, f"offsets of group '{group}'", ask)
    check(_code_of_fetch(response), f"group '{group}'")
    return {
        one.partition_index: Position(one.committed_offset, one.metadata or "")
        for found in response.topics
        for one in found.partitions
        if one.committed_offset >= 0
    }


def _first_code(response: Any) -> ErrorCode:
    codes = (one.error_code for topic in response.topics for one in topic.partitions)
    return next((code for code in codes if code is not ErrorCode.none), ErrorCode.none)


def _code_of_fetch(response: Any) -> ErrorCode:
    """Returns the first code that is an error, such as UNSTABLE_OFFSET_COMMIT for an open transaction."""
    code: ErrorCode = response.error_code
    return _first_code(response) if code is ErrorCode.none else code
