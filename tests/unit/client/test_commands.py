"""Commands of the private API go to the leader, which moves, dies and is not there yet; some must not be sent twice."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import TopicPartition
from skep.client.cluster_client import ClusterClient, Node
from skep.client.commands import command_to_leader, commands_to_leaders, result_of
from skep.client.errors import ClientError, Silent, TimedOut, Unreachable, Unsupported
from skep.wire.apis import API_VERSIONS, SKEP_COMMAND, Api
from tests.manual_clock import ManualClock

ONE, TWO = Node(1, "b1", 9092), Node(2, "b2", 9092)
NOT_LEADER = ErrorCode.not_leader_or_follower


def response(code: ErrorCode = ErrorCode.none, result: Any = None) -> Any:
    return SimpleNamespace(error_code=code, error_message=code.name, result=json.dumps(result).encode())


class ScriptedConnection:
    def __init__(self, cluster: "ScriptedCluster", node: Node) -> None:
        self._cluster = cluster
        self._node = node

    def __enter__(self) -> "ScriptedConnection":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def version_of(self, api: Api) -> int:
        assert api is API_VERSIONS
        if self._cluster.is_dead:
            raise Unreachable("dead")
        return 0

    def send(self, api: Api, body: Any, *, version: int) -> None:
        assert (api, version) == (SKEP_COMMAND, 0)
        self._cluster.sent.append((self._node.node_id, body["command"], json.loads(body["arguments"])))

    def receive(self) -> Any:
        given = self._cluster.responses.pop(0)
        if isinstance(given, Exception):
            raise given
        return given


class ScriptedCluster(ClusterClient):
    """``leaders_of_t`` are those of partition 0, lookup by lookup, the last one for ever; -1 is none."""

    def __init__(self, *responses: Any, leaders_of_t: tuple[int, ...] = (1,), is_dead: bool = False) -> None:
        self.manual = ManualClock()
        super().__init__("b1", timeout_s=10, clock=self.manual, sleep=lambda s: self.manual.advance_ms(round(s * 1000)))
        self.responses = list(responses)
        self.leaders_of_t = list(leaders_of_t)
        self.is_dead = is_dead
        self.sent: list[tuple[int, str, Any]] = []

    def metadata(self, topics: Any = None) -> Any:
        leader = self.leaders_of_t.pop(0) if len(self.leaders_of_t) > 1 else self.leaders_of_t[0]
        partition = SimpleNamespace(partition_index=0, leader_id=leader)
        code = ErrorCode.none if list(topics) == ["t"] else ErrorCode.unknown_topic_or_partition
        brokers = [SimpleNamespace(node_id=one.node_id, host=one.host, port=one.port) for one in (ONE, TWO)]
        topic = SimpleNamespace(name=topics[0], error_code=code, partitions=[partition])
        return SimpleNamespace(brokers=brokers, topics=[topic])

    def acquire_connection(self, node: Node) -> Any:
        return ScriptedConnection(self, node)

    def release_connection(self, node: Node, connection: Any) -> None:
        pass


def try_it(cluster: ScriptedCluster, **options: Any) -> Any:
    return command_to_leader(cluster, "t", 0, "try", {"a": 1}, **options)


def test_a_command_follows_the_leader() -> None:
    cluster = ScriptedCluster(response(NOT_LEADER), response(result={"b": 2}), leaders_of_t=(1, -1, 2))
    assert try_it(cluster) == {"b": 2}
    arguments = {"a": 1, "topic": "t", "partition": 0}
    assert cluster.sent == [(1, "try", arguments), (2, "try", arguments)]


def test_a_lost_connection_is_retried_unless_the_command_must_not_be_sent_twice() -> None:
    # After the loss the broker is asked for its commands, and answers: it is Skep's.
    cluster = ScriptedCluster(Unreachable("lost"), response(), response(result="done"))
    assert try_it(cluster) == "done"
    assert [name for _, name, _ in cluster.sent] == ["try", "commands", "try"]
    cluster = ScriptedCluster(Unreachable("lost"), response())
    with pytest.raises(Unreachable, match="lost"):
        try_it(cluster, may_repeat=False)
    assert [name for _, name, _ in cluster.sent] == ["try", "commands"]


def test_a_refusal_is_retried_also_by_a_command_that_must_not_be_sent_twice() -> None:
    cluster = ScriptedCluster(response(NOT_LEADER), response(result="done"))
    assert try_it(cluster, may_repeat=False) == "done"


@pytest.mark.parametrize("second", [Unreachable("closed"), Silent("silent")])
def test_only_a_broker_that_closes_twice_is_taken_for_another_one(second: Exception) -> None:
    cluster = ScriptedCluster(Unreachable("closed"), second)
    expected = Unreachable if isinstance(second, Silent) else Unsupported
    with pytest.raises(expected):
        try_it(cluster, may_repeat=False)


def test_a_dead_broker_is_not_taken_for_another_one() -> None:
    with pytest.raises(Unreachable, match="lost"):
        try_it(ScriptedCluster(Unreachable("lost"), is_dead=True), may_repeat=False)


def test_a_leader_that_does_not_come_is_waited_for_until_the_time_is_up() -> None:
    with pytest.raises(TimedOut, match="t-0 has no leader"):
        try_it(ScriptedCluster(leaders_of_t=(-1,)))
    with pytest.raises(TimedOut, match="try of t-0"):
        try_it(ScriptedCluster(*[response(NOT_LEADER)] * 1000))


def test_other_refusals_are_raised_with_the_message_of_the_broker() -> None:
    with pytest.raises(KafkaError, match="invalid_record_state") as refused:
        try_it(ScriptedCluster(response(ErrorCode.invalid_record_state)))
    assert refused.value.code is ErrorCode.invalid_record_state
    with pytest.raises(KafkaError):
        command_to_leader(ScriptedCluster(), "u", 0, "try", {})


def test_a_result_that_is_not_json_is_no_traceback() -> None:
    with pytest.raises(ClientError, match="not JSON"):
        result_of(SimpleNamespace(error_code=ErrorCode.none, error_message=None, result=b"{"))


def test_partitions_without_a_leader_and_missing_topics_are_left_out() -> None:
    here, without_leader, missing = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    cluster = ScriptedCluster(response(NOT_LEADER), response(result="done"), leaders_of_t=(1, 2))
    assert commands_to_leaders(cluster, [here, without_leader, missing], "try", {}) == {here: "done"}
    assert [node_id for node_id, _, _ in cluster.sent] == [1, 2]
