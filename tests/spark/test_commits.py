"""The driver's protocol of the sink, stopped at every request that it sends; no Spark in it."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from pyspark_skep.write import decisions, epoch_commit
from pyspark_skep.write.decisions import Decision
from pyspark_skep.write.driver_transaction import DriverTransaction
from pyspark_skep.write.epoch_commit import abort_epoch, abort_job, commit_epoch, commit_job, open_topic
from pyspark_skep.write.partition_access import PartitionAccess
from pyspark_skep.write.task_transactions import TaskTransaction, WrittenRange, driver_id, task_prefix
from pyspark_skep.write.write_errors import CommitFailed, RowsLost
from skep.base.errors import ErrorCode, KafkaError
from skep.client.admin import create_topic, topic_configs
from skep.client.cluster_client import ClusterClient
from skep.client.produce.transactions import FENCED, init_producer_id, list_open_transactions
from skep.records.builder import NewRecord, build_batch
from skep.records.producer_identity import ProducerIdentity
from skep.testing import EmbeddedBroker
from tests.spark.driver_model import (
    KEEPS_ALL,
    LOST_ANSWER,
    LOST_REQUEST,
    PARTITIONS,
    Queries,
    decide,
    decided,
    rows_of,
    stop_points,
    stopped_at,
)
from tests.waiting import wait_until

# For transactions that are to time out: until then their rows have to be written, on a busy machine too.
SOON_MS = 2_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    options = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50", **KEEPS_ALL}
    with EmbeddedBroker(options=options) as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"out-{uuid4().hex[:8]}"
    with ClusterClient(broker.bootstrap_servers) as cluster:
        create_topic(cluster, name, PARTITIONS, {})
    return name


@pytest.fixture
def queries(broker: EmbeddedBroker, topic: str) -> Queries:
    return Queries(broker.bootstrap_servers, topic)


def test_rows_are_seen_when_their_epoch_is_committed_and_not_before(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query) as run:
        tasks = run.tasks(rows_of(query, 0), 3)
        assert run.access.last_stable_offset(queries.topic, 0) == 0
        commit_epoch(run.access, query, 0, tasks)
    queries.expect(query, 0)
    queries.check()


def test_a_driver_that_stops_at_any_request_is_followed_by_one_that_cuts_otherwise(queries: Queries) -> None:
    def play(request: int, how: str) -> bool:
        query = queries.query()
        queries.epoch(query, 0, 2)
        with queries.start(query) as run:
            tasks = run.tasks(rows_of(query, 1), 3)
            with stopped_at(request, how) as asked:
                commit_epoch(run.access, query, 1, tasks)
        queries.epoch(query, 1, 2)
        queries.epoch(query, 2, 1)
        queries.expect(query, 0, 1, 2)
        return len(asked) > request

    assert stop_points(play) > 20
    queries.check()


def test_a_driver_that_stops_after_another_stopped_is_followed_by_a_third(queries: Queries) -> None:
    def play(first: int, second: int, how: str) -> tuple[bool, bool]:
        """Whether the first driver was stopped, and the second one."""
        query = queries.query()
        with queries.start(query) as run:
            tasks = run.tasks(rows_of(query, 0), 2)
            with stopped_at(first, LOST_ANSWER) as asked_first:
                commit_epoch(run.access, query, 0, tasks)
        with queries.start(query) as run:
            tasks = run.tasks(rows_of(query, 0), 1)
            with stopped_at(second, how) as asked_second:
                commit_epoch(run.access, query, 0, tasks)
        queries.epoch(query, 0, 3)
        queries.expect(query, 0)
        return len(asked_first) > first, len(asked_second) > second

    # Every first stop with every seventh second one, another seventh each time: all pairs would take many minutes.
    queries.epoch(queries.query(), 0, 0)  # makes the topic of decisions, so that every driver sends the same requests
    first, was_stopped, pairs = 0, True, 0
    while was_stopped:
        second, second_stopped = first % 7, True
        while was_stopped and second_stopped:
            was_stopped, second_stopped = play(first, second, (LOST_REQUEST, LOST_ANSWER)[second % 2])
            second += 7
            pairs += was_stopped and second_stopped
        first += 1
    assert first > 20
    assert pairs > 40
    queries.check()


def test_decided_transactions_that_were_aborted_are_repaired_wherever_the_repair_stops(queries: Queries) -> None:
    def play(request: int, how: str) -> bool:
        query = queries.query()
        with queries.start(query) as run:
            tasks = run.tasks(rows_of(query, 0), 3)
            decide(run, query, Decision(0, tuple(tasks)))
            # What a timeout does, and an attempt that begins anew.
            for task in tasks[:2]:
                init_producer_id(run.cluster, task.transactional_id)
        with queries.start(query) as run:
            tasks = run.tasks(rows_of(query, 0), 2)
            with stopped_at(request, how) as asked:
                commit_epoch(run.access, query, 0, tasks)
        queries.epoch(query, 0, 1)
        queries.expect(query, 0)
        return len(asked) > request

    assert stop_points(play) > 30
    queries.check()


def test_decided_transactions_that_time_out_while_no_driver_runs_are_repaired(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query, timeout_ms=SOON_MS) as run:
        tasks = run.tasks(rows_of(query, 0), 2)
        decide(run, query, Decision(0, tuple(tasks)))
        wait_until(lambda: not list_open_transactions(run.cluster, task_prefix(query)), "the timeouts")
    queries.epoch(query, 0, 3)
    queries.expect(query, 0)
    queries.check()


def test_tasks_that_time_out_before_the_epoch_ends_are_repaired(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query, timeout_ms=SOON_MS) as run:
        early = run.task(0, rows_of(query, 0)[:4])
        wait_until(lambda: not list_open_transactions(run.cluster, task_prefix(query)), "the timeout")
        run.timeout_ms = 60_000
        late = run.task(1, rows_of(query, 0)[4:])
        commit_epoch(run.access, query, 0, [early, late])
        found = decided(run, query)
        assert found is not None
        assert found.repaired == {early.transactional_id}
    queries.expect(query, 0)
    queries.check()


def test_attempts_that_lost_are_aborted_and_fenced(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query) as run:
        zombie = run.task(0, rows_of(query, 0), attempt=0)
        winner = run.task(0, rows_of(query, 0), attempt=1)
        commit_epoch(run.access, query, 0, [winner])
        with pytest.raises(KafkaError) as refused:
            init_producer_id(run.cluster, zombie.transactional_id, current=identity_of(zombie))
        assert refused.value.code in FENCED
        before = run.access.bounds(queries.topic, 0)
        with pytest.raises(KafkaError) as refused:
            run.access.produce(queries.topic, 0, next_row(zombie, "of a zombie"), zombie.transactional_id)
        assert refused.value.code in FENCED
        # Not even for who reads uncommitted records.
        assert run.access.bounds(queries.topic, 0) == before
    queries.expect(query, 0)
    queries.check()


def next_row(task: TaskTransaction, row: str) -> bytes:
    """A batch for the task's first partition that follows what it wrote there: only its epoch can be wrong."""
    return build_batch(
        [NewRecord(None, row.encode(), 1_700_000_000_000)],
        producer_id=task.producer_id,
        producer_epoch=task.producer_epoch,
        base_sequence=task.written[0].rows,
        is_transactional=True,
    )


