"""InitProducerId: epochs, their end, and producers that ask again (KIP-360)."""

from dataclasses import replace

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.coordination.shard import Outcome, ProducerStamp
from skep.coordination.transactions.transaction_state import State
from tests.unit.coordination.transactions.scene import DONE, ID, ORDERS_0, Scene, refusal

FENCED = ErrorCode.producer_fenced


def exhausted(scene: Scene) -> ProducerStamp:
    """A producer that has the last epoch a producer may have."""
    scene.init()
    last = replace(scene.transaction(), producer_epoch=32_766)
    scene.carry_out(Outcome(records=[last.record]))
    return last.producer


def test_a_new_transactional_id_begins_with_epoch_0_and_each_producer_gets_the_next():
    scene = Scene()
    first = scene.init()
    assert first.producer_epoch == 0
    assert [scene.init() for _ in range(3)] == [(first.producer_id, 1), (first.producer_id, 2), (first.producer_id, 3)]
    assert scene.init("another") == (first.producer_id + 1, 0)


def test_the_timeout_is_that_of_the_last_producer():
    scene = Scene()
    scene.init(timeout_ms=1_000)
    scene.init(timeout_ms=7_000)
    assert scene.transaction().timeout_ms == 7_000


def test_an_open_transaction_is_aborted_with_a_higher_epoch_before_the_next_producer_begins():
    scene = Scene()
    old = scene.in_state(State.ONGOING)
    assert refusal(lambda: scene.init()) is ErrorCode.concurrent_transactions
    scene.pass_ms(0)
    assert scene.state() is State.COMPLETE_ABORT
    fencing = ProducerStamp(old.producer_id, old.producer_epoch + 1)
    assert {(marker.producer, marker.is_committed) for marker in scene.markers.written} == {(fencing, False)}
    assert refusal(lambda: scene.end(old, commit=True)) is FENCED
    assert scene.init() == (old.producer_id, old.producer_epoch + 2)


def test_used_up_epochs_give_a_new_producer_id():
    scene = Scene()
    last = exhausted(scene)
    assert scene.init() == (last.producer_id + 1, 0)
    assert scene.transaction().previous_producer_id == last.producer_id
    assert scene.replay_is_the_same()


def test_the_last_epoch_that_a_producer_gets_leaves_one_to_fence_it_with():
    scene = Scene()
    scene.init()
    scene.carry_out(Outcome(records=[replace(scene.transaction(), producer_epoch=32_765).record]))
    assert scene.init().producer_epoch == 32_766
    assert scene.init().producer_epoch == 0


def test_a_producer_with_the_last_epoch_can_still_be_fenced():
    scene = Scene()
    last = exhausted(scene)
    scene.add(last, ORDERS_0)
    assert refusal(lambda: scene.init()) is ErrorCode.concurrent_transactions
    scene.pass_ms(0)
    assert scene.markers.written[0].producer == (last.producer_id, 32_767)
    assert scene.init() == (last.producer_id + 1, 0)


def test_a_producer_gets_its_own_next_epoch_and_the_same_again_when_it_asks_again():
    scene = Scene()
    first = scene.init()
    second = scene.init(current=first)
    assert second == (first.producer_id, 1)
    assert scene.init(current=first) == second
    assert scene.init(current=first) == second
    assert scene.init(current=second) == (first.producer_id, 2)
    assert refusal(lambda: scene.init(current=first)) is FENCED


def test_a_producer_that_somebody_has_replaced_does_not_get_its_next_epoch():
    scene = Scene()
    first = scene.init()
    bumped = scene.init(current=first)
    scene.init()
    assert refusal(lambda: scene.init(current=first)) is FENCED
    assert refusal(lambda: scene.init(current=bumped)) is FENCED


def test_an_epoch_that_was_never_given_is_refused():
    scene = Scene()
    first = scene.init()
    assert refusal(lambda: scene.init(current=ProducerStamp(first.producer_id, 5))) is FENCED
    assert refusal(lambda: scene.init(current=ProducerStamp(first.producer_id + 5, 0))) is FENCED


def test_the_change_of_the_producer_id_is_answered_the_same_way_again():
    scene = Scene()
    last = exhausted(scene)
    changed = scene.init(current=last)
    assert changed == (last.producer_id + 1, 0)
    assert scene.init(current=last) == changed
    assert scene.init(current=last) == changed
    scene.init(current=changed)
    assert refusal(lambda: scene.init(current=last)) is FENCED


def test_after_a_restart_the_earlier_epoch_is_not_known_any_more():
    scene = Scene()
    first = scene.init()
    second = scene.init(current=first)
    scene.restart()
    assert refusal(lambda: scene.init(current=first)) is FENCED
    assert scene.init(current=second) == (first.producer_id, 2)


def test_a_fenced_producer_cannot_abort_the_transaction_of_its_successor():
    scene = Scene()
    old = scene.init()
    new = scene.init()
    scene.add(new, ORDERS_0)
    assert refusal(lambda: scene.init(current=old)) is FENCED
    assert scene.state() is State.ONGOING
    assert scene.end(new, commit=True) == DONE


def test_a_known_producer_of_a_forgotten_id_begins_anew():
    scene = Scene()
    producer = scene.init(current=ProducerStamp(7, 3))
    assert producer.producer_epoch == 0
    assert producer.producer_id != 7


def test_one_transactional_id_too_many_is_refused():
    scene = Scene()
    scene.set(max_transactional_ids=2)
    scene.init("a")
    scene.init("b")
    with pytest.raises(KafkaError) as refused:
        scene.init("c")
    assert refused.value.code is ErrorCode.policy_violation
    assert scene.init("a").producer_epoch == 1
    assert ID not in scene.shard.transactions
