"""Every request in every state: what it is answered, and which state it leaves."""

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.coordination.shard import Freshness, ProducerStamp
from skep.coordination.transaction_records import decode_transaction_record
from skep.coordination.transactions import add_partitions, decision, transaction_listing
from skep.coordination.transactions.transaction_state import State
from tests.unit.coordination.transactions.scene import DONE, ID, ORDERS_0, ORDERS_1, Scene, refusal

NEW = TopicPartition("invoices", 4)
NONE, WAIT = ErrorCode.none, ErrorCode.concurrent_transactions
NO, FENCED = ErrorCode.invalid_txn_state, ErrorCode.producer_fenced
E, OG, PC, PA, CC, CA = list(State)[:6]


def table(rows: dict[State, tuple[ErrorCode, State]]) -> list[object]:
    return [pytest.param(state, *row, id=state.label) for state, row in rows.items()]


@pytest.mark.parametrize(
    ("state", "code", "then"),
    table({E: (NONE, OG), OG: (NONE, OG), PC: (WAIT, PC), PA: (WAIT, PA), CC: (NONE, OG), CA: (NONE, OG)}),
)
def test_adding_partitions(state: State, code: ErrorCode, then: State):
    scene = Scene()
    producer = scene.in_state(state)
    assert refusal(lambda: scene.add(producer, NEW)) is code
    assert scene.state() is then
    assert scene.replay_is_the_same()
    if code is NONE:
        assert scene.transaction().partitions == ({NEW, ORDERS_0, ORDERS_1} if state is OG else {NEW})


@pytest.mark.parametrize(
    ("state", "code", "then"),
    table({E: (NO, E), OG: (NONE, PC), PC: (WAIT, PC), PA: (NO, PA), CC: (NONE, CC), CA: (NO, CA)}),
)
def test_committing(state: State, code: ErrorCode, then: State):
    scene = Scene()
    producer = scene.in_state(state)
    assert refusal(lambda: scene.end(producer, commit=True)) is code
    assert scene.state() is then
    assert scene.replay_is_the_same()


@pytest.mark.parametrize(
    ("state", "code", "then"),
    table({E: (NO, E), OG: (NONE, PA), PC: (NO, PC), PA: (WAIT, PA), CC: (NO, CC), CA: (NONE, CA)}),
)
def test_aborting(state: State, code: ErrorCode, then: State):
    scene = Scene()
    producer = scene.in_state(state)
    assert refusal(lambda: scene.end(producer, commit=False)) is code
    assert scene.state() is then
    assert scene.replay_is_the_same()


@pytest.mark.parametrize(
    ("state", "code", "then"),
    table({E: (NONE, E), OG: (WAIT, PA), PC: (WAIT, PC), PA: (WAIT, PA), CC: (NONE, E), CA: (NONE, E)}),
)
def test_a_new_producer(state: State, code: ErrorCode, then: State):
    scene = Scene()
    scene.in_state(state)
    assert refusal(lambda: scene.init()) is code
    assert scene.state() is then
    assert scene.replay_is_the_same()


@pytest.mark.parametrize("state", [E, OG, PC, PA, CC, CA], ids=lambda state: state.label)
def test_a_producer_that_was_replaced_is_fenced_whatever_it_asks(state: State):
    scene = Scene()
    producer = scene.in_state(state)
    older = ProducerStamp(producer.producer_id, producer.producer_epoch - 1)
    before = scene.transaction()
    assert refusal(lambda: scene.add(older, NEW)) is FENCED
    assert refusal(lambda: scene.end(older, commit=True)) is FENCED
    assert refusal(lambda: scene.end(older, commit=False)) is FENCED
    assert refusal(lambda: scene.verify(older, ORDERS_0)) is FENCED
    assert refusal(lambda: scene.init(current=older)) is (WAIT if state in (PC, PA) else FENCED)
    assert scene.transaction() == before


@pytest.mark.parametrize("state", [E, OG, PC, PA, CC, CA], ids=lambda state: state.label)
def test_a_partition_takes_records_only_while_it_is_in_the_transaction(state: State):
    scene = Scene()
    producer = scene.in_state(state)
    expected = {OG: NONE, PC: WAIT, PA: WAIT}.get(state, NO)
    assert refusal(lambda: scene.verify(producer, ORDERS_0)) is expected
    assert refusal(lambda: scene.verify(producer, NEW)) is (NO if state is OG else expected)


def test_another_producer_id_or_an_unknown_transactional_id_is_not_mapped():
    scene = Scene()
    producer = scene.in_state(OG)
    other = ProducerStamp(producer.producer_id + 1, producer.producer_epoch)
    unmapped = ErrorCode.invalid_producer_id_mapping
    assert refusal(lambda: scene.add(other, NEW)) is unmapped
    assert refusal(lambda: scene.end(other, commit=True)) is unmapped
    assert refusal(lambda: scene.verify(other, ORDERS_0)) is unmapped
    assert refusal(lambda: scene.add(producer, NEW, transactional_id="nobody")) is unmapped
    assert refusal(lambda: scene.end(producer, commit=True, transactional_id="nobody")) is unmapped


def test_partitions_that_are_there_already_are_not_written_again():
    scene = Scene()
    producer = scene.in_state(OG)
    written = len(scene.log)
    assert scene.add(producer, ORDERS_1) == DONE
    assert len(scene.log) == written


def test_a_request_whose_record_cannot_be_written_changes_nothing():
    scene = Scene()
    producer = scene.in_state(OG)
    before = scene.transaction()
    scene.pass_ms(0)
    scene.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    assert refusal(lambda: scene.add(producer, NEW)) is ErrorCode.coordinator_not_available
    assert refusal(lambda: scene.end(producer, commit=True)) is ErrorCode.coordinator_not_available
    assert refusal(lambda: scene.init()) is ErrorCode.coordinator_not_available
    assert scene.transaction() == before
    assert ID not in scene.shard.completions
    scene.refuse_writes = None
    assert scene.end(producer, commit=True) == DONE


def test_what_is_answered_without_a_record_is_proven_by_one_that_changes_nothing():
    """A coordinator that was succeeded may mean an earlier transaction of the same producer."""
    ongoing, complete = Scene(), Scene()
    producer, ended, shard = ongoing.in_state(OG), complete.in_state(CC), ongoing.shard
    outcomes = [
        add_partitions.add(shard, ID, producer, frozenset({ORDERS_0}), DONE),
        transaction_listing.describe(shard, ID),
        decision.end(complete.shard, ID, ended, commit=True, response=DONE),
    ]
    assert [outcome.freshness for outcome in outcomes] == [Freshness.PROVEN] * 3
    before = dict(shard.transactions)
    key, value = shard.no_change
    assert value is None
    shard.replay(0, *decode_transaction_record(key.encode(), None), None)
    assert dict(shard.transactions) == before