def identity_of(task: TaskTransaction) -> ProducerIdentity:
    return ProducerIdentity(task.producer_id, task.producer_epoch, True)


def test_an_attempt_that_takes_the_id_of_a_decided_one_costs_a_repair_and_no_row(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query) as run:
        first = run.task(0, rows_of(query, 0))
        run.task(0, rows_of(query, 0))  # a stage that is tried again counts its attempts from 0
        commit_epoch(run.access, query, 0, [first])
    queries.expect(query, 0)
    queries.check()


def test_a_driver_that_was_replaced_cannot_decide(queries: Queries) -> None:
    query = queries.query()
    queries.epoch(query, 0, 1)
    with queries.start(query) as old:
        driver = DriverTransaction(old.access, driver_id(query))
        queries.epoch(query, 1, 2)
        decision = Decision(1, (TaskTransaction("none", 1, 0, ()),))
        with pytest.raises(KafkaError) as refused:
            driver.append_record(
                decisions.TOPIC, decisions.partition_of(query), query.encode(), decisions.encode(decision), 0
            )
        assert refused.value.code in FENCED
    queries.expect(query, 0, 1)
    queries.check()


def test_a_driver_that_comes_late_with_an_old_epoch_is_told_so_and_leaves_nothing(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query) as old:
        tasks = old.tasks(rows_of(query, 0), 2)
        queries.epoch(query, 0, 3)
        queries.epoch(query, 1, 3)
        with pytest.raises(CommitFailed, match=r"epoch 0 of query .* comes after epoch 1"):
            commit_epoch(old.access, query, 0, tasks)
    queries.expect(query, 0, 1)
    queries.check()


