"""What a partition of several copies promises: acks, what readers see, who may lead, and copies that come back."""

import shutil
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedCluster
from skep.wire import apis
from tests.cluster.driving import (
    EARLIEST,
    FEW_INTERNAL_PARTITIONS,
    LATEST,
    PATIENCE_S,
    ask,
    create,
    files_of,
    offset_of,
    read,
    send,
    state,
    unused_name,
    wait_for_isr,
    wait_for_leader,
    wait_until_equal,
)
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, produce_body, seconds
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)

READ_COMMITTED = 1
NO_EPOCH = -1

CONFIG = {
    **FEW_INTERNAL_PARTITIONS,
    # Nobody who is frozen in a test is given up, nor leaves an ISR.
    "replica.lag.time.max.ms": "120000",
    "zookeeper.session.timeout.ms": "120000",
    "log.retention.check.interval.ms": "500",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(3, config=CONFIG) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    """A name that no test has used; all brokers are there and in sync before the test begins."""
    name = unused_name(cluster)
    cluster.wait_until_in_sync()
    return name


# Acknowledgements, and what readers see.


def test_acks_all_is_refused_while_fewer_are_in_sync_than_the_topic_asks_for(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3]], min_insync_replicas=2)
    cluster.kill(2)
    cluster.kill(3)
    wait_for_isr(cluster, topic, {1})
    with RawClient(cluster.brokers[1]) as client:
        refused = client.produce(topic, batch_of(b"all"), acks=-1)
        assert refused.error_code is ErrorCode.not_enough_replicas
        assert client.produce(topic, batch_of(b"one"), acks=1).base_offset == 0, "the other was not appended"
        cluster.restart(2)
        wait_for_isr(cluster, topic, {1, 2})
        assert client.append(topic, batch_of(b"all")) == 1


def test_what_is_not_on_all_in_sync_replicas_is_neither_acknowledged_nor_seen(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, [b"on all"])
    cluster.pause(2)
    cluster.pause(3)
    try:
        with RawClient(cluster.brokers[1]) as client, RawClient(cluster.brokers[1]) as other:
            assert client.produce(topic, batch_of(b"on one"), acks=1).base_offset == 1
            other.send(apis.PRODUCE, 9, **{**produce_body({(topic, 0): batch_of(b"all")}), "timeout": seconds(0.3)})
            fetched = client.fetch_one(Want(topic, 1), max_wait_s=0.5)
            assert (fetched.error_code, fetched.high_watermark, fetched.records) == (ErrorCode.none, 1, b"")
            assert client.list_offset(topic, LATEST).offset == 1
            assert other.receive_produced().error_code is ErrorCode.request_timed_out
    finally:
        cluster.resume(2)
        cluster.resume(3)
    assert read(cluster, topic, 3) == [b"on all", b"on one", b"all"]
    assert offset_of(cluster, topic, LATEST) == 3


def test_a_follower_is_no_place_to_write_to_and_says_who_is(cluster: EmbeddedCluster, topic: str) -> None:
    topic_id = create(cluster, topic, [[2, 1]])
    epoch = state(cluster, topic).leader_epoch  # type: ignore[union-attr]
    for i in (1, 3):
        answer = ask(cluster, i, apis.PRODUCE, 10, **produce_body({(topic, 0): batch_of(b"x")}))
        [[refused]] = [one.partition_responses for one in answer.responses]
        assert refused.error_code is ErrorCode.not_leader_or_follower
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (2, epoch)
        assert [f"{node.host}:{node.port}" for node in answer.node_endpoints] == [cluster.brokers[2]]
    with RawClient(cluster.brokers[3]) as client:
        answer = client.fetch(Want(topic_id, 0), version=16)
        [[refused]] = [one.partitions for one in answer.responses]
        assert refused.error_code is ErrorCode.not_leader_or_follower
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (2, epoch)
        assert [f"{node.host}:{node.port}" for node in answer.node_endpoints] == [cluster.brokers[2]]


# Epochs.


