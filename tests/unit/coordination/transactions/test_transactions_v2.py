"""Transactions v2 (KIP-890, part 2): each transaction has an epoch of its own, which EndTxn hands out."""

from dataclasses import replace

import pytest

from skep.base.errors import ErrorCode
from skep.base.ids import TopicPartition
from skep.coordination.shard import Freshness, Outcome, ProducerStamp
from skep.coordination.transactions import add_partitions, decision
from skep.coordination.transactions.transaction import HIGHEST_EPOCH, V2
from skep.coordination.transactions.transaction_state import State
from skep.coordination.transactions.transaction_table import NEEDS_PRODUCER_ID
from tests.unit.coordination.transactions.scene import DONE, ID, ORDERS_0, ORDERS_1, Marker, Scene, refusal

NONE, WAIT = ErrorCode.none, ErrorCode.concurrent_transactions
NO, FENCED, OTHER = ErrorCode.invalid_txn_state, ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping
E, OG, PC, PA, CC, CA = list(State)[:6]
NEW_ID = 7777


class SceneV2(Scene):
    """A scene whose producer uses transactions v2."""

    def begin(self, producer: ProducerStamp) -> None:
        partitions = frozenset({ORDERS_0, ORDERS_1})
        self.submit(lambda shard: add_partitions.add(shard, ID, producer, partitions, DONE, V2))

    def finish(self, producer: ProducerStamp, *, commit: bool, new_id: int | None = None) -> ProducerStamp:
        """EndTxn: the producer of the next transaction."""
        response = self.submit(
            lambda shard: decision.end_v2(shard, ID, producer, commit=commit, new_producer_id=new_id)
        )
        assert isinstance(response, ProducerStamp), response
        return response

    def brought_to(self, state: State) -> tuple[ProducerStamp, ProducerStamp]:
        """A new transactional id in this state: the producer of its transaction, and the one after EndTxn."""
        producer = self.init()
        if state is not E:
            self.begin(producer)
        following = producer
        if state in (PC, CC):
            following = self.finish(producer, commit=True)
        elif state in (PA, CA):
            following = self.finish(producer, commit=False)
        if state in (CC, CA):
            self.pass_ms(0)
        assert self.state() is state
        return producer, following

    def with_epoch(self, epoch: int) -> ProducerStamp:
        """A producer that has used up its epochs below this one, and is in a transaction."""
        self.init()
        aged = replace(self.transaction(), producer_epoch=epoch)
        self.submit(lambda shard: Outcome(DONE, [aged.record]))
        self.begin(aged.producer)
        return aged.producer


def following_epoch(producer: ProducerStamp) -> ProducerStamp:
    return ProducerStamp(producer.producer_id, producer.producer_epoch + 1)


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_transaction_gives_the_producer_its_next_epoch(commit: bool):
    scene = SceneV2()
    producer = scene.init()
    scene.begin(producer)
    following = scene.finish(producer, commit=commit)
    assert following == following_epoch(producer)
    scene.pass_ms(0)
    assert scene.state() is (CC if commit else CA)
    assert scene.transaction().producer == following
    assert scene.replay_is_the_same()


def test_markers_carry_the_next_epoch_so_that_late_records_of_the_transaction_are_fenced():
    scene = SceneV2()
    producer = scene.init()
    scene.begin(producer)
    following = scene.finish(producer, commit=True)
    scene.pass_ms(0)
    assert scene.markers.written == [Marker(ORDERS_0, following, True), Marker(ORDERS_1, following, True)]
    assert refusal(lambda: scene.begin(producer)) is FENCED
    scene.begin(following)
    assert scene.state() is OG


@pytest.mark.parametrize(
    ("state", "commit", "code", "then"),
    [
        (E, True, NO, E),
        (OG, True, NONE, PC),
        (PC, True, WAIT, PC),
        (PA, True, WAIT, PA),
        (CC, True, NO, CC),
        (CA, True, NO, CA),
        (E, False, NONE, PA),
        (OG, False, NONE, PA),
        (PC, False, WAIT, PC),
        (PA, False, WAIT, PA),
        (CC, False, NONE, PA),
        (CA, False, NONE, PA),
    ],
)
def test_end_of_the_current_epoch(state: State, commit: bool, code: ErrorCode, then: State):
    scene = SceneV2()
    _, producer = scene.brought_to(state)
    assert refusal(lambda: scene.finish(producer, commit=commit)) is code
    assert scene.state() is then
    assert scene.replay_is_the_same()


@pytest.mark.parametrize(
    ("state", "commit", "code"),
    [
        (PC, True, WAIT),
        (PC, False, NO),
        (PA, True, NO),
        (PA, False, WAIT),
        (CC, True, NONE),
        (CC, False, NO),
        (CA, True, NO),
        (CA, False, NONE),
    ],
)
def test_a_repeated_end_has_the_epoch_of_the_transaction_that_it_ended(state: State, commit: bool, code: ErrorCode):
    scene = SceneV2()
    ended, following = scene.brought_to(state)
    assert refusal(lambda: scene.finish(ended, commit=commit)) is code
    assert scene.state() is state
    if code is NONE:
        assert scene.finish(ended, commit=commit) == following


