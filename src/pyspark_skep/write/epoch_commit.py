"""The driver's part of an exactly-once write, without Spark.

Tasks write under transactions and leave them open. The driver's ``commit_epoch`` commits all of them or, if the epoch
was decided before, none:

1. It becomes the driver (``DriverTransaction``). Another driver that still runs is fenced.
2. It begins a transaction with a mark in the decisions' partition and reads the query's newest decision below the
   mark. Only the current leader can acknowledge the mark, so the decision is not an old one.
3. If there is no decision for this epoch yet, it writes one in the same transaction. *With the commit of this
   transaction the rows of the epoch are committed*, whatever happens; before it, none of them is.
4. It commits the transactions of the decision, one after another. This step can be repeated.
5. It aborts all other open transactions under the query's prefix: attempts that lost, tasks that outlive their epoch,
   and if the epoch is a replay, everything that it wrote.
6. It looks up decided transactions that were no longer open in the log. If they were aborted, it writes their rows
   again, task by task, in one transaction with a decision that says so (``settlement.py``).

A process may end between any two requests. The next driver is given the same epoch by Spark's checkpoint, perhaps cut
into other tasks, and begins at 1.

A batch write has no checkpoint and is never replayed, so it needs no decision: ``commit_job`` does steps 4 to 6.

docs/decisions/0007-exactly-once-sink.md explains the design.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from pyspark_skep.write import decisions
from pyspark_skep.write.decisions import Decision, newest_decision, rows_of, topics_of, wait_for_others
from pyspark_skep.write.driver_transaction import DriverTransaction, become_producer
from pyspark_skep.write.partition_access import PartitionAccess
from pyspark_skep.write.settlement import aborted_among, without_gone_topics, write_again
from pyspark_skep.write.task_transactions import TaskTransaction, driver_id, task_prefix
from pyspark_skep.write.write_errors import CommitFailed
from skep.base.errors import ErrorCode, KafkaError
from skep.client.admin import set_topic_config, topic_configs
from skep.client.errors import ClientError
from skep.client.produce.transactions import FENCED, end_transaction, list_open_transactions
from skep.records.producer_identity import ProducerIdentity

logger = logging.getLogger(__name__)

NO_LONGER_OPEN = FENCED | {
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.transactional_id_not_found,
}
SETTLE_S = 120.0
"""How long to wait for open transactions of others that hide the outcome of ours."""
REPAIR_TIMEOUT_MS = 300_000
"""The default transaction timeout for writing the rows of one task again. A broker may allow less."""
_FENCING_TIMEOUT_MS = 1_000
"""Nothing is written under the producer epoch that aborts a transaction, so it needs no time."""


def commit_epoch(
    access: PartitionAccess,
    query: str,
    epoch: int,
    tasks: Sequence[TaskTransaction],
    *,
    settle_s: float = SETTLE_S,
    repair_timeout_ms: int = REPAIR_TIMEOUT_MS,
) -> None:
    """Commits every row of the epoch once. After any error it can be called again, by any driver."""
    ensure_topic(access)
    driver = DriverTransaction(access, driver_id(query))
    wait_for_others(access, query, patience_s=settle_s)
    with driver.committed():
        decision = _decided_before(access, driver, query, settle_s)
        if decision is not None and decision.epoch > epoch:
            _abort_open(access, query)
            raise CommitFailed(
                f"epoch {epoch} of query {query} comes after epoch {decision.epoch} was committed. Either another "
                "driver runs the same query, or its checkpoint was reset: then start it with a new checkpoint"
            )
        if decision is None:
            # Without a decision this is the first epoch, or its decision was deleted.
            _check_policy(access)
        if decision is None or decision.epoch < epoch:
            decision = Decision(epoch, tuple(tasks), topic_ids=access.topic_ids(topics_of(tasks)))
            _record(driver, query, decision)
        elif decision.rows != rows_of(tasks):
            logger.warning(
                "epoch %d of query %s was committed before with %d rows, and is replayed with %d: the committed rows "
                "stay, the new ones are dropped. Unless the query returns other rows at each run (rand(), "
                "current_timestamp()), its checkpoint was reset or its source has changed: compare input and output",
                *(epoch, query, decision.rows, rows_of(tasks)),
            )
    _finish(access, query, decision, driver, settle_s, repair_timeout_ms)


def abort_epoch(
    access: PartitionAccess,
    query: str,
    epoch: int,
    *,
    settle_s: float = SETTLE_S,
    repair_timeout_ms: int = REPAIR_TIMEOUT_MS,
) -> None:
    """Aborts what the epoch left open. Spark also calls this after ``commit_epoch`` failed: if the epoch was decided by
    then, the decision is carried out."""
    if access.topic(decisions.TOPIC) is None:
        _abort_open(access, query)
        return
    driver = DriverTransaction(access, driver_id(query))
    wait_for_others(access, query, patience_s=settle_s)
    with driver.committed():
        decision = _decided_before(access, driver, query, settle_s)
    if decision is not None and decision.epoch == epoch:
        _finish(access, query, decision, driver, settle_s, repair_timeout_ms)
    else:
        _abort_open(access, query)


def commit_job(
    access: PartitionAccess,
    job: str,
    tasks: Sequence[TaskTransaction],
    *,
    settle_s: float = SETTLE_S,
    repair_timeout_ms: int = REPAIR_TIMEOUT_MS,
) -> None:
    """Commits the rows of a batch write. This is not atomic: a driver that dies in between leaves the tasks after that
    point uncommitted."""
    lost = _commit_open(access, tasks)
    _abort_open(access, job)
    aborted = aborted_among(access, without_gone_topics(access, lost, {}), settle_s)
    if aborted:
        driver = DriverTransaction(access, driver_id(job))
        driver.take_longer(repair_timeout_ms)
        for task in aborted:
            with driver.committed():
                write_again(access, task, driver, settle_s)


def abort_job(access: PartitionAccess, job: str) -> None:
    _abort_open(access, job)


def _finish(
    access: PartitionAccess,
    query: str,
    decision: Decision,
    driver: DriverTransaction,
    settle_s: float,
    repair_timeout_ms: int,
) -> None:
    lost = _commit_open(access, decision.unrepaired)
    # Before the log is read: attempts that lost wrote to the same partitions, and hold back the last stable offset.
    _abort_open(access, query)
    aborted = aborted_among(access, without_gone_topics(access, lost, decision.topic_ids), settle_s)
    if aborted:
        driver.take_longer(repair_timeout_ms)
    for task in aborted:
        decision = replace(decision, repaired=decision.repaired | {task.transactional_id})
        with driver.committed():
            write_again(access, task, driver, settle_s)
            _record(driver, query, decision)


def _decided_before(access: PartitionAccess, driver: DriverTransaction, query: str, settle_s: float) -> Decision | None:
    """Returns the newest of all decisions that were committed before this call."""
    mark = _append(driver, query, decisions.mark_key(query), None)
    if mark is None:
        raise CommitFailed(
            f"the mark of query {query} in {decisions.TOPIC} was written, but the broker did not return its offset"
        )
    return newest_decision(access, query, before=mark, patience_s=settle_s)


def _record(driver: DriverTransaction, query: str, decision: Decision) -> None:
    _append(driver, query, query.encode(), decisions.encode(decision))


def _append(driver: DriverTransaction, query: str, key: bytes, value: bytes | None) -> int | None:
    now_ms = time.time_ns() // 1_000_000
    return driver.append_record(decisions.TOPIC, decisions.partition_of(query), key, value, now_ms)


def _commit_open(access: PartitionAccess, tasks: Sequence[TaskTransaction]) -> list[TaskTransaction]:
    """Commits the transactions. Returns those that were not open; they may have been committed before."""
    lost = []
    for task in tasks:
        identity = ProducerIdentity(task.producer_id, task.producer_epoch, True)
        try:
            end_transaction(access.cluster, task.transactional_id, identity, commit=True)
        except KafkaError as error:
            if error.code not in NO_LONGER_OPEN:
                raise
            lost.append(task)
    return lost


def _abort_open(access: PartitionAccess, query: str) -> None:
    """Aborts all open transactions under the query's prefix, which also fences their producers."""
    for transaction in list_open_transactions(access.cluster, task_prefix(query)):
        become_producer(access.cluster, transaction.transactional_id, _FENCING_TIMEOUT_MS)


