"""How far groups are: only if every coordinator has answered, and none has moved meanwhile, there is a result."""

import asyncio
import json
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.config.coordinator_config import CONSUMER_OFFSETS, SHARE_GROUP_STATE
from skep.base.errors import ErrorCode
from skep.base.ids import BrokerId
from skep.broker.cluster.group_progress import GroupProgress, Progress, Unknown
from skep.client.errors import Unreachable
from skep.coordination.topic_needs import TopicNeeds
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord, TopicRecord

HERE, THERE = (BrokerRecord(BrokerId(number), f"host-{number}", 1) for number in (1, 2))
TOPICS = {"t": uuid.uuid4()}


def topic(name: str, *leaders: int) -> TopicRecord:
    partitions = tuple(PartitionRecord.new((BrokerId(leader),)) for leader in leaders)
    return TopicRecord(name, uuid.uuid4(), partitions)


def group_at(offset: int) -> TopicNeeds:
    needs = TopicNeeds()
    needs.add_group({0: offset})
    return needs


class Runtime:
    """Coordinators in this process, each with a group at ``offset``."""

    def __init__(self, indexes: list[int], offset: int) -> None:
        self.indexes, self.offset = indexes, offset

    async def read_led(self, work: Any) -> dict[int, Any]:
        return {index: {"t": group_at(self.offset)} for index in self.indexes}


class Cluster:
    """Broker 1 is this one; ``answer`` is what broker 2 does. Both lead a partition of each topic."""

    def __init__(self) -> None:
        self.image = ClusterImage.of(
            "c", brokers=[HERE, THERE], topics=[topic(CONSUMER_OFFSETS, 1, 2), topic(SHARE_GROUP_STATE, 2)]
        )
        self.known = Progress(
            {CONSUMER_OFFSETS: frozenset({1}), SHARE_GROUP_STATE: frozenset({0})}, {"t": group_at(offset=5)}
        )
        self.answer: Callable[[], Any] = lambda: response(result=json.dumps(self.known.to_json()).encode())

    async def ask(self, broker: BrokerRecord, api: Any, body: Any, *, version: int | None = None) -> Any:
        assert (broker, body["command"]) == (THERE, "topic_needs")
        assert json.loads(body["arguments"]) == {"topics": [["t", str(TOPICS["t"])]]}
        return self.answer()

    def first_needed(self) -> int | None:
        progress = GroupProgress(HERE.id, lambda: self.image, Runtime([0], 7), Runtime([], 0), self)  # type: ignore[arg-type]
        return asyncio.run(progress.everywhere(TOPICS))["t"].deletable_before(0)


def response(code: ErrorCode = ErrorCode.none, result: bytes | None = None) -> Any:
    return SimpleNamespace(error_code=code, error_message="no", result=result)


def test_the_needs_of_all_coordinators_count():
    assert Cluster().first_needed() == 5


def test_a_cluster_in_which_nobody_ever_had_a_group_needs_nothing():
    cluster = Cluster()
    cluster.image = ClusterImage.of("c", brokers=[HERE, THERE])
    progress = GroupProgress(HERE.id, lambda: cluster.image, Runtime([], 0), Runtime([], 0), cluster)  # type: ignore[arg-type]
    assert asyncio.run(progress.everywhere(TOPICS)) == {}


def unreachable() -> Any:
    raise Unreachable("no broker answers")


@pytest.mark.parametrize(
    "answer",
    [
        unreachable,
        lambda: response(ErrorCode.unsupported_version),
        lambda: response(result=b"no JSON"),
        lambda: response(result=b"{}"),
        lambda: response(result=b"[]"),
    ],
)
def test_nothing_is_known_without_the_response_of_a_broker(answer):
    cluster = Cluster()
    cluster.answer = answer
    with pytest.raises(Unknown, match="broker 2 does not say"):
        cluster.first_needed()


@pytest.mark.parametrize("missing", [CONSUMER_OFFSETS, SHARE_GROUP_STATE])
def test_nothing_is_known_while_a_coordinator_is_not_loaded(missing):
    cluster = Cluster()
    cluster.known = cluster.known._replace(partitions={**cluster.known.partitions, missing: frozenset()})
    with pytest.raises(Unknown, match=f"broker 2 has not loaded {missing}"):
        cluster.first_needed()


def test_nothing_is_known_while_a_coordinator_has_no_leader():
    cluster = Cluster()
    cluster.image = ClusterImage.of("c", brokers=[HERE], topics=cluster.image.topics.values())
    with pytest.raises(Unknown, match="has no leader"):
        cluster.first_needed()


def test_nothing_is_known_when_a_coordinator_has_moved_meanwhile():
    cluster = Cluster()
    answer = cluster.answer

    def moved() -> Any:
        cluster.image = cluster.image.with_topic(topic(CONSUMER_OFFSETS, 1, 1))
        return answer()

    cluster.answer = moved
    with pytest.raises(Unknown, match="moving"):
        cluster.first_needed()
