from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient, Node
from skep.client.errors import NotVisibleYet, TimedOut, Unreachable
from skep.client.produce.transactions import add_partitions, end_transaction, init_producer_id, list_open_transactions
from skep.records.producer_identity import ProducerIdentity
from skep.wire.apis import ADD_PARTITIONS_TO_TXN, BEFORE_TRANSACTIONS_V2, END_TXN, INIT_PRODUCER_ID, Api
from skep.wire.codec import Body
from tests.manual_clock import ManualClock

HERE, THERE = Node(1, "b1", 9092), Node(2, "b2", 9092)
WHO = ProducerIdentity(7, 3, True)
PASSING = [
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.concurrent_transactions,
]


class Coordinator(ClusterClient):
    """Answers with these codes one after the other, the last one for ever; Unreachable is a lost response."""

    def __init__(self, *codes: ErrorCode | type[Unreachable]) -> None:
        self.manual = ManualClock()
        self.codes = deque(codes)
        self.asked: list[tuple[Api, Body]] = []
        super().__init__("b1", timeout_s=10, clock=self.manual, sleep=lambda s: self.manual.advance_ms(round(s * 1000)))

    def _find_coordinator(self, kind: int, key: str) -> tuple[Node | None, ErrorCode, str]:
        return HERE, ErrorCode.none, ""

    def nodes(self) -> list[Node]:
        return [HERE, THERE]

    def ask_node(self, node: Node, api: Api, body: Body) -> Any:
        self.asked.append((api, body))
        code = self.codes.popleft() if len(self.codes) > 1 else self.codes[0]
        if not isinstance(code, ErrorCode):
            raise Unreachable("the connection was closed")
        if api is ADD_PARTITIONS_TO_TXN:
            return self._added(body, code)
        states = [SimpleNamespace(transactional_id=f"{name}{node.node_id}", producer_id=1) for name in ("a/", "b/")]
        return SimpleNamespace(error_code=code, producer_id=7, producer_epoch=4, transaction_states=states)

    @staticmethod
    def _added(body: Body, code: ErrorCode) -> Any:
        topics = [
            SimpleNamespace(
                name=topic["name"],
                results_by_partition=[
                    SimpleNamespace(partition_index=index, partition_error_code=code) for index in topic["partitions"]
                ],
            )
            for topic in body["v3_and_below_topics"]
        ]
        return SimpleNamespace(results_by_topic_v3_and_below=topics)


@pytest.mark.parametrize("passing", [*PASSING, Unreachable])
def test_every_request_is_asked_again_until_its_response_stands(passing: Any) -> None:
    for ask in (
        lambda cluster: init_producer_id(cluster, "tx", 1000),
        lambda cluster: add_partitions(cluster, "tx", WHO, [("t", 0), ("t", 1)]),
        lambda cluster: end_transaction(cluster, "tx", WHO, commit=True),
    ):
        cluster = Coordinator(passing, passing, passing, ErrorCode.none)
        ask(cluster)
        assert len(cluster.asked) == 4
        assert len({repr(body) for _, body in cluster.asked}) == 1, "the same each time"


def test_a_coordinator_that_never_answers_is_given_up_with_the_reason() -> None:
    with pytest.raises(TimedOut, match="InitProducerId of 'tx': no progress for 10 s: concurrent_transactions"):
        init_producer_id(Coordinator(ErrorCode.concurrent_transactions), "tx", 1000)
    with pytest.raises(TimedOut, match=r"EndTxn of 'tx'.*the connection was closed"):
        end_transaction(Coordinator(Unreachable), "tx", WHO, commit=True)


@pytest.mark.parametrize(
    "code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_txn_state]
)
def test_a_refusal_is_the_callers_to_judge(code: ErrorCode) -> None:
    for commit in (True, False):
        with pytest.raises(KafkaError, match="transactional id 'tx'") as refused:
            end_transaction(Coordinator(code), "tx", WHO, commit=commit)
        assert refused.value.code is code


def test_a_decision_is_visible_when_asking_again_is_no_longer_too_early() -> None:
    cluster = Coordinator(
        ErrorCode.none, ErrorCode.concurrent_transactions, ErrorCode.concurrent_transactions, ErrorCode.none
    )
    end_transaction(cluster, "tx", WHO, commit=True, until_visible=True)
    assert [api for api, _ in cluster.asked] == [BEFORE_TRANSACTIONS_V2[END_TXN]] * 4


@pytest.mark.parametrize("response", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_who_is_fenced_after_the_decision_need_not_wait_any_more(response: ErrorCode) -> None:
    end_transaction(Coordinator(ErrorCode.none, response), "tx", WHO, commit=True, until_visible=True)


@pytest.mark.parametrize("response", [Unreachable, ErrorCode.concurrent_transactions, ErrorCode.unknown_server_error])
def test_after_the_decision_all_that_can_fail_is_the_wait_for_readers(response: Any) -> None:
    with pytest.raises(NotVisibleYet, match="'tx' is committed; readers may not see it yet"):
        end_transaction(Coordinator(ErrorCode.none, response), "tx", WHO, commit=True, until_visible=True)


def test_a_topic_that_the_coordinator_has_not_heard_of_is_added_a_moment_later() -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    cluster = Coordinator(unknown, unknown, unknown, ErrorCode.none)
    add_partitions(cluster, "tx", WHO, [("t", 0)])
    assert len(cluster.asked) == 4


def test_a_producer_can_ask_for_its_own_next_epoch() -> None:
    cluster = Coordinator(ErrorCode.none)
    assert init_producer_id(cluster, "tx", 1000, current=WHO) == ProducerIdentity(7, 4, True)
    [(api, body)] = cluster.asked
    assert api is INIT_PRODUCER_ID
    assert (body["producer_id"], body["producer_epoch"]) == (7, 3)


def test_without_a_transactional_id_any_broker_gives_the_producer_id() -> None:
    cluster = Coordinator(Unreachable, ErrorCode.none)
    assert init_producer_id(cluster, None) == ProducerIdentity(7, 4, False)


def test_a_partition_that_cannot_be_added_is_named() -> None:
    with pytest.raises(KafkaError, match="topic 't', partition 5: unknown_topic_or_partition"):
        add_partitions(Coordinator(ErrorCode.unknown_topic_or_partition), "tx", WHO, [("t", 5)])


def test_open_transactions_are_those_of_every_broker_with_the_prefix() -> None:
    cluster = Coordinator(Unreachable, ErrorCode.coordinator_load_in_progress, ErrorCode.none)
    assert list_open_transactions(cluster, "a/") == [("a/1", 1), ("a/2", 1)]
    assert all(body["state_filters"] == ["Ongoing"] for _, body in cluster.asked)
