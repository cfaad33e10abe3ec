"""ShareFetch and ShareAcknowledge against a real broker, request by request."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from skep.base.errors import ErrorCode
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import batch_of, seconds
from tests.scenario.queue_topics import configure
from tests.scenario.share_member import (
    ACCEPT,
    FINAL,
    REJECT,
    RELEASE,
    RENEW,
    ShareMember,
    acquired,
    initialize_share_state,
    partitions_of,
    values,
)
from tests.waiting import wait_until

NONE = ErrorCode.none


@pytest.fixture
def topic_id(client: RawClient, topic: str) -> UUID:
    """A topic with two batches of five records in partition 0, and one of three in partition 1."""
    topic_id = client.create_topic(topic, 2)
    initialize_share_state(client, topic, topic_id, partitions=2)
    client.append(topic, batch_of(*(b"%d" % number for number in range(5))))
    client.append(topic, batch_of(*(b"%d" % number for number in range(5, 10))))
    client.append(topic, batch_of(b"a", b"b", b"c"), partition=1)
    return topic_id


@pytest.fixture
def one(client: RawClient, topic: str, topic_id: UUID) -> ShareMember:
    return ShareMember(client, topic, topic_id)


@pytest.fixture
def two(other: RawClient, topic: str, topic_id: UUID) -> ShareMember:
    return ShareMember(other, topic, topic_id)


@pytest.fixture
def third(skep_broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(skep_broker.bootstrap_servers) as client:
        yield client


def test_a_record_goes_to_one_member(one: ShareMember, two: ShareMember) -> None:
    response = one.fetch()
    assert acquired(response) == [(0, 9, 1)]
    assert values(response) == [b"%d" % number for number in range(10)]
    assert two.acquire_now() == []
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [NONE]
    assert one.acquire_now() == []


@pytest.mark.parametrize("version", [1, 2])
def test_accepted_records_never_come_again(client: RawClient, topic: str, topic_id: UUID, version: int) -> None:
    member = ShareMember(client, topic, topic_id, version=version)
    member.acquire()
    assert member.acquire_now({0: [(0, 6, [ACCEPT]), (7, 9, [RELEASE])]}) in ([], [(7, 9, 2)])
    member.close()
    again = ShareMember(client, topic, topic_id, version=version)
    found = again.fetch()
    assert [one[:2] for one in acquired(found)] == [(7, 9)]
    assert values(found) == [b"7", b"8", b"9"]


def test_released_records_come_again_and_rejected_ones_do_not(one: ShareMember, two: ShareMember) -> None:
    one.acquire()
    two.acquire_now()
    two.send_fetch()
    assert one.results({0: [(0, 3, [ACCEPT, RELEASE, REJECT, RELEASE])]}) == [NONE]
    assert acquired(two.receive()) == [(1, 1, 2), (3, 3, 2)]


def test_a_fetch_waits_for_records(one: ShareMember, other: RawClient, topic: str) -> None:
    one.acquire()
    one.send_fetch()
    other.append(topic, batch_of(b"late"))
    response = one.receive()
    assert acquired(response) == [(10, 10, 1)]
    assert values(response) == [b"late"]


def test_a_fetch_waits_for_min_bytes(one: ShareMember, other: RawClient, topic: str) -> None:
    one.acquire()
    one.send_fetch(min_bytes=300)
    other.append(topic, batch_of(b"x" * 50))
    other.append(topic, batch_of(b"y" * 300))
    assert acquired(one.receive()) == [(10, 11, 1)]


def test_the_record_limit_is_exact_if_asked_for(one: ShareMember, two: ShareMember) -> None:
    assert one.acquire(max_records=3) == [(0, 4, 1)]
    two_response = two.fetch(max_records=3, share_acquire_mode=1)
    assert acquired(two_response) == [(5, 7, 1)]
    assert values(two_response) == [b"5", b"6", b"7"]
    assert two.acquire_now(max_records=3, share_acquire_mode=1) == [(8, 9, 1)]


def test_a_group_asks_for_the_exact_number_for_members_that_cannot(
    skep_broker: EmbeddedBroker, client: RawClient, other: RawClient, topic: str, topic_id: UUID
) -> None:
    configure(skep_broker.bootstrap_servers, topic, "skep.share.acquire.mode", "record_limit")
    old, new = ShareMember(client, topic, topic_id, version=1), ShareMember(other, topic, topic_id, version=2)
    assert old.acquire(max_records=3) == [(0, 2, 1)]
    assert new.acquire(max_records=1) == [(3, 4, 1)], "who can say what it wants is not told otherwise"


def test_acquired_records_are_grouped_by_batch_size(one: ShareMember) -> None:
    assert one.acquire(batch_size=2) == [(0, 4, 1), (5, 9, 1)]


def test_max_records_are_for_all_partitions_and_these_take_turns(client: RawClient, topic: str, topic_id: UUID) -> None:
    member = ShareMember(client, topic, topic_id, partitions=2)
    first = wait_until(lambda: partitions_of(member.fetch(max_records=1)), "the first is loaded")
    second = wait_until(lambda: partitions_of(member.fetch(max_records=1)), "the other is loaded")
    assert len(first) == len(second) == 1
    assert first.keys() != second.keys()


def test_a_session_that_ends_releases_what_its_member_holds(one: ShareMember, two: ShareMember) -> None:
    one.acquire()
    two.acquire_now()
    two.send_fetch()
    assert one.results({0: [(0, 4, [ACCEPT])]}, share_session_epoch=FINAL) == [NONE]
    assert acquired(two.receive()) == [(5, 9, 2)]
    assert one.acknowledge({}, share_session_epoch=FINAL).error_code is ErrorCode.share_session_not_found


def test_a_share_fetch_with_the_final_epoch_acknowledges_and_fetches_nothing(
    one: ShareMember, two: ShareMember
) -> None:
    one.acquire()
    partitions = partitions_of(one.fetch({0: [(0, 4, [ACCEPT])]}, epoch=FINAL))
    assert (partitions[0].acknowledge_error_code, bytes(partitions[0].records)) == (0, b"")
    assert two.acquire() == [(5, 9, 2)]


def test_a_connection_that_closes_releases_what_its_member_holds(
    third: RawClient, two: ShareMember, topic: str, topic_id: UUID
) -> None:
    ShareMember(third, topic, topic_id).acquire()
    two.acquire_now()
    two.send_fetch()
    third.close()
    assert acquired(two.receive()) == [(0, 9, 2)]


def test_epochs_are_counted_by_both_requests(one: ShareMember) -> None:
    assert one.acknowledge({}).error_code is ErrorCode.invalid_share_session_epoch
    assert one.acknowledge({}, share_session_epoch=1).error_code is ErrorCode.share_session_not_found
    assert one.fetch(epoch=5).error_code is ErrorCode.share_session_not_found
    assert one.fetch(epoch=FINAL).error_code is ErrorCode.share_session_not_found
    one.acquire()
    one.results({0: [(0, 0, [ACCEPT])]})
    assert one.fetch(epoch=1).error_code is ErrorCode.invalid_share_session_epoch
    assert one.acquire_now(epoch=2) == []


def test_acknowledgements_cannot_begin_a_session_and_leave_the_earlier_one(one: ShareMember) -> None:
    one.acquire()
    refused = one.fetch(
        epoch=0,
        topics=[
            {
                "topic_id": one.topic_id,
                "partitions": [
                    {
                        "partition_index": 0,
                        "acknowledgement_batches": [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}],
                    }
                ],
            }
        ],
    )
    assert refused.error_code is ErrorCode.invalid_request
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [NONE]


def test_a_new_session_of_the_member_keeps_what_it_holds(one: ShareMember) -> None:
    one.acquire()
    one.epoch = 0
    assert one.acquire_now() == []
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [NONE]


def test_what_a_member_does_not_hold_is_refused(one: ShareMember, two: ShareMember) -> None:
    one.acquire()
    two.acquire_now()
    assert two.results({0: [(0, 0, [ACCEPT])]}) == [ErrorCode.invalid_record_state]
    assert one.results({0: [(0, 0, [ACCEPT]), (5, 10, [ACCEPT])]}) == [ErrorCode.invalid_request]
    assert one.results({0: [(0, 1 << 62, [ACCEPT])]}) == [ErrorCode.invalid_request]
    assert one.results({0: [(3, 2, [ACCEPT])]}) == [ErrorCode.invalid_request]
    assert one.results({0: [(0, 2, [ACCEPT, ACCEPT])]}) == [ErrorCode.invalid_request]
    assert one.results({0: [(0, 0, [7])]}) == [ErrorCode.invalid_request]
    assert one.results({1: [(0, 0, [ACCEPT])]}) == [ErrorCode.unknown_topic_or_partition]
    assert one.results({9: [(0, 0, [ACCEPT])]}) == [ErrorCode.unknown_topic_or_partition]
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [NONE]
    assert one.results({0: [(0, 9, [ACCEPT])]}) == [ErrorCode.invalid_record_state], "nobody holds what is done with"


def test_a_refused_acknowledgement_in_a_fetch_is_in_its_response(one: ShareMember) -> None:
    one.acquire()
    partitions = partitions_of(one.fetch({0: [(20, 20, [ACCEPT])]}, wait_s=0))
    assert partitions[0].acknowledge_error_code == ErrorCode.invalid_request
    assert partitions[0].error_code is NONE
    assert bytes(partitions[0].records) == b""


def test_an_accepted_acknowledgement_in_a_fetch_is_in_its_response(one: ShareMember) -> None:
    one.acquire()
    partitions = partitions_of(one.fetch({0: [(0, 9, [ACCEPT])]}, wait_s=0))
    assert partitions[0].acknowledge_error_code == 0


def test_a_renewal_asks_for_no_records(one: ShareMember) -> None:
    one.acquire()
    renewal = {0: [(0, 9, [RENEW])]}
    assert one.fetch(renewal, is_renew_ack=True).error_code is ErrorCode.invalid_request
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0}
    assert one.acquire(renewal, wait_s=0, is_renew_ack=True, **nothing) == []
    assert one.results(renewal) == [ErrorCode.invalid_request]
    assert one.results(renewal, is_renew_ack=True) == [NONE]
    assert one.acknowledge(renewal, is_renew_ack=True).acquisition_lock_timeout == seconds(30)


def test_unknown_topics_and_partitions_have_an_error_each(client: RawClient, topic: str, topic_id: UUID) -> None:
    member = ShareMember(client, topic, topic_id)
    topics = [
        {"topic_id": one, "partitions": [{"partition_index": index, "acknowledgement_batches": []}]}
        for one, index in ((topic_id, 0), (topic_id, 7), (uuid4(), 0))
    ]
    response = member.fetch(topics=topics, wait_s=0)
    codes = sorted(part.error_code.name for one in response.responses for part in one.partitions if part.error_code)
    assert codes == ["unknown_topic_id", "unknown_topic_or_partition"]


@pytest.mark.parametrize("wrong", [{"group_id": None}, {"member_id": ""}, {"member_id": "m" * 37}])
def test_requests_without_a_group_or_a_member_are_refused(one: ShareMember, wrong: dict[str, str | None]) -> None:
    assert one.fetch(**wrong).error_code is ErrorCode.invalid_request
    assert one.acknowledge({}, **wrong).error_code is ErrorCode.invalid_request


def test_the_start_follows_the_log_start(one: ShareMember, other: RawClient, topic: str) -> None:
    one.acquire()
    records = [{"partition_index": 0, "offset": 7}]
    other.ask(apis.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": records}], timeout=seconds(30))
    assert one.results({0: [(0, 5, [ACCEPT])]}) == [NONE]
    assert one.results({0: [(0, 9, [RELEASE])]}) == [NONE]
    assert one.acquire() == [(7, 9, 2)]


def test_a_deleted_topic_ends_the_fetches_that_wait_for_it(one: ShareMember, other: RawClient, topic: str) -> None:
    one.acquire()
    one.send_fetch()
    other.delete_topic(topic)
    [partition] = partitions_of(one.receive()).values()
    assert partition.error_code is not NONE


def test_a_killed_broker_keeps_what_was_accepted(topic: str) -> None:
    """On a broker of its own, because it is killed. What nobody has said anything about was not delivered."""
    with EmbeddedBroker() as broker:
        with RawClient(broker.bootstrap_servers) as client:
            topic_id = client.create_topic(topic)
            initialize_share_state(client, topic, topic_id)
            client.append(topic, batch_of(*(b"%d" % number for number in range(10))))
            member = ShareMember(client, topic, topic_id)
            member.acquire()
            assert member.results({0: [(0, 3, [ACCEPT]), (5, 5, [ACCEPT]), (7, 7, [RELEASE])]}) == [NONE]
            broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            again = ShareMember(client, topic, topic_id).acquire()
            assert again == [(4, 4, 1), (6, 6, 1), (7, 7, 2), (8, 9, 1)]