def epoch_end(
    cluster: EmbeddedCluster, i: int, topic: str, epoch: int, current: int = -1
) -> tuple[ErrorCode, int, int]:
    wanted = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    answer = ask(
        cluster,
        i,
        apis.OFFSET_FOR_LEADER_EPOCH,
        4,
        replica_id=-1,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )
    [[row]] = [one.partitions for one in answer.topics]
    return row.error_code, row.leader_epoch, row.end_offset


def test_a_new_leader_knows_where_the_epoch_before_it_ended(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, [b"first"] * 5)
    first = state(cluster, topic)
    assert first is not None
    cluster.kill(1)
    leader = wait_for_leader(cluster, topic, other_than=1)
    send(cluster, topic, [b"second"] * 3)
    second = state(cluster, topic)
    assert second is not None
    none = ErrorCode.none
    assert epoch_end(cluster, leader, topic, first.leader_epoch) == (none, first.leader_epoch, 5)
    assert epoch_end(cluster, leader, topic, second.leader_epoch) == (none, second.leader_epoch, 8)
    fenced = epoch_end(cluster, leader, topic, first.leader_epoch, current=first.leader_epoch)
    assert fenced[0] is ErrorCode.fenced_leader_epoch
    early = epoch_end(cluster, leader, topic, first.leader_epoch, current=second.leader_epoch + 1)
    assert early[0] is ErrorCode.unknown_leader_epoch
    [follower] = {2, 3} - {leader}
    assert epoch_end(cluster, follower, topic, first.leader_epoch)[0] is ErrorCode.not_leader_or_follower
    assert (offset_of(cluster, topic, EARLIEST), offset_of(cluster, topic, LATEST)) == (0, 8)


def test_a_new_leader_refuses_fetches_of_another_epoch_than_its_own(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, [b"first"])
    first = state(cluster, topic)
    assert first is not None
    cluster.kill(1)
    leader = wait_for_leader(cluster, topic, other_than=1)
    send(cluster, topic, [b"second"])
    second = state(cluster, topic)
    assert second is not None
    assert second.leader_epoch > first.leader_epoch
    with RawClient(cluster.brokers[leader]) as client:
        for epoch, code in (
            (first.leader_epoch, ErrorCode.fenced_leader_epoch),
            (second.leader_epoch - 1, ErrorCode.fenced_leader_epoch),
            (second.leader_epoch + 1, ErrorCode.unknown_leader_epoch),
        ):
            refused = client.fetch_one(Want(topic, 0), leader_epoch=epoch)
            assert (refused.error_code, refused.records or b"") == (code, b"")
        for epoch in (second.leader_epoch, NO_EPOCH):
            fetched = client.fetch_one(Want(topic, 0), leader_epoch=epoch)
            assert (fetched.error_code, fetched.high_watermark) == (ErrorCode.none, 2)
            assert fetched.records


def test_what_only_a_dead_leader_had_is_taken_back_when_it_returns(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, [b"kept"])
    cluster.pause(2)
    cluster.pause(3)
    with RawClient(cluster.brokers[1]) as client:
        # The fetches that wait at the leader are answered with the first one, so it may be in a socket of a frozen
        # follower; the second can be nowhere else.
        assert client.produce(topic, batch_of(b"perhaps"), acks=1).base_offset == 1
        assert client.produce(topic, batch_of(b"lost", b"lost too"), acks=1).base_offset == 2
    cluster.kill(1)
    cluster.resume(2)
    cluster.resume(3)
    wait_for_leader(cluster, topic, other_than=1)
    [offset] = send(cluster, topic, [b"instead"])
    assert offset in (1, 2)
    cluster.restart(1)
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=offset + 1)
    assert f"{topic}-0: truncating from 4 to {offset};" in cluster.log(1)
    assert read(cluster, topic, offset + 1) == [*[b"kept", b"perhaps"][:offset], b"instead"]


# Who may lead.


