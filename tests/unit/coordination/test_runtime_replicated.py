"""The runtime over partitions with followers: what a response waits for, and what a new leader epoch changes."""

import asyncio

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.coordination.shard import LATER, Freshness, Outcome
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.replication.partition.leadership_lease import LeadershipLease
from tests.unit.coordination.runtime_scene import (
    ELSEWHERE,
    HERE,
    TOPIC,
    Scene,
    get,
    put,
    refusal,
    run,
)


def replicated(scene: Scene, leader_epoch: int = 0, leader: BrokerId = HERE) -> TopicRecord:
    """The topic with a follower on another broker, as the catalog has it from now on."""
    partition = PartitionRecord((HERE, ELSEWHERE), (HERE, ELSEWHERE), leader, leader_epoch)
    return TopicRecord(TOPIC, scene.topic.topic_id, (partition,) * 3)


def follow(scene: Scene, topic: TopicRecord) -> bool:
    """The image changes: the partitions follow it, then the coordinator."""
    old = scene.catalog.image
    scene.catalog.image = old.with_topic(topic)
    scene.replicas.image_changed(old, scene.catalog.image)
    return scene.runtime.follow(topic, HERE)


def catch_up(scene: Scene, index: int = 0) -> None:
    partition = scene.replicas.partition(TOPIC, index)
    partition.follower_fetched(ELSEWHERE, partition.log.log_end_offset, 1)


def test_a_response_waits_for_the_in_sync_replicas():
    async def scenario(scene):
        follow(scene, replicated(scene))
        written = asyncio.ensure_future(scene.runtime.submit_to(0, put("a", "one")))
        read = asyncio.ensure_future(scene.runtime.submit_to(0, get("a")))
        hung_up = asyncio.ensure_future(scene.runtime.submit_to(0, get("a")))
        await asyncio.sleep(0)
        hung_up.cancel()
        await asyncio.sleep(0)
        assert not written.done()
        assert not read.done()
        catch_up(scene)
        assert (await written, await read) == ("put", "one")

    run(scenario)


@pytest.mark.parametrize(("leader_epoch", "leader"), [(1, ELSEWHERE), (1, HERE)], ids=["elsewhere", "elected again"])
def test_with_a_new_leader_epoch_what_was_not_committed_is_told_to_look_for_the_coordinator(leader_epoch, leader):
    async def scenario(scene):
        def park(shard, waiter):
            shard.waiting.append(waiter)
            return Outcome(LATER)

        follow(scene, replicated(scene))
        key = next(key for key in "abcdefgh" if scene.runtime.partition_for(key) == 0)
        scene.runtime.submit_to(0, get(key))
        waiting = asyncio.ensure_future(scene.runtime.submit_and_wait(key, park))
        await asyncio.sleep(0)
        reply = asyncio.get_running_loop().create_future()
        written = asyncio.ensure_future(scene.runtime.submit_to(0, put("a", "one", replies=[(reply, "fine")])))
        await asyncio.sleep(0)
        [before] = [shard for index, shard in scene.runtime.loaded_shards() if index == 0]
        assert follow(scene, replicated(scene, leader_epoch, leader)) is (leader is HERE)
        for told in (written, waiting, reply):
            with pytest.raises(KafkaError) as refused:
                await told
            assert refused.value.code is ErrorCode.not_coordinator
        if leader is HERE:
            while scene.runtime.is_loading:
                await asyncio.sleep(0.001)
            [after] = [shard for index, shard in scene.runtime.loaded_shards() if index == 0]
            assert after is not before
            assert after.texts == {"a": "one"}  # as the leader, all that it has will be committed
        else:
            assert refusal(lambda: scene.runtime.submit_to(0, get("a"))) is ErrorCode.not_coordinator

    run(scenario)


def test_a_shard_stays_as_it_is_when_only_the_in_sync_replicas_change():
    async def scenario(scene):
        follow(scene, replicated(scene))
        scene.runtime.submit_to(0, get("a"))
        [before] = [shard for index, shard in scene.runtime.loaded_shards() if index == 0]
        alone = tuple(partition._replace(isr=(HERE,)) for partition in replicated(scene).partitions)
        assert follow(scene, TopicRecord(TOPIC, scene.topic.topic_id, alone)) is False
        [after] = [shard for index, shard in scene.runtime.loaded_shards() if index == 0]
        assert after is before

    run(scenario)


