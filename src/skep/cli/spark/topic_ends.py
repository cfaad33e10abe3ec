"""Where topics end, asked of the broker: how far flows are behind, and whether there is something new to process."""

from collections.abc import Iterable, Mapping, Sequence

from skep.base.errors import KafkaError
from skep.base.ids import TopicPartition
from skep.cli.spark.pipeline_progress import Flow
from skep.client.cluster_client import ClusterClient
from skep.client.errors import ClientError
from skep.client.list_offsets import LATEST, list_offsets
from skep.client.security.client_security import ClientSecurity
from skep.client.topic_info import describe_topics

TIMEOUT_S = 5.0


def ends_of(bootstrap: str, topics: Sequence[str], properties: Mapping[str, str]) -> dict[TopicPartition, int] | None:
    """Returns the ends of all partitions, of committed records; None if the broker does not say them."""
    try:
        with _client(bootstrap, properties) as client:
            described = describe_topics(client, topics).values()
            partitions = [
                TopicPartition(one.name, number) for one in described for number in range(one.partition_count)
            ]
            return _ends(client, partitions)
    except (KafkaError, ClientError):
        return None


def measure_lag(bootstrap: str, flows: Iterable[Flow], properties: Mapping[str, str]) -> None:
    """Sets the lag of flows that read topics: the records that arrived while the run processed earlier ones.

    The lag stays as Spark reported it if the broker does not answer, or does not have the topics.
    """
    readers = [flow for flow in flows if flow.ends]
    try:
        with _client(bootstrap, properties) as client:
            ends = _ends(client, {one for flow in readers for one in flow.ends})
    except (KafkaError, ClientError):
        return
    for flow in readers:
        # A topic that was created again may be shorter.
        flow.lag = sum(max(0, ends[one] - end) for one, end in flow.ends.items())


def _client(bootstrap: str, properties: Mapping[str, str]) -> ClusterClient:
    security = ClientSecurity.of(properties)
    return ClusterClient(bootstrap, client_id="skep-pipeline", timeout_s=TIMEOUT_S, security=security)


def _ends(client: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    found = list_offsets(client, dict.fromkeys(partitions, LATEST), committed=True)
    return {one: offset or 0 for one, offset in found.items()}
