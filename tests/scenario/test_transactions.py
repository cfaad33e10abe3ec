"""The transaction APIs byte by byte: every version, every refusal in its place."""

from collections.abc import Iterator
from typing import Any

import pytest

from skep.base.errors import ErrorCode
from skep.records.record import records_in
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, produce_body, seconds
from tests.waiting import wait_until

FENCED_OF_OLD = ErrorCode.invalid_producer_epoch


class Transactor:
    """A producer with a transactional id, on a raw connection."""

    def __init__(self, client: RawClient, name: str) -> None:
        self.client = client
        self.name = name
        self.producer_id, self.epoch = -1, -1
        client.ask(apis.FIND_COORDINATOR, 2, key=name, key_type=1)

    @property
    def stamp(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def init(self, version: int = 4) -> Any:
        return self.client.ask(
            apis.INIT_PRODUCER_ID,
            version,
            transactional_id=self.name,
            transaction_timeout=seconds(60),
            producer_id=-1,
            producer_epoch=-1,
        )

    def begin_epoch(self) -> "Transactor":
        while (response := self.init()).error_code is ErrorCode.concurrent_transactions:
            pass
        assert response.error_code is ErrorCode.none
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return self

    def add(self, *partitions: tuple[str, int], version: int = 3) -> dict[tuple[str, int], ErrorCode]:
        response = self.client.ask(
            apis.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": [index]} for topic, index in partitions],
        )
        return {
            (topic.name, one.partition_index): one.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }

    def add_offsets(self, group: str, version: int = 3) -> ErrorCode:
        return self.client.ask(apis.ADD_OFFSETS_TO_TXN, version, **self.stamp, group_id=group).error_code

    def commit_offset(self, group: str, topic: str, offset: int, version: int = 3) -> ErrorCode:
        response = self.client.ask(
            apis.TXN_OFFSET_COMMIT,
            version,
            **self.stamp,
            group_id=group,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        )
        return response.topics[0].partitions[0].error_code

    def send(self, topic: str, value: bytes, sequence: int = 0, version: int = 9) -> ErrorCode:
        batch = batch_of(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        body = {**produce_body({(topic, 0): batch}), "transactional_id": self.name}
        response = self.client.ask(apis.PRODUCE, version, **body)
        return response.responses[0].partition_responses[0].error_code

    def end(self, *, commit: bool, version: int = 3) -> ErrorCode:
        return self.client.ask(apis.END_TXN, version, **self.stamp, committed=commit).error_code

    def find_group(self, group: str) -> None:
        """As clients do before they commit offsets: the first one creates the coordinator's topic."""
        asked = {"key": group, "key_type": 0}
        wait_until(
            lambda: self.client.ask(apis.FIND_COORDINATOR, 2, **asked).error_code is ErrorCode.none,
            "a coordinator of the group",
        )

    def end_v2(self, *, commit: bool) -> ErrorCode:
        """Continues with the epoch in the response."""
        response = self.client.ask(apis.END_TXN, 5, **self.stamp, committed=commit)
        if response.error_code is ErrorCode.none:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return response.error_code

    def commit(self) -> None:
        assert self.end(commit=True) is ErrorCode.none

    def describe(self) -> Any:
        [state] = self.client.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.name]).transaction_states
        return state


@pytest.fixture
def transactor(client: RawClient, topic: str) -> Transactor:
    client.create_topic(topic)
    return Transactor(client, f"id-of-{topic}").begin_epoch()


def replaced(transactor: Transactor) -> Transactor:
    """As it was before a successor came."""
    Transactor(transactor.client, transactor.name).begin_epoch()
    return transactor


def committed_values(client: RawClient, topic: str) -> list[bytes | None]:
    partition = client.fetch_one(Want(topic, 0), isolation_level=1)
    return [record.value for record in records_in(partition.records)]


@pytest.fixture
def fresh(topic: str) -> Iterator[RawClient]:
    """A broker on which nobody has asked for a coordinator."""
    with EmbeddedBroker() as broker, RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_init_gives_the_next_epoch(transactor: Transactor, version: int):
    response = transactor.init(version)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (
        ErrorCode.none,
        transactor.producer_id,
        transactor.epoch + 1,
    )


