"""The sink's driver against answers that are wrong for a moment, logs that were cut, topics that are gone; no Spark."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from pyspark_skep.write import decisions, epoch_commit, settlement
from pyspark_skep.write.decisions import Decision, newest_decision
from pyspark_skep.write.driver_transaction import DriverTransaction
from pyspark_skep.write.epoch_commit import abort_epoch, commit_epoch, commit_job
from pyspark_skep.write.partition_access import Fetched, PartitionAccess
from pyspark_skep.write.task_transactions import TaskTransaction
from pyspark_skep.write.write_errors import CommitFailed, RowsLost
from skep.base.errors import ErrorCode, KafkaError
from skep.client.admin import create_topic
from skep.client.cluster_client import ClusterClient, Node
from skep.client.list_offsets import LATEST
from skep.client.produce.transactions import init_producer_id, list_open_transactions
from skep.testing import EmbeddedBroker
from skep.wire.apis import LIST_OFFSETS, Api
from skep.wire.codec import Body
from tests.spark.driver_model import KEEPS_ALL, PARTITIONS, Queries, Run, decide, decided, rows_of


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=KEEPS_ALL) as broker:
        yield broker


@pytest.fixture
def queries(broker: EmbeddedBroker) -> Queries:
    return made(broker.bootstrap_servers)


@pytest.fixture
def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def made(bootstrap: str) -> Queries:
    topic = f"out-{uuid4().hex[:8]}"
    with ClusterClient(bootstrap) as cluster:
        create_topic(cluster, topic, PARTITIONS, {})
    return Queries(bootstrap, topic)


def aborted(run: Run, query: str, count: int = 1) -> list[TaskTransaction]:
    """Tasks of epoch 0 that have written, and whose transactions were then aborted by somebody."""
    tasks = run.tasks(rows_of(query, 0), count)
    for task in tasks:
        init_producer_id(run.cluster, task.transactional_id, 1_000)
    return tasks


@contextmanager
def wrong_at_first(
    access: PartitionAccess, times: int, wrong: Callable[[Fetched], Fetched], *, topic: str, committed: bool
) -> Iterator[None]:
    """The first fetches of a topic are answered by ``wrong`` instead."""
    fetch, left = access.fetch, [times]

    def answer(name: str, *where: int, committed: bool, max_bytes: int) -> Fetched:
        got = fetch(name, *where, committed=committed, max_bytes=max_bytes)
        if (name, committed) == wanted and left[0]:
            left[0] -= 1
            return wrong(got)
        return got

    wanted = (topic, committed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(access, "fetch", answer)
        yield
    assert left == [0], "the wrong answers were asked for"


def delete_records(admin: AdminClient, topic: str, partition: int) -> None:
    """All that are there."""
    [gone] = admin.delete_records([TopicPartition(topic, partition, -1)]).values()
    gone.result(30)


def test_a_leader_that_has_nothing_to_give_yet_does_not_hide_a_decision(queries: Queries) -> None:
    query = queries.query()
    queries.epoch(query, 0, 2)
    queries.expect(query, 0)
    with queries.start(query) as run:
        tasks = run.tasks(rows_of(query, 0), 1)

        def behind(got: Fetched) -> Fetched:
            return got._replace(data=b"", last_stable_offset=0)

        with wrong_at_first(run.access, 3, behind, topic=decisions.TOPIC, committed=True):
            commit_epoch(run.access, query, 0, tasks)
    queries.check()


def test_an_old_leader_that_answers_all_reads_does_not_hide_a_decision(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = queries.query()
    queries.epoch(query, 0, 2)
    queries.epoch(query, 1, 2)
    queries.expect(query, 0, 1)
    with queries.start(query) as run:
        ask, tasks = run.access._offset, run.tasks(rows_of(query, 1), 1)
        before = decided_up_to(run, query, epoch=0)
        asked: list[int] = []

        def old(topic: str, partition: int, which: int, *, committed: bool = False) -> int:
            """The end of the log is where it was before epoch 1 was decided, the first twenty times it is asked for."""
            if topic == decisions.TOPIC and which == LATEST and len(asked) < 20:
                asked.append(1)
                return before
            return ask(topic, partition, which, committed=committed)

        monkeypatch.setattr(run.access, "_offset", old)
        commit_epoch(run.access, query, 1, tasks)
        assert len(asked) == 20
    queries.check()


def decided_up_to(run: Run, query: str, epoch: int) -> int:
    """The offset below which that epoch is the newest that is decided."""
    partition = decisions.partition_of(query)
    _, end = run.access.bounds(decisions.TOPIC, partition)
    while True:
        found = newest_decision(run.access, query, before=end, patience_s=10)
        if found is not None and found.epoch == epoch:
            return end
        end -= 1


def test_a_leader_that_does_not_know_its_end_yet_is_asked_again(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queries.start(queries.query()) as run:
        ask_node, refused = run.cluster.ask_node, []

        def not_available(node: Node, api: Api, body: Body) -> Any:
            if api is not LIST_OFFSETS or len(refused) == 3:
                return ask_node(node, api, body)
            refused.append(node)
            row = SimpleNamespace(partition_index=0, error_code=ErrorCode.offset_not_available)
            return SimpleNamespace(topics=[SimpleNamespace(name=queries.topic, partitions=[row])])

        monkeypatch.setattr(run.cluster, "ask_node", not_available)
        assert run.access.last_stable_offset(queries.topic, 0) == 0
        assert len(refused) == 3


def test_a_leader_that_never_knows_more_ends_with_an_error(queries: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    query = queries.query()
    queries.epoch(query, 0, 2)
    with queries.start(query) as run:
        nothing = Fetched(b"", 0, 0, [])
        monkeypatch.setattr(run.access, "fetch", lambda *_, **__: nothing)
        with pytest.raises(CommitFailed, match="holds back __spark_commits"):
            decided(run, query, patience_s=0.2)


def test_what_compaction_took_from_the_end_of_the_decisions_is_believed_when_said_twice(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = queries.query()
    queries.epoch(query, 0, 1)
    with queries.start(query) as run:
        asked = []

        def nothing(*_: Any, **__: Any) -> Fetched:
            asked.append(1)
            return Fetched(b"", 1 << 40, 1 << 40, [])

        monkeypatch.setattr(run.access, "fetch", nothing)
        assert decided(run, query) is None
        assert len(asked) % 2 == 0


def test_a_topic_that_only_seems_to_be_gone_costs_no_row(queries: Queries) -> None:
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)

        def unknown(got: Fetched) -> Fetched:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "not there")

        with wrong_at_first(run.access, 7, unknown, topic=queries.topic, committed=True):
            commit_epoch(run.access, query, 0, tasks)
    queries.expect(query, 0)
    queries.check()


def test_metadata_that_lack_a_topic_for_a_moment_are_not_believed(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)
        ask, left = run.access.topic, [3]

        def absent(name: str) -> Any:
            if name == queries.topic and left[0]:
                left[0] -= 1
                return None
            return ask(name)

        monkeypatch.setattr(run.access, "topic", absent)
        commit_epoch(run.access, query, 0, tasks)
        assert left == [0]
    queries.expect(query, 0)
    queries.check()


def test_a_topic_that_one_broker_knows_is_not_gone_whatever_another_says(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "BELIEVED_AFTER_S", 0.1)
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)
        ask = run.access.topic
        # As a broker says that was cut off before the topic was made.
        monkeypatch.setattr(run.access, "topic", lambda name: None if name == queries.topic else ask(name))
        commit_epoch(run.access, query, 0, tasks)
    queries.expect(query, 0)
    queries.check()


@pytest.mark.parametrize("committed", [True, False], ids=["looked up", "written again"])
def test_rows_past_the_end_of_an_old_leader_are_not_taken_for_lost(queries: Queries, committed: bool) -> None:
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)

        def past_the_end(got: Fetched) -> Fetched:
            raise KafkaError(ErrorCode.offset_out_of_range, "past the end")

        with wrong_at_first(run.access, 7, past_the_end, topic=queries.topic, committed=committed):
            commit_epoch(run.access, query, 0, tasks)
    queries.expect(query, 0)
    queries.check()


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_rows_of_a_topic_that_was_deleted_went_with_it(
    queries: Queries,
    admin: AdminClient,
    is_made_anew: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(settlement, "BELIEVED_AFTER_S", 0.3)
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)
        decide(run, query, Decision(0, tuple(tasks), topic_ids=run.access.topic_ids([queries.topic])))
        [gone] = admin.delete_topics([queries.topic]).values()
        gone.result(30)
        if is_made_anew:
            create_topic(run.cluster, queries.topic, PARTITIONS, {})
        commit_epoch(run.access, query, 0, tasks)
    assert f"topic '{queries.topic}' was deleted, and with it rows" in caplog.text
    if is_made_anew:
        queries.check()


def test_rows_that_were_deleted_before_they_were_repaired_end_with_a_clear_error(
    queries: Queries, admin: AdminClient
) -> None:
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)
        delete_records(admin, queries.topic, 0)
        with pytest.raises(RowsLost, match=rf"4 of 4 rows of {queries.topic}-0, offsets 0 to 3 are no longer"):
            commit_epoch(run.access, query, 0, tasks)
        assert list_open_transactions(run.cluster, f"spark/{query}") == [], "what was written again is aborted"
    queries.check()


def test_what_became_of_rows_cannot_be_told_when_all_of_them_were_deleted(queries: Queries, admin: AdminClient) -> None:
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)
        for partition in range(PARTITIONS):
            delete_records(admin, queries.topic, partition)
        with pytest.raises(RowsLost, match=r"cannot be told: .*-0, offsets 0 to 3 are no longer in the log"):
            commit_epoch(run.access, query, 0, tasks)


@pytest.mark.parametrize("high_watermark", [0, 1 << 40])
def test_a_short_answer_in_a_repair_costs_no_row(queries: Queries, high_watermark: int) -> None:
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)

        def short(got: Fetched) -> Fetched:
            return got._replace(data=b"", high_watermark=high_watermark)

        with wrong_at_first(run.access, 1, short, topic=queries.topic, committed=False):
            commit_epoch(run.access, query, 0, tasks)
    queries.expect(query, 0)
    queries.check()


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_repair_that_fails_leaves_nothing_open(queries: Queries, is_stream: bool) -> None:
    query = queries.query()
    with queries.start(query) as run:
        tasks = aborted(run, query)
        append, left = DriverTransaction.append, [2]

        def refuse(driver: DriverTransaction, topic: str, *rest: Any) -> int | None:
            if topic == queries.topic:
                left[0] -= 1
                if not left[0]:
                    raise KafkaError(ErrorCode.unknown_server_error, "a broker's bug")
            return append(driver, topic, *rest)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(DriverTransaction, "append", refuse)
            with pytest.raises(KafkaError, match="a broker's bug"):
                if is_stream:
                    commit_epoch(run.access, query, 0, tasks)
                else:
                    commit_job(run.access, query, tasks)
        assert list_open_transactions(run.cluster, f"spark/{query}") == []
        if is_stream:
            commit_epoch(run.access, query, 0, tasks)
            queries.expect(query, 0)
    queries.check()


def test_a_driver_that_was_replaced_and_still_aborts_costs_a_repair_and_no_row(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = queries.query()
    abort_open, commit_open = epoch_commit._abort_open, epoch_commit._commit_open
    with queries.start(query) as old, queries.start(query) as new:

        def after_the_decision(access: PartitionAccess, tasks: Any) -> Any:
            monkeypatch.setattr(epoch_commit, "_commit_open", commit_open)
            abort_open(old.access, query)
            return commit_open(access, tasks)

        def while_another_decides(access: PartitionAccess, name: str) -> None:
            monkeypatch.setattr(epoch_commit, "_abort_open", abort_open)
            monkeypatch.setattr(epoch_commit, "_commit_open", after_the_decision)
            commit_epoch(new.access, query, 0, new.tasks(rows_of(query, 0), 2))
            abort_open(access, name)

        monkeypatch.setattr(epoch_commit, "_abort_open", while_another_decides)
        abort_epoch(old.access, query, 0)
        found = decided(new, query)
        assert found is not None
        assert len(found.repaired) == 2, "the tasks were aborted after they had been decided"
    queries.expect(query, 0)
    queries.check()


def test_a_replay_with_another_number_of_rows_is_dropped_with_a_warning(
    queries: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    query = queries.query()
    queries.epoch(query, 0, 2)
    queries.epoch(query, 0, 3)
    assert "is replayed with" not in caplog.text
    with queries.start(query) as run:
        commit_epoch(run.access, query, 0, run.tasks(rows_of(query, 0, 20), 1))
    assert "was committed before with 11 rows, and is replayed with 20" in caplog.text
    queries.expect(query, 0)
    queries.check()


def test_a_broker_that_allows_short_transactions_only_does_not_stop_a_query() -> None:
    with EmbeddedBroker(options={"transaction.max.timeout.ms": "30000"}) as broker:
        queries = made(broker.bootstrap_servers)
        query = queries.query()
        with queries.start(query, timeout_ms=30_000) as run:
            commit_epoch(run.access, query, 0, aborted(run, query, 2))
        queries.expect(query, 0)
        queries.check()


@pytest.mark.parametrize(
    ("partitions", "policy", "problem"),
    [(8, "delete", "cleanup.policy=delete"), (8, "compact,delete", "compact,delete"), (4, "compact", "4 partitions")],
)
def test_a_topic_of_decisions_that_would_lose_them_is_refused(partitions: int, policy: str, problem: str) -> None:
    with EmbeddedBroker() as broker:
        queries = made(broker.bootstrap_servers)
        query = queries.query()
        with queries.start(query) as run:
            create_topic(run.cluster, decisions.TOPIC, partitions, {"cleanup.policy": policy})
            with pytest.raises(CommitFailed, match=problem):
                commit_epoch(run.access, query, 0, run.tasks(rows_of(query, 0), 1))