def test_with_too_few_replicas_in_sync_nothing_is_written():
    async def scenario(scene):
        follow(scene, replicated(scene))
        alone = tuple(partition._replace(isr=(HERE,)) for partition in replicated(scene).partitions)
        follow(scene, TopicRecord(TOPIC, scene.topic.topic_id, alone))
        assert refusal(lambda: scene.runtime.submit_to(0, put("a", "one"))) is ErrorCode.coordinator_not_available
        assert scene.runtime.submit_to(0, get("a")) is None

    run(scenario, min_insync_replicas=2)


def test_with_too_few_replicas_after_the_write_the_state_stands_and_the_client_asks_again():
    async def scenario(scene):
        follow(scene, replicated(scene))
        written = asyncio.ensure_future(scene.runtime.submit_to(0, put("a", "one")))
        await asyncio.sleep(0)
        alone = tuple(partition._replace(isr=(HERE,)) for partition in replicated(scene).partitions)
        follow(scene, TopicRecord(TOPIC, scene.topic.topic_id, alone))
        with pytest.raises(KafkaError) as refused:
            await written
        assert refused.value.code is ErrorCode.coordinator_not_available
        assert scene.runtime.submit_to(0, get("a")) == "one"

    run(scenario, min_insync_replicas=2)


def test_a_shard_that_leaves_while_it_loads_is_not_read_to_the_end():
    async def scenario(scene):
        follow(scene, replicated(scene))
        written = asyncio.ensure_future(scene.runtime.submit_to(0, put("a", "one")))
        catch_up(scene)
        await written
        scene.threads.gate.clear()
        follow(scene, replicated(scene, 1))
        assert scene.runtime.is_loading
        loading = scene.runtime._shards[0].loading
        follow(scene, replicated(scene, 2, ELSEWHERE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert loading.cancelled()
        scene.threads.gate.set()
        follow(scene, replicated(scene, 3))
        while scene.runtime.is_loading:
            await asyncio.sleep(0.001)
        catch_up(scene)
        assert scene.runtime.submit_to(0, get("a")) == "one"

    run(scenario)


async def written_and_lost(scene: Scene, leader: BrokerId = ELSEWHERE) -> None:
    """Partition 0 has a record, and by the image of epoch 1 ``leader`` leads it."""
    follow(scene, replicated(scene))
    written = asyncio.ensure_future(scene.runtime.submit_to(0, put("a", "one")))
    await asyncio.sleep(0)
    catch_up(scene)
    await written
    follow(scene, replicated(scene, 1, leader))
    while scene.runtime.is_loading:
        await asyncio.sleep(0.001)


def use_up_this_turn(scene: Scene) -> None:
    """Other work in slices has come first, so roles are taken in a later turn of the loop."""

    def work():
        scene.clock.advance_ms(1000)
        yield

    scene.replicas.slicer.run(work())


async def loaded_again(scene: Scene) -> dict[str, str]:
    async with asyncio.timeout(60):
        while scene.runtime.is_loading:
            await asyncio.sleep(0.001)
    [shard] = [shard for index, shard in scene.runtime.loaded_shards() if index == 0]
    assert shard.was_loaded
    return shard.texts


@pytest.mark.parametrize("leader", [ELSEWHERE, HERE], ids=["led elsewhere before", "led here before"])
def test_a_shard_is_loaded_when_its_partition_leads_and_that_may_be_later_than_the_image(leader, caplog):
    async def scenario(scene):
        await written_and_lost(scene, leader)
        use_up_this_turn(scene)
        follow(scene, replicated(scene, 2, HERE))
        assert scene.replicas.replica(TOPIC, 0).leader_epoch == 1, "its turn has not come"
        assert scene.runtime.indexes() == []
        assert scene.runtime.is_loading
        assert refusal(lambda: scene.runtime.submit_to(0, get("a"))) is ErrorCode.coordinator_load_in_progress
        assert await loaded_again(scene) == {"a": "one"}
        assert scene.replicas.partition(TOPIC, 0).leader_epoch == 2
        assert caplog.messages == [], "nothing is wrong"

    run(scenario)


def test_a_shard_is_loaded_when_the_log_that_was_being_cut_is_cut():
    async def scenario(scene):
        await written_and_lost(scene)
        partition = scene.replicas.replica(TOPIC, 0)
        scene.threads.gate.clear()
        cut = partition.truncate_to(partition.log.log_end_offset - 1)
        await asyncio.sleep(0)
        follow(scene, replicated(scene, 2, HERE))
        assert not partition.is_leader
        assert 0 not in scene.runtime.indexes()
        scene.threads.gate.set()
        await cut
        assert await loaded_again(scene) == {}
        assert partition.is_leader

    run(scenario)


def test_a_shard_that_is_lost_again_before_its_partition_leads_is_not_loaded():
    async def scenario(scene):
        await written_and_lost(scene)
        use_up_this_turn(scene)
        follow(scene, replicated(scene, 2, HERE))
        follow(scene, replicated(scene, 3, ELSEWHERE))
        assert not scene.runtime.is_loading
        while scene.replicas.replica(TOPIC, 0).leader_epoch != 3:
            await asyncio.sleep(0.001)
        assert scene.runtime.indexes() == []
        assert refusal(lambda: scene.runtime.submit_to(0, get("a"))) is ErrorCode.not_coordinator

    run(scenario)


def read(key: str, freshness: Freshness):
    return lambda shard: Outcome(shard.texts.get(key), freshness=freshness)


def lose_lease(scene: Scene) -> None:
    """The store is never heard of, and the follower has not been for longer than the bound."""
    scene.replicas.partition(TOPIC, 0).lease = LeadershipLease(scene.clock, 2.0)
    scene.clock.advance_ms(1500)


def test_a_proven_response_waits_until_a_record_that_changes_nothing_is_committed():
    async def scenario(scene):
        follow(scene, replicated(scene))
        written = asyncio.ensure_future(scene.runtime.submit_to(0, put("a", "one")))
        catch_up(scene)
        assert await written == "put"
        end = scene.replicas.partition(TOPIC, 0).log.log_end_offset
        told = asyncio.ensure_future(scene.runtime.submit_to(0, read("a", Freshness.PROVEN)))
        await asyncio.sleep(0)
        assert scene.replicas.partition(TOPIC, 0).log.log_end_offset == end + 1
        assert not told.done()
        catch_up(scene)
        assert await told == "one"

    run(scenario)


def test_a_proven_response_of_a_coordinator_that_was_succeeded_is_never_given():
    async def scenario(scene):
        follow(scene, replicated(scene))
        scene.runtime.submit_to(0, get("a"))
        told = asyncio.ensure_future(scene.runtime.submit_to(0, read("a", Freshness.PROVEN)))
        await asyncio.sleep(0)
        follow(scene, replicated(scene, 1, ELSEWHERE))
        with pytest.raises(KafkaError) as refused:
            await told
        assert refused.value.code is ErrorCode.not_coordinator

    run(scenario)


def test_where_nobody_else_can_coordinate_a_proven_response_costs_no_record():
    async def scenario(scene):
        assert scene.runtime.submit_to(0, read("a", Freshness.PROVEN)) is None
        assert scene.replicas.partition(TOPIC, 0).log.log_end_offset == 0

    run(scenario)


def test_when_the_lease_is_over_a_leased_response_and_every_refusal_send_the_client_to_look_elsewhere():
    def refuse(shard):
        raise KafkaError(ErrorCode.producer_fenced, "by what we know")

    async def scenario(scene):
        follow(scene, replicated(scene))
        assert scene.runtime.submit_to(0, read("a", Freshness.LEASED)) is None
        assert refusal(lambda: scene.runtime.submit_to(0, refuse)) is ErrorCode.producer_fenced
        lose_lease(scene)
        assert refusal(lambda: scene.runtime.submit_to(0, read("a", Freshness.LEASED))) is ErrorCode.not_coordinator
        assert refusal(lambda: scene.runtime.submit_to(0, refuse)) is ErrorCode.not_coordinator
        assert scene.runtime.submit_to(0, get("a")) is None, "what may be old is answered"

    run(scenario)


def test_what_a_preparation_refuses_is_refused_by_a_broker_that_surely_leads():
    def refuse(shard):
        raise KafkaError(ErrorCode.group_id_not_found, "by what we know")
        yield

    async def scenario(scene):
        follow(scene, replicated(scene))
        scene.runtime.submit_to(0, get("a"))
        key = next(f"k{n}" for n in range(50) if scene.runtime.partition_for(f"k{n}") == 0)
        with pytest.raises(KafkaError) as known:
            await scene.runtime.prepare(key, refuse)
        assert known.value.code is ErrorCode.group_id_not_found
        lose_lease(scene)
        with pytest.raises(KafkaError) as old:
            await scene.runtime.prepare(key, refuse)
        assert old.value.code is ErrorCode.not_coordinator

    run(scenario)
