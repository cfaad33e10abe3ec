"""Transactions past their timeout, and transactional ids that nobody uses."""

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.transactions import transaction_expiry
from skep.coordination.transactions.transaction_expiry import IDS_AT_ONCE
from skep.coordination.transactions.transaction_state import State
from tests.unit.coordination.transactions.scene import DONE, ID, ORDERS_0, Scene, refusal

DAY_MS = 86_400_000


def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced():
    scene = Scene()
    producer = scene.init(timeout_ms=30_000)
    scene.add(producer, ORDERS_0)
    scene.pass_ms(30_000)
    assert scene.state() is State.ONGOING
    scene.pass_ms(10_000)
    assert scene.state() is State.COMPLETE_ABORT
    (marker,) = scene.markers.written
    assert marker == (ORDERS_0, (producer.producer_id, producer.producer_epoch + 1), False)
    assert refusal(lambda: scene.end(producer, commit=True)) is ErrorCode.producer_fenced
    assert scene.init() == (producer.producer_id, producer.producer_epoch + 2)


def test_the_timeout_counts_from_the_first_partition_and_not_from_the_last():
    scene = Scene()
    producer = scene.init(timeout_ms=30_000)
    scene.pass_ms(100_000)
    for index in range(4):
        scene.add(producer, ORDERS_0._replace(partition=index))
        scene.pass_ms(9_000)
    assert scene.state() is State.ONGOING
    scene.pass_ms(10_000)
    assert scene.state() is State.COMPLETE_ABORT


def test_the_timeout_counts_on_over_a_restart():
    scene = Scene()
    producer = scene.init(timeout_ms=30_000)
    scene.add(producer, ORDERS_0)
    scene.pass_ms(25_000)
    scene.restart()
    scene.pass_ms(10_000)
    assert scene.state() is State.COMPLETE_ABORT


def test_all_transactions_past_their_timeout_are_aborted_in_one_round():
    scene = Scene()
    for number in range(50):
        producer = scene.init(f"id-{number}", timeout_ms=1_000)
        scene.add(producer, ORDERS_0, transactional_id=f"id-{number}")
    late = scene.init("patient", timeout_ms=60_000)
    scene.add(late, ORDERS_0, transactional_id="patient")
    scene.pass_ms(10_100)
    assert {scene.state(f"id-{number}") for number in range(50)} == {State.COMPLETE_ABORT}
    assert scene.state("patient") is State.ONGOING


def test_a_timeout_whose_record_cannot_be_written_is_tried_again():
    scene = Scene()
    producer = scene.init(timeout_ms=1_000)
    scene.add(producer, ORDERS_0)
    scene.refuse_writes = KafkaError(ErrorCode.coordinator_not_available)
    scene.pass_ms(12_000)
    assert scene.state() is State.ONGOING
    scene.refuse_writes = None
    scene.pass_ms(1_000)
    assert scene.state() is State.COMPLETE_ABORT


def test_a_transactional_id_that_is_not_used_for_a_week_is_forgotten():
    scene = Scene()
    producer = scene.in_state(State.COMPLETE_COMMIT)
    scene.pass_ms(7 * DAY_MS - 3_600_000)
    assert ID in scene.shard.transactions
    scene.pass_ms(2 * 3_600_000)
    assert ID not in scene.shard.transactions
    assert scene.replay_is_the_same()
    assert refusal(lambda: scene.add(producer, ORDERS_0)) is ErrorCode.invalid_producer_id_mapping
    assert scene.init().producer_id != producer.producer_id


def test_an_id_with_a_transaction_is_not_forgotten():
    scene = Scene()
    scene.set(transaction_max_timeout_ms=100 * DAY_MS)
    producer = scene.init(timeout_ms=20 * DAY_MS)
    scene.add(producer, ORDERS_0)
    scene.pass_ms(8 * DAY_MS)
    assert scene.state() is State.ONGOING
    assert scene.end(producer, commit=True) == DONE


def test_of_very_many_ids_so_many_are_looked_at_in_one_operation(monkeypatch):
    monkeypatch.setattr(transaction_expiry, "LOOKED_AT_ONCE", 10)
    scene = Scene()
    for number in range(95):
        scene.init(f"id-{number}")
    used = scene.init("used")
    scene.timers.stop()
    scene.clock.advance_ms(8 * DAY_MS)
    scene.add(used, ORDERS_0, transactional_id="used")
    for timer, operation in (
        ("ids", transaction_expiry.remove_expired),
        ("timeouts", transaction_expiry.abort_timed_out),
    ):
        scene.timers.schedule(timer, 0, operation)
    operations = 0
    for operation in scene.timers.take_due():
        scene.submit(operation)
        operations += 1
    assert set(scene.shard.transactions) == {"used"}
    assert operations == 10 + 1


def test_many_ids_expire_in_several_writes_of_one_round():
    scene = Scene()
    for number in range(IDS_AT_ONCE * 2 + 1):
        scene.init(f"id-{number}")
    scene.pass_ms(7 * DAY_MS + 3_600_000)
    assert scene.shard.transactions == {}