@pytest.mark.parametrize("version", range(3, 6))
def test_init_by_a_producer_that_was_replaced_is_refused_in_the_words_of_its_version(
    transactor: Transactor, version: int
):
    replaced(transactor)
    response = transactor.client.ask(
        apis.INIT_PRODUCER_ID, version, **transactor.stamp, transaction_timeout=seconds(60)
    )
    assert response.error_code is (ErrorCode.producer_fenced if version >= 4 else FENCED_OF_OLD)
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.invalid_request),
        ({"transactional_id": "x" * 10_000}, ErrorCode.invalid_request),
        ({"producer_id": 5}, ErrorCode.invalid_request),
        ({"producer_epoch": 5}, ErrorCode.invalid_request),
        ({"transaction_timeout": seconds(0)}, ErrorCode.invalid_transaction_timeout),
        ({"transaction_timeout": seconds(-1)}, ErrorCode.invalid_transaction_timeout),
        ({"transaction_timeout": seconds(901)}, ErrorCode.invalid_transaction_timeout),
    ],
    ids=str,
)
def test_what_init_does_not_take(transactor: Transactor, asked: dict[str, Any], code: ErrorCode):
    body = {
        "transactional_id": transactor.name,
        "transaction_timeout": seconds(60),
        "producer_id": -1,
        "producer_epoch": -1,
    }
    response = transactor.client.ask(apis.INIT_PRODUCER_ID, 4, **{**body, **asked})
    assert response.error_code is code
    assert response.producer_id == -1


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_adding_partitions(transactor: Transactor, topic: str, version: int):
    assert transactor.add((topic, 0), version=version) == {(topic, 0): ErrorCode.none}
    assert transactor.describe().topics[0].topic == topic
    replaced(transactor)
    expected = ErrorCode.producer_fenced if version >= 2 else FENCED_OF_OLD
    assert transactor.add((topic, 0), version=version) == {(topic, 0): expected}


def test_partitions_are_added_all_or_none(transactor: Transactor, topic: str):
    assert transactor.add((topic, 0), (topic, 7), ("nowhere", 0)) == {
        (topic, 0): ErrorCode.operation_not_attempted,
        (topic, 7): ErrorCode.unknown_topic_or_partition,
        ("nowhere", 0): ErrorCode.unknown_topic_or_partition,
    }
    assert transactor.end(commit=True) is ErrorCode.invalid_txn_state


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_ending(transactor: Transactor, topic: str, version: int):
    assert transactor.end(commit=True, version=version) is ErrorCode.invalid_txn_state
    transactor.add((topic, 0))
    assert transactor.end(commit=True, version=version) is ErrorCode.none
    assert transactor.end(commit=True, version=version) is ErrorCode.none
    assert transactor.end(commit=False, version=version) is ErrorCode.invalid_txn_state
    replaced(transactor)
    expected = ErrorCode.producer_fenced if version >= 2 else FENCED_OF_OLD
    assert transactor.end(commit=True, version=version) is expected


def test_records_are_taken_only_within_the_transaction(transactor: Transactor, topic: str):
    assert transactor.send(topic, b"before") is ErrorCode.invalid_txn_state
    assert transactor.send(topic, b"before", version=11) is ErrorCode.transaction_abortable
    transactor.add((topic, 0))
    assert transactor.send(topic, b"within") is ErrorCode.none
    transactor.commit()
    assert transactor.send(topic, b"after", 1) is ErrorCode.invalid_txn_state
    transactor.add((topic, 0))
    assert transactor.send(topic, b"again", 1) is ErrorCode.none
    replaced(transactor)
    assert transactor.send(topic, b"too late", 2) is ErrorCode.invalid_producer_epoch


@pytest.mark.parametrize("ahead", [1, 32_767], ids=["next", "highest"])
def test_records_of_an_epoch_that_was_never_given_do_not_touch_the_transaction(
    transactor: Transactor, topic: str, ahead: int
):
    forger = Transactor(transactor.client, transactor.name)
    forger.producer_id, forger.epoch = transactor.producer_id, min(transactor.epoch + ahead, 32_767)
    transactor.add((topic, 0))
    assert transactor.send(topic, b"genuine") is ErrorCode.none
    assert forger.send(topic, b"forged") is ErrorCode.invalid_producer_epoch
    assert transactor.send(topic, b"genuine too", 1) is ErrorCode.none
    transactor.commit()
    assert forger.send(topic, b"forged") is ErrorCode.invalid_producer_epoch
    wait_until(lambda: transactor.describe().transaction_state == "CompleteCommit", "the transaction is complete")
    assert committed_values(transactor.client, topic) == [b"genuine", b"genuine too"]


