"""What ListTransactions and DescribeTransactions show."""

from datetime import UTC, datetime, timedelta

from skep.base.errors import ErrorCode
from skep.base.loop.slicer import run_at_once
from skep.coordination.transactions.transaction_listing import ListFilter, listed
from skep.coordination.transactions.transaction_state import State
from tests.unit.coordination.transactions.scene import ID, ORDERS_0, Promise, Scene, refusal


def names(scene: Scene, *, states: set[State] | None = None, producers: set[int] | None = None, longer: int = -1):
    wanted = ListFilter(None if states is None else frozenset(states), producers or (), longer)
    return sorted(found["transactional_id"] for found in run_at_once(listed(scene.shard, wanted)))


def test_an_open_transaction_is_described_with_its_partitions():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    began_ms = scene.clock.now_ms()
    assert scene.describe() == {
        "error_code": ErrorCode.none,
        "transactional_id": ID,
        "transaction_state": "Ongoing",
        "transaction_timeout": timedelta(seconds=60),
        "transaction_start_time": datetime.fromtimestamp(began_ms / 1000, UTC),
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "topics": [{"topic": "orders", "partitions": [0, 1]}],
    }


def test_one_that_is_being_ended_shows_what_is_still_missing():
    scene = Scene()
    producer = scene.in_state(State.ONGOING)
    scene.markers.syncs[ORDERS_0] = Promise()
    scene.end(producer, commit=True)
    scene.pass_ms(0)
    described = scene.describe()
    assert described["transaction_state"] == "PrepareCommit"
    assert described["topics"] == [{"topic": "orders", "partitions": [0]}]


def test_an_id_that_nobody_uses_is_not_found():
    scene = Scene()
    assert refusal(lambda: scene.describe("nobody")) is ErrorCode.transactional_id_not_found


def test_the_list_is_filtered_by_state_producer_and_duration():
    scene = Scene()
    old = scene.in_state(State.ONGOING, "old")
    scene.pass_ms(5_000)
    scene.in_state(State.ONGOING, "young")
    done = scene.in_state(State.COMPLETE_COMMIT, "done")
    assert names(scene) == ["done", "old", "young"]
    assert names(scene, states={State.ONGOING}) == ["old", "young"]
    assert names(scene, states=set()) == []
    assert names(scene, producers={old.producer_id, done.producer_id}) == ["done", "old"]
    assert names(scene, states={State.ONGOING}, longer=4_999) == ["old"]
    assert names(scene, states={State.ONGOING}, longer=5_000) == []