def test_a_replica_that_lacks_records_leads_only_where_the_topic_asks_for_it(
    cluster: EmbeddedCluster, topic: str
) -> None:
    clean, unclean = f"{topic}-clean", f"{topic}-unclean"
    create(cluster, clean, [[2, 3]])
    create(cluster, unclean, [[2, 3]], unclean_leader_election_enable="true")
    for name in (clean, unclean):
        send(cluster, name, [b"on both"])
    cluster.kill(3)
    for name in (clean, unclean):
        wait_for_isr(cluster, name, {2})
        send(cluster, name, [b"on 2 alone"])
    cluster.kill(2)
    cluster.restart(3)
    assert wait_for_leader(cluster, unclean, other_than=2) == 3
    wait_for_isr(cluster, unclean, {3})
    assert cluster.leader_of(clean) == -1, "it waits for the one that has everything"
    assert read(cluster, unclean, 1) == [b"on both"]
    assert send(cluster, unclean, [b"instead"]) == [1]
    cluster.restart(2)
    for name in (clean, unclean):
        wait_for_isr(cluster, name, {2, 3})
        wait_until_equal(cluster, name, (2, 3), end=2)
    assert read(cluster, clean, 2) == [b"on both", b"on 2 alone"]
    assert read(cluster, unclean, 2) == [b"on both", b"instead"]


# Log start.


def test_followers_take_over_the_log_start_of_their_leader(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]], segment_bytes=14_000)
    # One by one: a batch is never cut in two.
    with RawClient(cluster.brokers[1]) as client:
        for _ in range(60):
            client.append(topic, batch_of(bytes(1_000)))
        wanted = {"partition_index": 0, "offset": 40}
        answer = client.ask(
            apis.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": [wanted]}], timeout=seconds(30)
        )
        [[row]] = [one.partitions for one in answer.topics]
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, 40)

    def first_segments() -> set[str]:
        paths = [cluster.broker(i).data_dir / f"{topic}-0" for i in (1, 2, 3)]
        return {min(file.name for file in path.glob("*.log")) for path in paths}

    wait_until(
        lambda: len(first_segments()) == 1 and "00000000000000000000.log" not in first_segments(),
        lambda: f"the files before the log start are gone everywhere: {first_segments()}",
    )
    cluster.kill(1)
    wait_for_leader(cluster, topic, other_than=1)
    assert (offset_of(cluster, topic, EARLIEST), offset_of(cluster, topic, LATEST)) == (40, 60)


# Producers.


def test_a_batch_sent_again_after_a_failover_is_known_to_the_new_leader(cluster: EmbeddedCluster, topic: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    with RawClient(cluster.brokers[1]) as client:
        producer = {"producer_id": client.new_producer_id(), "producer_epoch": 0}
        first, second = (batch_of(b"a", b"b", base_sequence=n, **producer) for n in (0, 2))
        assert [client.append(topic, batch) for batch in (first, second)] == [0, 2]
    cluster.kill(1)
    with RawClient(cluster.brokers[wait_for_leader(cluster, topic, other_than=1)]) as client:
        again = client.produce(topic, second)
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 2), "acknowledged as it was the first time"
        gap = client.produce(topic, batch_of(b"x", base_sequence=7, **producer))
        assert gap.error_code is ErrorCode.out_of_order_sequence_number
        assert client.append(topic, batch_of(b"c", base_sequence=4, **producer)) == 4
    assert read(cluster, topic, 5) == [b"a", b"b", b"a", b"b", b"c"]


def test_every_replica_describes_the_producers_and_a_broker_without_one_refuses(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[2, 1]])
    with RawClient(cluster.brokers[2]) as client:
        producer_id = client.new_producer_id()
        client.append(topic, batch_of(b"a", b"b", producer_id=producer_id, producer_epoch=0, base_sequence=0))

    def described(i: int) -> tuple[ErrorCode, list[tuple[int, int]]]:
        named = [{"name": topic, "partition_indexes": [0]}]
        [[row]] = [one.partitions for one in ask(cluster, i, apis.DESCRIBE_PRODUCERS, 0, topics=named).topics]
        return row.error_code, [(one.producer_id, one.last_sequence) for one in row.active_producers]

    wait_until(lambda: described(1) == described(2), "the follower has copied the batch")
    assert described(2) == (ErrorCode.none, [(producer_id, 1)])
    assert described(3) == (ErrorCode.not_leader_or_follower, [])