def test_a_transaction_that_another_epoch_has_written_to_is_not_complete_until_it_is_ended_there(topic: str):
    """Without verification anybody can write to it. The commit was promised, so it must not be forgotten."""
    options = {"transaction.partition.verification.enable": "false"}
    with EmbeddedBroker(options=options) as broker, RawClient(broker.bootstrap_servers) as client:
        client.create_topic(topic)
        transactor = Transactor(client, "undermined").begin_epoch()
        transactor.add((topic, 0))
        assert transactor.send(topic, b"genuine") is ErrorCode.none
        transactor.epoch += 1
        assert transactor.send(topic, b"forged") is ErrorCode.none
        transactor.epoch -= 1
        transactor.commit()
        open_in = [(topic, [0])]
        for _ in range(2):  # EndTxn was answered, InitProducerId is not: by then the marker has been refused
            assert transactor.init().error_code is ErrorCode.concurrent_transactions
            state = transactor.describe()
            assert (state.transaction_state, [(one.topic, list(one.partitions)) for one in state.topics]) == (
                "PrepareCommit",
                open_in,
            )
        later = {"producer_epoch": transactor.epoch + 1}
        assert markers_of(transactor, (topic, 0), commit=True, **later) == {(topic, 0): ErrorCode.none}
        wait_until(lambda: transactor.describe().transaction_state == "CompleteCommit", "the transaction is complete")
        assert committed_values(client, topic) == [b"genuine", b"forged"]


def test_records_of_an_id_that_is_not_known_are_refused(transactor: Transactor, topic: str):
    transactor.add((topic, 0))
    transactor.name = "nobody"
    assert transactor.send(topic, b"whose?") is ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_committing_offsets(transactor: Transactor, topic: str, version: int):
    group = f"group-of-{topic}"
    assert transactor.add_offsets(group, version=version) is ErrorCode.none
    assert transactor.commit_offset(group, topic, 5, version=version) is ErrorCode.none
    assert transactor.commit_offset(group, "nowhere", 5, version=version) is ErrorCode.unknown_topic_or_partition
    transactor.commit()
    outside = ErrorCode.transaction_abortable if version >= 4 else ErrorCode.invalid_txn_state
    assert transactor.commit_offset(group, topic, 6, version=version) is outside
    replaced(transactor)
    expected = ErrorCode.producer_fenced if version >= 2 else FENCED_OF_OLD
    assert transactor.add_offsets(group, version=version) is expected
    assert transactor.commit_offset(group, topic, 7, version=version) is ErrorCode.invalid_producer_epoch


def test_the_first_offsets_of_all_are_committed_in_a_transaction(fresh: RawClient, topic: str):
    """Nobody has asked for the group's coordinator: its topic is not there when the transaction names it."""
    fresh.create_topic(topic)
    transactor = Transactor(fresh, "first").begin_epoch()
    assert transactor.add_offsets("a-group") is ErrorCode.none
    assert transactor.commit_offset("a-group", topic, 3) is ErrorCode.none
    transactor.commit()


def test_without_the_coordinators_topic_there_is_no_coordinator(fresh: RawClient):
    response = fresh.ask(apis.END_TXN, 3, transactional_id="early", producer_id=1, producer_epoch=0, committed=True)
    assert response.error_code is ErrorCode.not_coordinator


def markers_of(transactor: Transactor, *places: tuple[str, int], commit: bool, **changes: int) -> dict[Any, ErrorCode]:
    marker = {
        "producer_id": transactor.producer_id,
        "producer_epoch": transactor.epoch,
        "transaction_result": commit,
        "coordinator_epoch": 0,
        "topics": [{"name": name, "partition_indexes": [index]} for name, index in places],
    }
    response = transactor.client.ask(apis.WRITE_TXN_MARKERS, 1, markers=[{**marker, **changes}])
    [result] = response.markers
    assert result.producer_id == transactor.producer_id
    return {(one.name, place.partition_index): place.error_code for one in result.topics for place in one.partitions}


