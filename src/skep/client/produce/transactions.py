"""Requests to the coordinator of a transactional id, each repeated until it has a final response.

All of them may be sent twice: a lost response costs a repetition and changes nothing. So one process can end a
transaction that another began, with only the transactional id, the producer id and the epoch.

The transactions are those before the second part of KIP-890: partitions are added before they are written, and the
epoch stays the same from one transaction to the next.
"""

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import TRANSACTION, ClusterClient
from skep.client.errors import ClientError, NotVisibleYet
from skep.client.retry import call_with_retries, check
from skep.client.topic_info import GONE_AFTER_S
from skep.records.producer_identity import ProducerIdentity
from skep.wire.apis import (
    ADD_PARTITIONS_TO_TXN,
    BEFORE_TRANSACTIONS_V2,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    Api,
)
from skep.wire.codec import Body

DEFAULT_TIMEOUT_MS = 60_000
_END_TXN = BEFORE_TRANSACTIONS_V2[END_TXN]
_PAUSE_S = 0.1

FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
"""The transactional id has a newer producer."""

_ENDED = FENCED | {ErrorCode.none, ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_id_mapping}


class OpenTransaction(NamedTuple):
    transactional_id: str
    producer_id: int


def init_producer_id(
    cluster: ClusterClient,
    transactional_id: str | None,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    *,
    current: ProducerIdentity | None = None,
) -> ProducerIdentity:
    """Returns a new producer id, or for a transactional id its next epoch.

    The new epoch fences the producer that had the id before, and its open transaction is aborted: this returns when
    that is done. With ``current`` the id must still be ours (KIP-360), else KafkaError with a code of ``FENCED``.
    """
    body = {
        "transactional_id": transactional_id,
        "transaction_timeout": timedelta(milliseconds=timeout_ms),
        "producer_id": -1 if current is None else current.producer_id,
        "producer_epoch": -1 if current is None else current.producer_epoch,
    }
    if transactional_id is None:
        response = call_with_retries(
            cluster, "a producer id", lambda: cluster.ask_node(cluster.nodes()[0], INIT_PRODUCER_ID, body), _code
        )
        check(response.error_code, "the broker gave no producer id")
    else:
        response = _ask(cluster, transactional_id, INIT_PRODUCER_ID, body, _code)
        check(response.error_code, f"transactional id '{transactional_id}'")
    return ProducerIdentity(response.producer_id, response.producer_epoch, transactional_id is not None)


def add_partitions(
    cluster: ClusterClient, transactional_id: str, identity: ProducerIdentity, partitions: Iterable[tuple[str, int]]
) -> None:
    """Adds partitions to the transaction, which begins with the first ones.

    A topic that was just created may be unknown to the coordinator for ``GONE_AFTER_S``.
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    body = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": identity.producer_id,
        "v3_and_below_producer_epoch": identity.producer_epoch,
        "v3_and_below_topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
    }
    gone_at = cluster.clock.monotonic() + GONE_AFTER_S
    while True:
        response = _ask(cluster, transactional_id, ADD_PARTITIONS_TO_TXN, body, _first_added_code)
        is_unknown = _first_added_code(response) is ErrorCode.unknown_topic_or_partition
        if not is_unknown or cluster.clock.monotonic() > gone_at:
            break
        cluster.sleep(_PAUSE_S)
    for topic, partition, code in _added(response):
        # The code of the partitions that are fine when another one is refused.
        if code is not ErrorCode.operation_not_attempted:
            check(code, f"transactional id '{transactional_id}': topic '{topic}', partition {partition}")


def end_transaction(
    cluster: ClusterClient,
    transactional_id: str,
    identity: ProducerIdentity,
    *,
    commit: bool,
    until_visible: bool = False,
) -> None:
    """Commits or aborts the transaction. Raises KafkaError when it is not, or no longer, this producer's.

    Returns when the decision is final. Readers see it a moment later, when the markers are written; with
    ``until_visible`` this returns only then, or raises NotVisibleYet.
    """
    response = _ask(cluster, transactional_id, _END_TXN, _end_body(transactional_id, identity, commit), _code)
    check(response.error_code, f"{'commit' if commit else 'abort'} of transactional id '{transactional_id}'")
    if until_visible:
        wait_until_visible(cluster, transactional_id, identity, commit=commit)


def wait_until_visible(
    cluster: ClusterClient, transactional_id: str, identity: ProducerIdentity, *, commit: bool = True
) -> None:
    """Returns when readers see the decision of ``end_transaction``. Raises NotVisibleYet, and nothing else, when that
    is not known: the decision is final, whatever happens here."""
    body = _end_body(transactional_id, identity, commit)
    try:
        # To a repeated EndTxn the coordinator returns CONCURRENT_TRANSACTIONS until the markers are written, and only
        # then that the id has a newer producer or another transaction.
        code = _code(_ask(cluster, transactional_id, _END_TXN, body, _code))
        if code not in _ENDED:
            check(code, "the coordinator refuses EndTxn")
    except (ClientError, KafkaError) as error:
        decided = "committed" if commit else "aborted"
        raise NotVisibleYet(
            f"transactional id '{transactional_id}' is {decided}; readers may not see it yet: {error}"
        ) from None


def _end_body(transactional_id: str, identity: ProducerIdentity, commit: bool) -> Body:
    return {
        "transactional_id": transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
        "committed": commit,
    }


def list_open_transactions(cluster: ClusterClient, prefix: str = "") -> list[OpenTransaction]:
    """Returns the open transactions of every broker whose id begins with ``prefix``."""
    found = []
    body = {"state_filters": ["Ongoing"], "producer_id_filters": []}
    for node in call_with_retries(cluster, "the brokers", cluster.nodes):
        response = call_with_retries(
            cluster, "open transactions", functools.partial(cluster.ask_node, node, LIST_TRANSACTIONS, body), _code
        )
        check(response.error_code, f"the transactions of broker {node.node_id}")
        found += [
            OpenTransaction(state.transactional_id, state.producer_id)
            for state in response.transaction_states
            if state.transactional_id.startswith(prefix)
        ]
    return found


def _ask(
    cluster: ClusterClient, transactional_id: str, api: Api, body: Body, code_of: Callable[[Any], ErrorCode]
) -> Any:
    def ask() -> Any:
        return cluster.ask_coordinator(TRANSACTION, transactional_id, api, body, code_of)[1]

    return call_with_retries(cluster, f"{api.name} of '{transactional_id}'", ask)


def _code(response: Any) -> ErrorCode:
    code: ErrorCode = response.error_code
    return code


def _added(response: Any) -> Iterable[tuple[str, int, ErrorCode]]:
    for topic in response.results_by_topic_v3_and_below:
        for result in topic.results_by_partition:
            yield topic.name, result.partition_index, result.partition_error_code


def _first_added_code(response: Any) -> ErrorCode:
    """Returns the code of the refusal. The partitions that did not cause it have OPERATION_NOT_ATTEMPTED."""
    fine = (ErrorCode.none, ErrorCode.operation_not_attempted)
    return next((code for *_, code in _added(response) if code not in fine), ErrorCode.none)
