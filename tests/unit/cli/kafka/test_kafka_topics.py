"""``kafka-topics --describe``: its rows and which partitions the reports are about."""

import pytest

from skep.cli.cluster.cluster_admin import Move
from skep.cli.kafka.kafka_topics import REPORTS, is_reported, partition_row
from skep.cli.topics.topic_admin import PartitionView, TopicView

LIVE = {1, 2}


def view(**changes: object) -> tuple[TopicView, PartitionView]:
    told: dict[str, object] = {"partition": 0, "leader": 1, "replicas": [1, 2, 3], "isr": [1, 2, 3], **changes}
    partition = PartitionView(**told)  # type: ignore[arg-type]
    return TopicView("orders", None, [partition], min_insync_replicas=2), partition


@pytest.mark.parametrize(
    ("changes", "move", "reported"),
    [
        ({}, None, set()),
        ({"isr": [1, 2]}, None, {"under_replicated_partitions", "at_min_isr_partitions"}),
        ({"isr": [1]}, None, {"under_replicated_partitions", "under_min_isr_partitions"}),
        (
            {"leader": None, "isr": [3]},
            None,
            {"under_replicated_partitions", "under_min_isr_partitions", "unavailable_partitions"},
        ),
        ({"leader": 3}, None, {"unavailable_partitions"}),
        ({"isr": [1, 2]}, Move((1, 2, 3), (3,), ()), {"at_min_isr_partitions"}),
    ],
)
def test_what_is_reported(changes: dict[str, object], move: Move | None, reported: set[str]) -> None:
    topic, partition = view(**changes)
    assert {name for name in REPORTS if is_reported(name, topic, partition, move, LIVE)} == reported


def test_a_row_is_kafkas() -> None:
    assert partition_row(*view()) == (
        "\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1,2,3\tElr: N/A\tLastKnownElr: N/A"
    )


def test_a_row_of_a_partition_that_is_being_moved_says_to_and_from_where() -> None:
    row = partition_row(*view(), Move((1, 2, 3), (3,), (1,)))
    assert "\tIsr: 1,2,3\tAdding Replicas: 3\tRemoving Replicas: 1\tElr: N/A" in row