def test_readers_of_committed_records_see_after_a_failover_what_they_saw_before(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3]])
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"id-{topic}", "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction, None)):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if end is not None:
            end(PATIENCE_S)
    # One record and one marker, twice; then the record of the transaction that is open.
    assert offset_of(cluster, topic, LATEST, isolation=READ_COMMITTED) == 4
    cluster.kill(1)
    wait_for_leader(cluster, topic, other_than=1)
    assert offset_of(cluster, topic, LATEST) == 5
    assert offset_of(cluster, topic, LATEST, isolation=READ_COMMITTED) == 4
    producer.commit_transaction(PATIENCE_S)
    wait_until(lambda: offset_of(cluster, topic, LATEST, isolation=READ_COMMITTED) == 6, "it is decided")
    assert read(cluster, topic, 2, isolation_level="read_committed") == [b"0", b"2"]
    assert read(cluster, topic, 3, isolation_level="read_uncommitted") == [b"0", b"1", b"2"]


# Copies that are lost or damaged.


@pytest.mark.parametrize("lost", [2, 1], ids=["a follower", "the leader"])
def test_a_broker_whose_disk_was_emptied_comes_back_and_equals_the_others(
    cluster: EmbeddedCluster, topic: str, lost: int
) -> None:
    create(cluster, topic, [[1, 2, 3]], segment_bytes=14_000)
    send(cluster, topic, [bytes([number]) * 1_000 for number in range(50)], batch_num_messages=5)
    cluster.kill(lost)
    wait_for_leader(cluster, topic, other_than=lost if lost == 1 else 0)
    shutil.rmtree(cluster.broker(lost).data_dir)
    cluster.restart(lost)
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=50)


def test_a_broker_that_lost_its_disk_together_with_all_others_away_is_not_elected(
    cluster: EmbeddedCluster, topic: str
) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, [b"acknowledged by all three"])
    for i in (1, 2, 3):
        cluster.kill(i)
    shutil.rmtree(cluster.broker(1).data_dir)
    cluster.restart(1)
    wait_until(lambda: state(cluster, topic, seen_by=1), "it knows the topic")
    assert cluster.leader_of(topic) == -1, "it has nothing, and says so"
    cluster.restart(2)
    cluster.restart(3)
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=1)
    assert read(cluster, topic, 1) == [b"acknowledged by all three"]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_partition_whose_directory_is_gone_is_copied_anew(cluster: EmbeddedCluster, topic: str, how: str) -> None:
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, [b"x"] * 10)
    # With a leader that stops, the checkpoints speak of the partition; one that is killed may not have come to that.
    (cluster.kill if how == "killed" else cluster.stop)(1)
    wait_for_leader(cluster, topic, other_than=1)
    shutil.rmtree(files_of(cluster, topic)[1])
    cluster.restart(1)
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=10)


@pytest.mark.parametrize("damaged", [3, 1], ids=["a follower", "the leader"])
def test_a_log_that_is_damaged_in_the_middle_is_mended_from_the_others(
    cluster: EmbeddedCluster, topic: str, damaged: int
) -> None:
    create(cluster, topic, [[1, 2, 3]])
    for number in range(20):
        send(cluster, topic, [bytes([number]) * 500])
    cluster.kill(damaged)
    wait_for_leader(cluster, topic, other_than=damaged if damaged == 1 else 0)
    log = files_of(cluster, topic)[damaged] / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)
    cluster.restart(damaged)
    wait_for_isr(cluster, topic, {1, 2, 3})
    wait_until_equal(cluster, topic, (1, 2, 3), end=20)
