"""Which topics may be held, and which partitions the worker is told of."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.loop.supervisor import Supervisor
from skep.broker.worker import held_topics
from skep.broker.worker.held_topics import HeldTopics, check_held, check_held_room, with_implied
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord

INTERNAL = frozenset({"__consumer_offsets"})
HELD = TopicConfig(held_target="orders", cleanup_policy=("compact",))


def topic(name, config=None, leaders=(1,)):
    partitions = tuple(PartitionRecord((leader,), (leader,), leader, 3) for leader in leaders)
    return TopicRecord(name, UUID(int=len(name)), partitions, config or {})


IMAGE = ClusterImage.of("c", topics=[topic("orders"), topic("held", {"skep.held.target": "orders"})])


def test_an_ordinary_topic_may_have_anything():
    check_held("x", TopicConfig(), IMAGE, INTERNAL)


def test_a_held_topic_needs_a_target_that_is_another_topic_and_compaction():
    check_held("later", HELD, IMAGE, INTERNAL)
    check_held("later", replace(HELD, held_target="not.there.yet"), IMAGE, INTERNAL)


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("orders", {}, "cannot be its own target"),
        ("later", {"held_target": "__consumer_offsets"}, "internal topic"),
        ("later", {"held_target": "held"}, "is a held topic itself"),
        ("orders", {"held_target": "more"}, "orders is itself the target of held"),
        ("later", {"cleanup_policy": ("delete",)}, "needs cleanup.policy=compact, not delete"),
        ("later", {"cleanup_policy": ("compact", "delete")}, "needs cleanup.policy=compact, not compact,delete"),
        ("later", {"cleanup_policy": ()}, "needs cleanup.policy=compact, not none"),
        ("later", {"delete_when_acknowledged": True}, "exclude each other"),
        ("later", {"delete_retention_ms": 0}, "needs delete.retention.ms of at least 60000"),
    ],
)
def test_what_cannot_work_is_refused(name, changes, text):
    with pytest.raises(KafkaError, match=text) as caught:
        check_held(name, replace(HELD, **changes), IMAGE, INTERNAL)
    assert caught.value.code is ErrorCode.invalid_config


def test_a_new_held_topic_is_compacted_unless_told_otherwise():
    assert with_implied({"retention.ms": "1"}) == {"retention.ms": "1"}
    made = with_implied({"skep.held.target": "orders"})
    assert (made["cleanup.policy"], made["min.compaction.lag.ms"]) == ("compact", "3600000")
    given = {"skep.held.target": "orders", "cleanup.policy": "delete", "max.compaction.lag.ms": "5"}
    assert with_implied(given) == given


def test_held_partitions_are_limited_over_all_topics():
    check_held_room(IMAGE, 5, 4)
    with pytest.raises(KafkaError, match=r"would exceed skep.held.max.partitions=5; there are 1") as caught:
        check_held_room(IMAGE, 5, 5)
    assert caught.value.code is ErrorCode.policy_violation


class Worker:
    def __init__(self):
        self.told = []

    def tell(self, job, state):
        self.told.append((job, state))


def test_the_worker_is_told_of_the_partitions_that_this_broker_leads_when_they_change(monkeypatch):
    monkeypatch.setattr(held_topics, "CHECK_MS", 3_600_000)
    images = [ClusterImage.of("c", topics=[topic("orders")])]
    defaults = TopicConfig()
    worker = Worker()

    async def scenario():
        supervisor = Supervisor()
        held = HeldTopics(1, worker, lambda: images[-1], lambda: defaults, supervisor)
        await held.check()
        assert worker.told == []
        config = {"skep.held.target": "orders", "skep.held.tick.ms": "20", "cleanup.policy": "compact"}
        images.append(images[-1].with_topic(topic("later", config, leaders=(1, 2, 1))))
        await held.check()
        await held.check()
        images.append(images[-1].with_topic(topic("more")))
        await held.check()
        assert len(worker.told) == 1
        images.append(images[-1].with_topic(topic("elsewhere", {"skep.held.target": "orders"}, leaders=(2,))))
        await held.check()
        assert [one["topic"] for one in worker.told[0][1]["partitions"]] == ["later", "later"]
        assert worker.told.pop(0)[1]["topics"] == ["later"]
        [(job, state)] = worker.told
        assert job == "held"
        assert [(one["topic"], one["partition"], one["tick_ms"]) for one in state["partitions"]] == [
            ("later", 0, 20),
            ("later", 2, 20),
        ]
        assert state["topics"] == ["elsewhere", "later"]
        images.append(images[-1].without_topic("later"))
        await held.check()
        assert worker.told[1:] == [("held", None)]
        await supervisor.close()

    asyncio.run(scenario())


def test_what_the_worker_is_told_is_what_it_expects():
    from skep.worker.held.held_partition import HeldSpec

    fields = held_topics._spec("later", UUID(int=1).hex, 0, 3, replace(HELD, held_undecided="rollback"))
    spec = HeldSpec(**fields)
    assert (spec.target, spec.rules.rolls_back_undecided, str(spec)) == ("orders", True, "later-0")
