import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.client.produce.produce_queue import BatchResult, Partition, ProduceQueue, QueuedBatch, Written

GIVE_UP_AFTER_S, PAUSE_S = 10.0, 0.5
OK = ErrorCode.none
MOVED = ErrorCode.not_leader_or_follower
LOST = ErrorCode.network_exception
DUPLICATE = ErrorCode.duplicate_sequence_number
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number


class Scene:
    """A queue with one partition, whose batches are named by their bytes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue = ProduceQueue(give_up_after_s=GIVE_UP_AFTER_S, pause_s=PAUSE_S)
        self.partition = self.queue.partition("t", 0)

    def add(self, *names: bytes, records: int = 10) -> None:
        for name in names:
            self.queue.add(self.partition, name, records)

    def send(self) -> list[QueuedBatch]:
        """The next request; empty when nothing may go out."""
        return self.queue.take(list(self.queue.ready(self.now)), 1 << 20)

    def send_all(self) -> list[list[QueuedBatch]]:
        return list(iter(self.send, []))

    def answer(self, request: list[QueuedBatch], code: ErrorCode, base_offset: int = -1) -> set[tuple[str, int]]:
        return self.queue.complete(request, {("t", 0): BatchResult(code, base_offset)}, self.now)


def names(requests: list[list[QueuedBatch]]) -> list[bytes]:
    return [bytes(batch.data) for request in requests for batch in request]


def test_batches_go_out_in_order_one_of_a_partition_in_a_request() -> None:
    scene = Scene()
    scene.add(b"a", b"b", b"c")
    assert names(scene.send_all()) == [b"a", b"b", b"c"]
    assert scene.queue.waiting_bytes == 0
    assert scene.queue.unacknowledged_bytes == 3


def test_sequence_numbers_count_records_and_begin_again() -> None:
    scene = Scene()
    scene.add(b"a", b"b", records=7)
    assert scene.partition.next_sequence == 14
    scene.partition.next_sequence = 2**31 - 3
    scene.add(b"c", records=7)
    assert scene.partition.next_sequence == 4


def test_what_was_acknowledged_is_counted_and_its_memory_is_free() -> None:
    scene = Scene()
    scene.add(b"a", b"b")
    first, second = scene.send_all()
    scene.answer(first, OK, 100)
    scene.answer(second, OK, 130)
    assert scene.queue.written == {("t", 0): Written(100, 139, 20)}
    assert scene.queue.unacknowledged_bytes == 0


def test_after_a_moved_leader_everything_is_sent_again_in_the_old_order() -> None:
    scene = Scene()
    scene.add(b"a", b"b", b"c")
    first, second, third = scene.send_all()
    scene.add(b"d")
    scene.answer(first, OK, 0)
    assert scene.answer(second, MOVED) == {("t", 0)}, "the leader must be looked up again"
    assert scene.send() == [], "while c has no answer, nothing may overtake b"
    scene.answer(third, OUT_OF_ORDER)
    assert scene.send() == [], "not at once"
    scene.now += PAUSE_S
    assert names(scene.send_all()) == [b"b", b"c", b"d"]


def test_a_lost_answer_is_asked_for_by_sending_the_same_again() -> None:
    scene = Scene()
    scene.add(b"a", b"b")
    requests = scene.send_all()
    lost = [batch for request in requests for batch in request]
    scene.answer(lost, LOST)
    scene.now += PAUSE_S
    first, second = scene.send_all()
    assert [*first, *second] == lost
    scene.answer(first, DUPLICATE, 40)
    scene.answer(second, OK, 50)
    assert scene.queue.written == {("t", 0): Written(40, 59, 20)}


def test_a_duplicate_whose_offset_is_not_known_counts_as_written() -> None:
    scene = Scene()
    scene.add(b"a", b"b")
    first, second = scene.send_all()
    scene.answer(first, DUPLICATE)
    assert scene.queue.written == {("t", 0): Written(-1, -1, 10)}
    scene.answer(second, OK, 70)
    assert scene.queue.written == {("t", 0): Written(-1, 79, 20)}


def test_a_batch_behind_one_that_was_written_after_all_is_not_sent_again() -> None:
    """The append was too slow for its answer, but it was done, and so was the next one."""
    scene = Scene()
    scene.add(b"a", b"b")
    first, second = scene.send_all()
    scene.answer(first, ErrorCode.request_timed_out)
    scene.answer(second, OK, 10)
    scene.now += PAUSE_S
    [again] = scene.send_all()
    assert names([again]) == [b"a"]
    scene.answer(again, DUPLICATE, 0)
    assert scene.queue.written == {("t", 0): Written(0, 19, 20)}


def test_no_batch_goes_out_that_would_make_the_broker_forget_one_without_acknowledgement() -> None:
    """It remembers the last five."""
    scene = Scene()
    scene.add(*(b"%d" % number for number in range(9)))
    requests = scene.send_all()
    assert names(requests) == [b"0", b"1", b"2", b"3", b"4"]
    scene.answer(requests[0], ErrorCode.request_timed_out)
    for request in requests[1:]:
        scene.answer(request, OK, 0)
    scene.now += PAUSE_S
    [again] = scene.send_all()
    assert names([again]) == [b"0"], "with 5 behind it, 0 might be forgotten"
    scene.answer(again, DUPLICATE, 0)
    assert names(scene.send_all()) == [b"5", b"6", b"7", b"8"]


def test_a_missing_sequence_number_is_an_error_when_nothing_before_it_failed() -> None:
    scene = Scene()
    scene.add(b"a")
    with pytest.raises(KafkaError, match="topic 't', partition 0") as refused:
        scene.answer(scene.send(), OUT_OF_ORDER)
    assert refused.value.code is OUT_OF_ORDER


@pytest.mark.parametrize(
    "code", [ErrorCode.message_too_large, ErrorCode.invalid_producer_epoch, ErrorCode.topic_authorization_failed]
)
def test_what_does_not_pass_is_raised_with_topic_and_partition(code: ErrorCode) -> None:
    scene = Scene()
    scene.add(b"a")
    request = scene.send()
    with pytest.raises(KafkaError, match="topic 't', partition 0: the reason") as refused:
        scene.queue.complete(request, {("t", 0): BatchResult(code, detail="the reason")}, 0.0)
    assert refused.value.code is code


def test_a_partition_that_an_answer_leaves_out_is_sent_again() -> None:
    scene = Scene()
    scene.add(b"a")
    scene.queue.complete(scene.send(), {}, scene.now)
    scene.now += PAUSE_S
    assert names(scene.send_all()) == [b"a"]


def test_an_error_that_should_pass_and_does_not_is_raised_when_the_time_is_over() -> None:
    scene = Scene()
    scene.add(b"a")
    with pytest.raises(KafkaError) as given_up:
        for _ in range(1000):
            scene.answer(scene.send(), MOVED)
            scene.now += PAUSE_S
    assert given_up.value.code is MOVED
    assert GIVE_UP_AFTER_S < scene.now < GIVE_UP_AFTER_S + 2 * PAUSE_S


def test_the_time_begins_again_with_every_success() -> None:
    scene = Scene()
    for _ in range(20):
        scene.add(b"a")
        scene.answer(scene.send(), MOVED)
        scene.now += GIVE_UP_AFTER_S - 1
        scene.answer(scene.send(), OK, 0)
    assert scene.queue.written["t", 0].count == 200


def test_a_request_has_one_batch_of_each_partition_up_to_its_size() -> None:
    queue = ProduceQueue(give_up_after_s=1, pause_s=1)
    partitions = [queue.partition("t", index) for index in range(4)]
    for partition in partitions:
        queue.add(partition, b"x" * 100, 1)
        queue.add(partition, b"y" * 100, 1)

    def request(max_bytes: int) -> list[tuple[int, bytes]]:
        return [(batch.partition.index, batch.data[:1]) for batch in queue.take(list(queue.ready(0.0)), max_bytes)]

    assert request(250) == [(0, b"x"), (1, b"x")]
    assert request(10) == [(0, b"y")], "one that is larger than a request goes alone"
    assert request(1000) == [(1, b"y"), (2, b"x"), (3, b"x")]


def test_a_partition_that_failed_does_not_hold_up_the_others() -> None:
    queue = ProduceQueue(give_up_after_s=1, pause_s=1)
    good, bad = queue.partition("t", 0), queue.partition("t", 1)
    for partition in (good, bad):
        queue.add(partition, b"1", 1)
        queue.add(partition, b"2", 1)
    request = queue.take(list(queue.ready(0.0)), 100)
    queue.complete(request, {("t", 0): BatchResult(OK, 5), ("t", 1): BatchResult(MOVED)}, 0.0)
    assert list(queue.ready(0.0)) == [good]
    assert list(queue.ready(1.0)) == [good, bad]
    assert [bytes(batch.data) for batch in bad.waiting] == [b"1", b"2"]


def test_a_partition_without_a_leader_is_put_off_and_given_up_in_the_end() -> None:
    scene = Scene()
    scene.add(b"a")
    problem = BatchResult(ErrorCode.leader_not_available, detail="it has no leader")
    scene.queue.postpone(scene.partition, problem, 0.0)
    assert list(scene.queue.ready(PAUSE_S / 2)) == []
    assert list(scene.queue.ready(PAUSE_S)) == [scene.partition]
    with pytest.raises(KafkaError, match="it has no leader"):
        scene.queue.postpone(scene.partition, problem, GIVE_UP_AFTER_S + 1)


def test_a_partition_is_made_once() -> None:
    queue = ProduceQueue(give_up_after_s=1, pause_s=1)
    assert queue.partition("t", 1) is queue.partition("t", 1)
    assert isinstance(queue.partition("t", 1), Partition)
