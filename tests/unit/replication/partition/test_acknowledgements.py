"""Who waits for the high watermark, and how little it costs to wait."""

import asyncio

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.replication.partition.acknowledgements import Acknowledgements

REFUSAL = KafkaError(ErrorCode.not_enough_replicas_after_append, "too few")


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_all_up_to_the_mark_are_answered_and_the_others_wait_on():
    async def scenario():
        waiting = Acknowledgements()
        futures = {offset: waiting.at(offset) for offset in (5, 9, 7)}
        waiting.reached(4, None)
        assert not any(future.done() for future in futures.values())
        waiting.reached(7, None)
        assert [offset for offset, future in futures.items() if future.done()] == [5, 7]
        assert waiting.offsets
        waiting.reached(9, None)
        assert futures[9].done()
        assert not waiting.offsets

    run(scenario)


def test_of_those_who_wait_for_the_same_offset_one_may_give_up():
    async def scenario():
        waiting = Acknowledgements()
        first, second = waiting.at(3), waiting.at(3)
        first.cancel()
        waiting.reached(3, None)
        assert first.cancelled()
        assert second.exception() is None

    run(scenario)


def test_one_who_gave_up_by_cancelling_is_in_nobodys_way():
    async def scenario():
        waiting = Acknowledgements()
        waiting.at(3).cancel()
        again = waiting.at(3)
        assert not again.done()
        waiting.reached(3, None)
        assert again.done()
        assert again.exception() is None
        assert not waiting.offsets

    run(scenario)


def test_too_few_copies_are_a_refusal_and_a_lost_leadership_is_one_for_all():
    async def scenario():
        waiting = Acknowledgements()
        first, second = waiting.at(1), waiting.at(2)
        waiting.reached(1, REFUSAL)
        with pytest.raises(KafkaError) as refused:
            await first
        assert refused.value is REFUSAL
        lost = KafkaError(ErrorCode.not_leader_or_follower, "deposed")
        waiting.fail_all(lost)
        assert second.exception() is lost
        assert not waiting.offsets
        assert not waiting.at(2).done()

    run(scenario)


def test_a_batch_that_is_sent_again_and_again_adds_nobody_who_waits():
    async def scenario():
        waiting = Acknowledgements()
        for offset in range(100_000):
            waiting.at(offset)
        for _ in range(1000):
            waiting.at(500).set_exception(TimeoutError())
        assert len(waiting.offsets) == len(waiting._futures) == 100_001

    run(scenario)