@pytest.mark.parametrize("how", [LOST_REQUEST, LOST_ANSWER])
def test_aborting_after_a_commit_that_failed_keeps_what_was_decided(queries: Queries, how: str) -> None:
    def play(request: int, _: str) -> bool:
        query = queries.query()
        with queries.start(query) as run:
            tasks = run.tasks(rows_of(query, 0), 2)
            with stopped_at(request, how) as asked:
                commit_epoch(run.access, query, 0, tasks)
        with queries.start(query) as run:
            abort_epoch(run.access, query, 0)
            assert list_open_transactions(run.cluster, task_prefix(query)) == []
        queries.epoch(query, 0, 3)
        queries.expect(query, 0)
        return len(asked) > request

    stop_points(play)
    queries.check()


def test_rows_that_are_no_longer_in_the_log_end_with_one_clear_error(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query) as run:
        task = run.task(0, rows_of(query, 0))
        init_producer_id(run.cluster, task.transactional_id)
        more = tuple(WrittenRange(*written[:4], written.rows + 1) for written in task.written)
        with pytest.raises(RowsLost, match=rf"1 of 5 rows of {queries.topic}-0, offsets 0 to 3 are no longer"):
            commit_epoch(run.access, query, 0, [task._replace(written=more)])
    queries.check()


def test_a_decision_is_found_behind_those_of_many_other_queries(queries: Queries) -> None:
    query = queries.query()
    others = [name for name in (f"other-{n}" for n in range(3000)) if same_partition(name, query)]
    with queries.start(query) as run:
        create_topic(run.cluster, decisions.TOPIC, decisions.PARTITIONS, decisions.TOPIC_CONFIGS)
        assert decided(run, query) is None
        decide(run, query, Decision(7, ()))
        driver = DriverTransaction(run.access, "spark/others")
        for other in others[:200]:
            driver.append_record(
                decisions.TOPIC, decisions.partition_of(other), other.encode(), decisions.encode(Decision(9, ())), 0
            )
        driver.commit()
        assert decided(run, query) == Decision(7, ())


def same_partition(one: str, other: str) -> bool:
    return decisions.partition_of(one) == decisions.partition_of(other)


def test_an_aborted_decision_does_not_count(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query) as run:
        decide(run, query, Decision(3, ()))
        driver = DriverTransaction(run.access, driver_id(query))
        driver.append_record(
            decisions.TOPIC, decisions.partition_of(query), query.encode(), decisions.encode(Decision(4, ())), 0
        )
        driver.abort()
        assert decided(run, query) == Decision(3, ())


def test_the_rows_of_a_batch_write_are_seen_when_it_is_committed(queries: Queries) -> None:
    job = queries.query()
    with queries.start(job) as run:
        tasks = run.tasks(rows_of(job, 0), 3)
        init_producer_id(run.cluster, tasks[1].transactional_id)
        run.task(9, ["of an attempt that lost"], attempt=1)
        commit_job(run.access, job, tasks)
    queries.expect(job, 0)
    queries.check()


def test_a_batch_write_that_is_aborted_leaves_nothing(queries: Queries) -> None:
    job = queries.query()
    with queries.start(job) as run:
        run.tasks(rows_of(job, 0), 3)
        abort_job(run.access, job)
    queries.check()


@pytest.mark.parametrize("configs", [{}, {decisions.UNCLEAN_ELECTION: "true"}])
def test_a_topic_of_decisions_from_before_forbids_unclean_elections_once_it_is_opened(configs: dict[str, str]) -> None:
    with EmbeddedBroker() as broker, ClusterClient(broker.bootstrap_servers) as cluster:
        earlier = {"cleanup.policy": "compact", "max.message.bytes": "1234567"}
        create_topic(cluster, decisions.TOPIC, decisions.PARTITIONS, {**earlier, **configs})
        open_topic(PartitionAccess(cluster))
        own = topic_configs(cluster, decisions.TOPIC, own_only=True)
        assert own == {**earlier, decisions.UNCLEAN_ELECTION: "false"}


def test_a_topic_of_decisions_that_is_as_it_should_be_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker, ClusterClient(broker.bootstrap_servers) as cluster:
        monkeypatch.setattr(epoch_commit, "set_topic_config", lambda *_: pytest.fail("it is as it should be"))
        for _ in range(2):
            open_topic(PartitionAccess(cluster))


def test_a_client_that_may_not_change_configs_says_what_has_to_be_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise KafkaError(ErrorCode.topic_authorization_failed, "not allowed")

    with EmbeddedBroker() as broker, ClusterClient(broker.bootstrap_servers) as cluster:
        create_topic(cluster, decisions.TOPIC, decisions.PARTITIONS, {"cleanup.policy": "compact"})
        monkeypatch.setattr(epoch_commit, "set_topic_config", refuse)
        open_topic(PartitionAccess(cluster))
    assert "should have unclean.leader.election.enable=false" in caplog.text
    assert "not allowed" in caplog.text
