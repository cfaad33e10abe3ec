"""What the metadata says of topics is carried out in slices, and always as it was said last."""

import asyncio
from uuid import uuid4

from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.metadata.model import PartitionRecord, TopicRecord
from skep.replication.image_applier import ImageApplier
from tests.manual_clock import TickingClock
from tests.slices import counting_turns

ONE, TWO = BrokerId(1), BrokerId(2)
MANY = 200


class Scene:
    def __init__(self):
        self.supervisor = Supervisor()
        self.topics = {}
        self.done = []
        self.changes = ImageApplier(Slicer(TickingClock()), self.supervisor, self.topics.get, self.carry_out)

    def carry_out(self, topic, index, known):
        if known == topic.partitions[index]:
            return False
        self.done.append((topic.name, index, topic.partitions[index].leader))
        return True

    def become(self, name, leader, count=MANY, leader_of_first=None):
        before = self.topics.get(name)
        topic_id = uuid4() if before is None else before.topic_id
        record = PartitionRecord((ONE, TWO), (ONE, TWO), leader, 0)
        first = record._replace(leader=leader_of_first or leader)
        self.topics[name] = TopicRecord(name, topic_id, (first, *(record,) * (count - 1)))
        self.changes.changed(name, before)
        return self.changes.run()


def run(scenario):
    async def whole():
        scene = Scene()
        await scenario(scene)
        await scene.supervisor.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_small_change_is_carried_out_at_once():
    async def scenario(scene):
        assert scene.become("t", ONE, count=2) is None
        assert len(scene.done) == 2

    run(scenario)


def test_a_large_change_leaves_turns_to_others():
    async def scenario(scene):
        rest = scene.become("t", ONE)
        assert 0 < len(scene.done) < 10
        _, turns = await counting_turns(rest)
        assert [index for _, index, _ in scene.done] == list(range(MANY))
        assert turns > 20

    run(scenario)


def test_what_changes_again_meanwhile_is_carried_out_as_it_was_said_last():
    async def scenario(scene):
        rest = scene.become("t", ONE)
        scene.become("u", ONE, count=1)
        scene.become("t", TWO)
        scene.become("t", ONE)
        scene.become("t", TWO)
        await rest
        latest = {(name, index): leader for name, index, leader in scene.done}
        assert latest == {**{("t", index): TWO for index in range(MANY)}, ("u", 0): ONE}

    run(scenario)


def test_what_was_not_carried_out_yet_is_although_the_next_change_does_not_concern_it():
    async def scenario(scene):
        await scene.become("t", ONE)
        scene.become("t", TWO)
        await scene.become("t", TWO, leader_of_first=ONE)
        latest = {index: leader for _, index, leader in scene.done}
        assert latest == {0: ONE, **dict.fromkeys(range(1, MANY), TWO)}

    run(scenario)


def test_what_has_not_begun_yet_is_carried_out_although_the_next_change_does_not_concern_it():
    async def scenario(scene):
        await scene.become("t", ONE)
        scene.become("before", ONE)  # is under way, so "t" only waits
        scene.become("t", TWO)
        await scene.become("t", TWO, leader_of_first=ONE)
        latest = {index: leader for name, index, leader in scene.done if name == "t"}
        assert latest == {0: ONE, **dict.fromkeys(range(1, MANY), TWO)}

    run(scenario)


def test_a_topic_that_is_gone_is_left_alone():
    async def scenario(scene):
        rest = scene.become("t", ONE)
        before = len(scene.done)
        del scene.topics["t"]
        await rest
        assert len(scene.done) <= before + 1

    run(scenario)


def test_looking_again_passes_over_what_is_as_it_should_be():
    async def scenario(scene):
        await scene.become("t", ONE)
        scene.done.clear()
        scene.changes.recheck(scene.topics["t"])
        if (rest := scene.changes.run()) is not None:
            await rest
        assert scene.done == []

    run(scenario)
