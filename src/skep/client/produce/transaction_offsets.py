"""Offsets of a group inside a transaction: they are committed if its records are, and not if not.

With them a program that writes can keep how far it has come together with what it has written.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode
from skep.client.asking import check, until_answered
from skep.client.cluster_client import GROUP, TRANSACTION, ClusterClient
from skep.records.producer_identity import ProducerIdentity
from skep.wire.apis import ADD_OFFSETS_TO_TXN, OFFSET_FETCH, TXN_OFFSET_COMMIT

_OF_ONE_GROUP = OFFSET_FETCH._replace(oldest=7, newest=7)
"""Version 8 asks for several groups; since 7 it can be asked for offsets that no open transaction will change."""
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
    """Makes the positions of a topic's partitions part of the transaction that is open."""
    producer = {
        "transactional_id": transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
        "group_id": group,
    }

    def add() -> Any:
        api = _BEFORE_KIP_890["add"]
        return cluster.ask_coordinator(TRANSACTION, transactional_id, api, producer, lambda answer: answer.error_code)[
            1
        ]

    added = until_answered(cluster, f"group '{group}' in a transaction", add, lambda answer: answer.error_code)
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

    check(
        _first_code(until_answered(cluster, f"offsets of group '{group}'", commit, _first_code)),
        f"group '{group}': offsets of topic '{topic}'",
    )


def committed_positions(cluster: ClusterClient, group: str, topic: str, partition_count: int) -> dict[int, Position]:
    """What the group has committed of each partition; waits for transactions that are being ended."""
    wanted = [{"name": topic, "partition_indexes": list(range(partition_count))}]
    body = {"group_id": group, "topics": wanted, "require_stable": True}

    def ask() -> Any:
        return cluster.ask_coordinator(GROUP, group, _OF_ONE_GROUP, body, _code_of_fetch)[1]

    answer = until_answered(cluster, f"offsets of group '{group}'", ask, _code_of_fetch)
    check(_code_of_fetch(answer), f"group '{group}'")
    return {
        one.partition_index: Position(one.committed_offset, one.metadata or "")
        for found in answer.topics
        for one in found.partitions
        if one.committed_offset >= 0
    }


def _first_code(answer: Any) -> ErrorCode:
    codes = (one.error_code for topic in answer.topics for one in topic.partitions)
    return next((code for code in codes if code is not ErrorCode.none), ErrorCode.none)


def _code_of_fetch(answer: Any) -> ErrorCode:
    code = answer.error_code if answer.error_code is not ErrorCode.none else _first_code(answer)
    # It passes like the others, and asking again is all there is to do.
    return ErrorCode.concurrent_transactions if code is ErrorCode.unstable_offset_commit else code