def test_markers_end_a_transaction_in_the_named_partitions(transactor: Transactor, topic: str):
    transactor.add((topic, 0))
    transactor.send(topic, b"hanging")
    assert markers_of(transactor, (topic, 0), ("nowhere", 3), commit=False) == {
        (topic, 0): ErrorCode.none,
        ("nowhere", 3): ErrorCode.unknown_topic_or_partition,
    }
    [described] = transactor.client.ask(
        apis.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [0]}]
    ).topics
    [producer] = described.partitions[0].active_producers
    assert producer.current_txn_start_offset == -1
    stale = {"producer_epoch": transactor.epoch - 1}
    assert markers_of(transactor, (topic, 0), commit=False, **stale) == {(topic, 0): ErrorCode.invalid_producer_epoch}


def test_transactions_are_listed_by_state_producer_and_duration(transactor: Transactor, topic: str):
    def listed(version: int = 1, **filters: Any) -> list[tuple[str, str]]:
        body = {"state_filters": [], "producer_id_filters": [transactor.producer_id], "duration_filter": -1}
        response = transactor.client.ask(apis.LIST_TRANSACTIONS, version, **{**body, **filters})
        assert response.error_code is ErrorCode.none
        return [(state.transactional_id, state.transaction_state) for state in response.transaction_states]

    transactor.add((topic, 0))
    assert listed(0) == listed(1) == [(transactor.name, "Ongoing")]
    assert listed(state_filters=["Ongoing", "Empty"]) == [(transactor.name, "Ongoing")]
    assert listed(state_filters=["Empty"]) == []
    assert listed(duration_filter=3_600_000) == []
    response = transactor.client.ask(
        apis.LIST_TRANSACTIONS, 1, state_filters=["Nonsense"], producer_id_filters=[], duration_filter=-1
    )
    assert (response.unknown_state_filters, response.transaction_states) == (("Nonsense",), ())


def test_transactions_v2_need_no_adding_and_have_an_epoch_each(transactor: Transactor, topic: str):
    group = f"group-of-{topic}"
    transactor.find_group(group)
    first = transactor.epoch
    for number in range(3):
        assert transactor.send(topic, b"%d" % number, version=12) is ErrorCode.none
        assert transactor.commit_offset(group, topic, number, version=5) is ErrorCode.none
        assert transactor.end_v2(commit=number != 1) is ErrorCode.none
        assert transactor.epoch == first + number + 1
    wait_until(lambda: transactor.describe().transaction_state == "CompleteCommit", "the markers are written")
    assert committed_values(transactor.client, topic) == [b"0", b"1", b"2"]
    [aborted] = transactor.client.fetch_one(Want(topic, 0), isolation_level=1).aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (transactor.producer_id, 2)
    [of_group] = transactor.client.ask(
        apis.OFFSET_FETCH, 7, group_id=group, topics=[{"name": topic, "partition_indexes": [0]}], require_stable=True
    ).topics
    assert of_group.partitions[0].committed_offset == 2


def test_a_late_request_of_an_ended_transaction_of_v2_is_fenced(transactor: Transactor, topic: str):
    transactor.find_group("a-group")
    assert transactor.send(topic, b"in time", version=12) is ErrorCode.none
    late = transactor.epoch
    assert transactor.end_v2(commit=True) is ErrorCode.none
    following = transactor.epoch
    transactor.epoch = late
    # The response to EndTxn may be lost. It is sent again with the epoch of its transaction, and has the same result.
    assert wait_until(lambda: transactor.end_v2(commit=True) is ErrorCode.none, "the markers are written")
    assert transactor.epoch == following
    transactor.epoch = late
    assert transactor.send(topic, b"too late", 1, version=12) is ErrorCode.invalid_producer_epoch
    assert transactor.commit_offset("a-group", topic, 1, version=5) is ErrorCode.invalid_producer_epoch


def test_an_id_that_is_not_there_is_not_described(transactor: Transactor, topic: str):
    transactor.add((topic, 0))
    states = transactor.client.ask(
        apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["nobody", "", transactor.name]
    ).transaction_states
    assert [state.error_code for state in states] == [
        ErrorCode.transactional_id_not_found,
        ErrorCode.invalid_request,
        ErrorCode.none,
    ]