def test_the_response_to_a_repeated_end_is_proven():
    """A coordinator that was succeeded may not know of a later transaction."""
    scene = SceneV2()
    ended, _ = scene.brought_to(CC)
    outcome = decision.end_v2(scene.shard, ID, ended, commit=True, new_producer_id=None)
    assert outcome.freshness is Freshness.PROVEN


def test_the_epoch_before_is_fenced_when_the_last_transaction_was_not_of_v2():
    """Then the epoch was raised by InitProducerId, which fences."""
    scene = SceneV2()
    first = scene.init()
    second = scene.init()
    scene.add(second, ORDERS_0)
    scene.end(second, commit=True)
    scene.pass_ms(0)
    assert scene.state() is CC
    assert refusal(lambda: scene.finish(first, commit=True)) is FENCED


def test_an_abort_of_nothing_gives_the_next_epoch_too():
    """A producer that got no response to its first record does not know whether it has begun."""
    scene = SceneV2()
    producer = scene.init()
    following = scene.finish(producer, commit=False)
    scene.pass_ms(0)
    assert following == following_epoch(producer)
    assert scene.state() is CA
    assert scene.markers.written == []
    assert scene.replay_is_the_same()


def test_a_producer_whose_transaction_timed_out_may_abort_and_continue():
    scene = SceneV2()
    producer = scene.init(timeout_ms=1_000)
    scene.begin(producer)
    scene.pass_ms(60_000)
    assert scene.state() is CA
    assert refusal(lambda: scene.finish(producer, commit=True)) is NO
    following = scene.finish(producer, commit=False)
    assert following == following_epoch(producer)
    scene.begin(following)


def test_a_producer_with_the_last_epoch_gets_another_id():
    scene = SceneV2()
    producer = scene.with_epoch(HIGHEST_EPOCH - 1)
    asked = decision.end_v2(scene.shard, ID, producer, commit=True, new_producer_id=None)
    assert asked.response is NEEDS_PRODUCER_ID
    following = scene.finish(producer, commit=True, new_id=NEW_ID)
    assert following == ProducerStamp(NEW_ID, 0)
    assert scene.state() is PC
    assert scene.replay_is_the_same()
    # The successor has to wait, and so has a repetition.
    assert refusal(lambda: scene.begin(following)) is WAIT
    assert refusal(lambda: scene.init(current=following)) is WAIT
    assert refusal(lambda: scene.finish(producer, commit=True)) is WAIT
    scene.pass_ms(0)
    marked = ProducerStamp(producer.producer_id, HIGHEST_EPOCH)
    assert {marker.producer for marker in scene.markers.written} == {marked}
    assert scene.transaction().producer == following
    assert scene.finish(producer, commit=True) == following
    assert scene.replay_is_the_same()
    scene.begin(following)


def test_a_producer_that_is_timed_out_with_its_last_epoch_gets_another_id_when_it_aborts():
    scene = SceneV2()
    producer = scene.with_epoch(HIGHEST_EPOCH - 1)
    scene.pass_ms(10_000_000)
    assert scene.transaction().producer_epoch == HIGHEST_EPOCH
    assert scene.finish(producer, commit=False, new_id=NEW_ID) == ProducerStamp(NEW_ID, 0)
    scene.pass_ms(0)
    assert scene.transaction().producer == ProducerStamp(NEW_ID, 0)


@pytest.mark.parametrize("wrong", [ProducerStamp(4711, 0), ProducerStamp(4711, HIGHEST_EPOCH - 1)])
def test_another_producer_id_is_refused(wrong: ProducerStamp):
    scene = SceneV2()
    scene.brought_to(CC)
    assert refusal(lambda: scene.finish(wrong, commit=True)) is OTHER


def test_a_producer_stays_fenced_when_its_successor_writes_with_v2_and_ends_without():
    scene = SceneV2()
    fenced, current = scene.init(), scene.init()
    scene.begin(current)
    scene.end(current, commit=True)
    scene.pass_ms(0)
    assert refusal(lambda: scene.finish(fenced, commit=True)) is FENCED


def test_an_older_request_within_a_transaction_of_v2_leaves_it_of_v2():
    scene = SceneV2()
    producer = scene.init()
    scene.begin(producer)
    scene.add(producer, TopicPartition("invoices", 4))
    assert scene.transaction().version == V2


def test_an_epoch_before_the_end_of_a_transaction_is_not_repeated_by_init():
    scene = SceneV2()
    first = scene.init()
    second = scene.init(current=first)
    scene.begin(second)
    scene.finish(second, commit=True)
    scene.pass_ms(0)
    assert refusal(lambda: scene.init(current=first)) is FENCED
