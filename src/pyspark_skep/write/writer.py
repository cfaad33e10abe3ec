"""The writers of topics: what runs in Spark's tasks, and what the driver does when they are done.

``write`` runs on executors, in a Python worker that later tasks reuse. ``commit`` and ``abort`` run on the driver's
machine, in processes that Spark starts as it likes, and Spark creates a stream's writer anew for each of them. So
nothing is kept between calls; the tasks' messages carry all that the driver needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from pyspark_skep.write.task_transactions import TaskTransaction, task_id
from pyspark_skep.write.write_options import WriteOptions, warn_of_ignored, write_options
from pyspark_skep.write.write_schema import check_row_schema
from skep.base.errors import ErrorCode, KafkaError, OptionError
from skep.base.unknown_names import no_such_topic
from skep.client.cluster_client import shared_cluster
from skep.client.produce.transactions import init_producer_id
from skep.client.retry import call_with_retries
from skep.client.topic_info import describe_topics

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_skep.write.partition_access import PartitionAccess
    from skep.client.cluster_client import ClusterClient

QUERY_ID, JOB_GROUP = "sql.streaming.queryId", "spark.jobGroup.id"
"""Spark's local properties of a stream's jobs: the query id from the checkpoint, and the id of this run."""
PLANNING_TIMEOUT_S = 30.0
PLANNER_ID = "spark/planning"
"""The transactional id that checks which timeout the broker allows. Nothing is written under it."""
COMMIT_TIMEOUT_S = 120.0
"""How long the driver retries brokers that do not respond before the epoch fails. Spark then retries it from the
checkpoint."""


@dataclass(frozen=True)
class TaskWrote(WriterCommitMessage):
    """The message of a task to the driver. ``query`` is the id of the stream or of the batch write. ``transaction`` is
    None if the task had no rows or wrote them without a transaction."""

    query: str
    transaction: TaskTransaction | None


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> "BatchWriter":
    writer = BatchWriter(_checked(given, schema, overwrite), f"batch-{uuid4().hex}")
    warn_of_ignored(given)
    return writer


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> "StreamWriter":
    # Spark passes complete mode as overwrite. As Kafka's sink, this one appends the whole result each time.
    options = _checked(given, schema, False)
    if options.is_exactly_once:
        from pyspark_skep.write.epoch_commit import open_topic

        # Created now, not at the first commit: if a broker died before that, the replicas could not be placed.
        open_topic(_access(options, PLANNING_TIMEOUT_S))
    return StreamWriter(options, given)


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    options = write_options(given)
    check_row_schema(schema, options.topic)
    if overwrite:
        raise OptionError(
            'a topic cannot be overwritten: use mode("append"), and delete the topic first to replace its records'
        )
    if options.topic:
        _check_topic(options)
    if options.is_exactly_once:
        _check_timeout(options)
    return options


def _check_topic(options: WriteOptions) -> None:
    """Raises OptionError if the topic does not exist. Topics that rows name are only known to tasks."""
    cluster = _cluster(options, PLANNING_TIMEOUT_S)
    try:
        call_with_retries(cluster, f"topic '{options.topic}'", lambda: describe_topics(cluster, [options.topic]))
    except KafkaError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        raise OptionError(f"{no_such_topic(options.topic)}: create it first") from None


def _check_timeout(options: WriteOptions) -> None:
    try:
        init_producer_id(_cluster(options, PLANNING_TIMEOUT_S), PLANNER_ID, options.transaction_timeout_ms)
    except KafkaError as error:
        if error.code is not ErrorCode.invalid_transaction_timeout:
            raise
        raise OptionError(
            f"kafka.transaction.timeout.ms={options.transaction_timeout_ms} is more than the broker allows: lower it, "
            "or raise the broker's transaction.max.timeout.ms"
        ) from None


class BatchWriter(DataSourceArrowWriter):
    """Spark creates it once for a write. The copies in tasks and in the driver's last step have the same job id."""

    def __init__(self, options: WriteOptions, job: str) -> None:
        self._options = options
        self._job = job

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        context = _task()
        transactional_id = task_id(self._job, "0", context.partitionId(), context.attemptNumber())
        return _wrote(self._options, self._job, transactional_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.is_exactly_once:
            from pyspark_skep.write.epoch_commit import commit_job

            timeout_ms = self._options.transaction_timeout_ms
            commit_job(_access(self._options), self._job, _transactions(messages), repair_timeout_ms=timeout_ms)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.is_exactly_once:
            from pyspark_skep.write.epoch_commit import abort_job

            abort_job(_access(self._options), self._job)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, given: Mapping[str, str]) -> None:
        self._options = options
        self._given = dict(given)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        context = _task()
        query, run = context.getLocalProperty(QUERY_ID), context.getLocalProperty(JOB_GROUP)
        if query is None or run is None:
            raise RuntimeError(
                "Spark did not set the query id for this task; set delivery=at-least-once to write without it"
            )
        transactional_id = task_id(query, run, context.partitionId(), context.attemptNumber())
        return _wrote(self._options, query, transactional_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if batchId == 0:
            # Once for a query. The batch id is all that tells a writer that this is the first micro-batch.
            warn_of_ignored(self._given)
        query = _query(messages)
        if self._options.is_exactly_once and query is not None:
            from pyspark_skep.write.epoch_commit import commit_epoch

            timeout_ms = self._options.transaction_timeout_ms
            commit_epoch(_access(self._options), query, batchId, _transactions(messages), repair_timeout_ms=timeout_ms)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        query = _query(messages)
        if self._options.is_exactly_once and query is not None:
            from pyspark_skep.write.epoch_commit import abort_epoch

            # Without any message the query id is not known; the next committed epoch cleans up.
            timeout_ms = self._options.transaction_timeout_ms
            abort_epoch(_access(self._options), query, batchId, repair_timeout_ms=timeout_ms)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows can only be written in a Spark task")
    return context


def _wrote(
    options: WriteOptions, query: str, transactional_id: str, batches: Iterator["pa.RecordBatch"]
) -> WriterCommitMessage:
    from pyspark_skep.write.task_writer import write_rows

    cluster = _cluster(options, options.delivery_timeout_ms / 1000)
    return TaskWrote(query, write_rows(cluster, options, transactional_id, batches))


def _query(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next((message.query for message in messages if isinstance(message, TaskWrote)), None)


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[TaskTransaction]:
    return [
        message.transaction
        for message in messages
        if isinstance(message, TaskWrote) and message.transaction is not None
    ]


def _access(options: WriteOptions, timeout_s: float = COMMIT_TIMEOUT_S) -> "PartitionAccess":
    from pyspark_skep.write.partition_access import PartitionAccess

    return PartitionAccess(_cluster(options, timeout_s))


def _cluster(options: WriteOptions, timeout_s: float) -> "ClusterClient":
    return shared_cluster(
        options.bootstrap_servers, client_id=options.client_id, timeout_s=timeout_s, security=options.security
    )
