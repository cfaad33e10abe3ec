"""Requests to the coordinator of a transactional id, each asked until it has an answer that stands.

All of them may be asked twice: a lost answer costs a repetition and changes nothing. That lets somebody end a
transaction that another process began, who has only the id, the producer id and the epoch.

The transactions are those before KIP-890's second part: partitions are added before they are written, and the epoch
stays the same from one transaction to the next.
"""

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from skep.base.errors import ErrorCode, KafkaError
from skep.client.asking import check, until_answered
from skep.client.cluster_client import PAUSE_S, TRANSACTION, ClusterClient
from skep.client.errors import ClientError, NotVisibleYet
from skep.client.topic_info import GONE_AFTER_S
from skep.records.producer_identity import ProducerIdentity
from skep.wire.apis import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, LIST_TRANSACTIONS, Api
from skep.wire.codec import Body

DEFAULT_TIMEOUT_MS = 60_000

FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
"""Somebody else has become the producer of the transactional id."""

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
    """A new producer id, or for a transactional id its next epoch.

    With the epoch whoever had the id before is fenced, and a transaction that was open is aborted: this returns when
    that is done. ``current``: only if the id is still ours (KIP-360), else KafkaError with a code of ``FENCED``.
    """
    body = {
        "transactional_id": transactional_id,
        "transaction_timeout": timedelta(milliseconds=timeout_ms),
        "producer_id": -1 if current is None else current.producer_id,
        "producer_epoch": -1 if current is None else current.producer_epoch,
    }
    if transactional_id is None:
        answer = until_answered(
            cluster, "a producer id", lambda: cluster.ask_node(cluster.nodes()[0], INIT_PRODUCER_ID, body), _code
        )
        check(answer.error_code, "no producer id was given")
    else:
        answer = _ask(cluster, transactional_id, INIT_PRODUCER_ID, body, _code)
        check(answer.error_code, f"transactional id '{transactional_id}'")
    return ProducerIdentity(answer.producer_id, answer.producer_epoch, transactional_id is not None)


def add_partitions(
    cluster: ClusterClient, transactional_id: str, identity: ProducerIdentity, partitions: Iterable[tuple[str, int]]
) -> None:
    """Makes these partitions a part of the transaction, which begins with the first ones."""
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
        answer = _ask(cluster, transactional_id, ADD_PARTITIONS_TO_TXN, body, _first_added_code)
        is_unknown = _first_added_code(answer) is ErrorCode.unknown_topic_or_partition
        if not is_unknown or cluster.clock.monotonic() > gone_at:
            break
        cluster.sleep(PAUSE_S)
    for topic, partition, code in _added(answer):
        # Said of those that would have been fine, had another one not been refused.
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
    """Decides the transaction. KafkaError, for the caller to judge, when it is not (or no longer) this producer's.

    It returns when the decision stands. Readers see it a moment later, when the markers are written; ``until_visible``
    returns only then, or raises NotVisibleYet.
    """
    answer = _ask(cluster, transactional_id, END_TXN, _end_body(transactional_id, identity, commit), _code)
    wish = "commit" if commit else "abort"
    check(answer.error_code, f"transactional id '{transactional_id}' was asked to {wish}")
    if until_visible:
        wait_until_visible(cluster, transactional_id, identity, commit=commit)


def wait_until_visible(
    cluster: ClusterClient, transactional_id: str, identity: ProducerIdentity, *, commit: bool = True
) -> None:
    """Returns when readers see what ``end_transaction`` has decided. NotVisibleYet, and nothing else, when it cannot
    be found out: the decision stands, whatever happens here."""
    body = _end_body(transactional_id, identity, commit)
    try:
        # Asked again, the coordinator says CONCURRENT_TRANSACTIONS until the markers are written. That the id is
        # somebody else's by now, or has gone on, it says when they are.
        code = _code(_ask(cluster, transactional_id, END_TXN, body, _code))
        if code not in _ENDED:
            check(code, "the coordinator refuses to say")
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
    """The transactions of every broker that are not decided yet and whose id begins so."""
    found = []
    body = {"state_filters": ["Ongoing"], "producer_id_filters": []}
    for node in until_answered(cluster, "the brokers", cluster.nodes):
        answer = until_answered(
            cluster, "open transactions", functools.partial(cluster.ask_node, node, LIST_TRANSACTIONS, body), _code
        )
        check(answer.error_code, f"the transactions of broker {node.node_id}")
        found += [
            OpenTransaction(state.transactional_id, state.producer_id)
            for state in answer.transaction_states
            if state.transactional_id.startswith(prefix)
        ]
    return found


def _ask(
    cluster: ClusterClient, transactional_id: str, api: Api, body: Body, code_of: Callable[[Any], ErrorCode]
) -> Any:
    def passing_at_once(answer: Any) -> ErrorCode:
        # While a transaction is being ended the cluster would pause for longer than that takes.
        code = code_of(answer)
        return ErrorCode.none if code is ErrorCode.concurrent_transactions else code

    def ask() -> Any:
        return cluster.ask_coordinator(TRANSACTION, transactional_id, api, body, passing_at_once)[1]

    return until_answered(cluster, f"{api.name} of '{transactional_id}'", ask, code_of)


def _code(answer: Any) -> ErrorCode:
    code: ErrorCode = answer.error_code
    return code


def _added(answer: Any) -> Iterable[tuple[str, int, ErrorCode]]:
    for topic in answer.results_by_topic_v3_and_below:
        for result in topic.results_by_partition:
            yield topic.name, result.partition_index, result.partition_error_code


def _first_added_code(answer: Any) -> ErrorCode:
    """Why it was not done. The partitions that are not to blame have OPERATION_NOT_ATTEMPTED."""
    fine = (ErrorCode.none, ErrorCode.operation_not_attempted)
    return next((code for *_, code in _added(answer) if code not in fine), ErrorCode.none)