def open_topic(access: PartitionAccess) -> None:
    """Ensures at the start of a query that the topic exists and has ``unclean.leader.election.enable=false``.

    Earlier versions created the topic without that config, so it is set here. If the cluster does not allow this client
    to change configs, a warning asks the operator to do so.
    """
    ensure_topic(access)
    name, value = decisions.UNCLEAN_ELECTION, decisions.TOPIC_CONFIGS[decisions.UNCLEAN_ELECTION]
    try:
        if topic_configs(access.cluster, decisions.TOPIC, own_only=True).get(name) == value:
            return
        set_topic_config(access.cluster, decisions.TOPIC, name, value)
    except (KafkaError, ClientError) as error:
        logger.warning(
            "topic %s should have %s=%s, but this client cannot set it (%s): a leader that was not in sync could lack "
            "decisions, and rows would be written twice. Set it, for example with kafka-configs",
            decisions.TOPIC,
            name,
            value,
            error,
        )
    else:
        logger.info("set %s=%s for topic %s", name, value, decisions.TOPIC)


def ensure_topic(access: PartitionAccess) -> None:
    """Creates the topic of decisions if it does not exist."""
    found = access.topic(decisions.TOPIC)
    if found is None:
        access.create_topic(decisions.TOPIC, decisions.PARTITIONS, decisions.TOPIC_CONFIGS)
    elif found.partition_count < decisions.PARTITIONS:
        raise CommitFailed(
            f"topic {decisions.TOPIC} has {found.partition_count} partitions but needs {decisions.PARTITIONS}: add "
            "partitions, or delete the topic while no query writes and it is created again"
        )


def _check_policy(access: PartitionAccess) -> None:
    policy = topic_configs(access.cluster, decisions.TOPIC).get("cleanup.policy")
    if policy != "compact":
        raise CommitFailed(
            f"topic {decisions.TOPIC} has cleanup.policy={policy}, which deletes decisions that are still needed: set "
            "it to compact"
        )
