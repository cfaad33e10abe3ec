"""When dead letters are asked for, how often, and what is said if they cannot be written. The worker is a fake one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.config.option import parse_into
from skep.base.config.share_group_config import ShareGroupConfig
from skep.base.config.topic_config import TopicConfig
from skep.base.errors import ErrorCode, KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.supervisor import Supervisor
from skep.broker.share.dead_letter_writer import (
    MAX_RANGES,
    MAX_RECORDS,
    DeadLetterContext,
    DeadLetterWriter,
    first_of,
)
from skep.broker.worker.worker_process import WorkerFailed
from skep.coordination.share.share_state import DeadLetters, Reason, SharePartitionKey
from skep.metadata.cluster_image import ClusterImage
from skep.metadata.model import PartitionRecord, TopicRecord

ONE = BrokerId(1)
ENABLED = {"errors.deadletterqueue.group.enable": "true"}


def topic(name: str, partitions: int = 1, **config: str) -> TopicRecord:
    record = PartitionRecord((ONE,), (ONE,), ONE, 0)
    given = {option.replace("_", "."): value for option, value in config.items()}
    return TopicRecord(name, UUID(int=len(name)), (record,) * partitions, given)


class Share:
    """Stands for a share partition: archives what is written, unless told to fail."""

    def __init__(self, *offsets: int) -> None:
        self.key = SharePartitionKey("g", UUID(int=1), 5)
        self.error: KafkaError | None = None
        self.generation = "0.0"
        self.topic = "jobs"
        self.dying = list(offsets)
        self.failures: list[KafkaError] = []

    def dead_letters(self) -> list[DeadLetters]:
        return [DeadLetters(offset, offset, Reason.LIMIT, 5) for offset in self.dying]

    async def dead_letters_written(self, ranges: Sequence[tuple[int, int]]) -> KafkaError | None:
        await asyncio.sleep(0)
        if self.failures:
            return self.failures.pop(0)
        gone = {offset for first, last in ranges for offset in range(first, last + 1)}
        self.dying = [offset for offset in self.dying if offset not in gone]
        return None


class Worker:
    """Copies all that it is asked for. ``failures`` are raised by the next requests."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.before_reply: Callable[[], Awaitable[None]] | None = None

    async def ask(self, job: str, request: dict[str, Any]) -> dict[str, Any]:
        assert job == "dead-letters"
        self.requests.append(request)
        await asyncio.sleep(0)
        if self.before_reply is not None:
            await self.before_reply()
        if self.failures:
            raise WorkerFailed(self.failures.pop(0))
        ranges = [[first, last] for first, last, _, _ in request["ranges"]]
        return {"error": None, "serial": f"copy {len(self.requests)}", "ranges": ranges}


class Scene:
    def __init__(self, *topics: TopicRecord, **options: str) -> None:
        self.image = _image(topic("jobs"), *topics)
        self.options = ShareGroupConfig(dead_letter_topic="dlq.g", dead_letter_copy_record=True)
        self.config = CurrentConfig(
            read_broker_config({name.replace("_", "."): text for name, text in options.items()})
        )
        self.worker = Worker()
        self.created: list[str] = []
        self.letters = DeadLetterWriter(
            DeadLetterContext(
                self.worker,
                lambda: self.image,
                self.config,
                lambda _: self.options,
                lambda found: parse_into(TopicConfig(), found.config),
                self.create,
                Supervisor(),
            ),
            first_pause_s=0.001,
        )

    async def create(self, name: str) -> None:
        self.created.append(name)
        self.image = self.image.with_topic(TopicRecord(name, UUID(int=9), topic("jobs").partitions, ENABLED))

    async def write(self, share: Share) -> None:
        self.letters.added(share)
        await self.until(lambda: not self.letters.is_busy(share))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)


def _image(*topics: TopicRecord) -> ClusterImage:
    return ClusterImage("cluster").with_topics(topics)


def dlq(partitions: int = 1, **config: str) -> TopicRecord:
    return topic("dlq.g", partitions, **{"errors_deadletterqueue_group_enable": "true", **config})


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def test_a_record_is_archived_when_its_letter_is_written() -> None:
    async def work() -> None:
        scene, share = Scene(dlq(3)), Share(4, 7)
        await scene.write(share)
        (request,) = scene.worker.requests
        assert (request["dlq_topic"], request["dlq_partition"]) == ("dlq.g", 5 % 3)
        assert (request["after"], request["copy"], request["compacted"]) == (None, True, False)
        assert [one[:2] for one in request["ranges"]] == [(4, 4), (7, 7)]
        assert share.dying == []

    run(work)


def test_the_next_request_names_the_last_one() -> None:
    async def work() -> None:
        scene, share = Scene(dlq()), Share(*range(0, 2 * MAX_RANGES, 2), 1_000)
        await scene.write(share)
        assert [request["after"] for request in scene.worker.requests] == [None, "copy 1"]
        share.dying = [2_000]
        await scene.write(share)
        assert scene.worker.requests[-1]["after"] == "copy 2"

    run(work)


def test_a_failed_request_is_repeated_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        scene, share = Scene(dlq()), Share(4)
        scene.worker.failures = ["the worker process has ended"] * 3
        await scene.write(share)
        assert [request["after"] for request in scene.worker.requests] == [None] * 4
        assert share.dying == []

    with caplog.at_level(logging.INFO):
        run(work)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "dead letters of group 'g' for jobs-5 cannot be written, its records wait: the worker process has ended",
        "dead letters of group 'g' for jobs-5 are written again",
    ]


def test_what_could_not_be_archived_is_not_named_as_the_last_one() -> None:
    async def work() -> None:
        scene, share = Scene(dlq()), Share(4)
        share.failures = [KafkaError(ErrorCode.coordinator_not_available, "moving")]
        await scene.write(share)
        assert [request["after"] for request in scene.worker.requests] == [None, None]

    run(work)


def test_nothing_is_asked_once_the_share_partition_has_ended() -> None:
    async def work() -> None:
        scene, share = Scene(dlq()), Share(4)

        async def end() -> None:
            share.error = KafkaError(ErrorCode.not_leader_or_follower, "")

        scene.worker.before_reply, scene.worker.failures = end, ["fenced"]
        await scene.write(share)
        assert len(scene.worker.requests) == 1

    run(work)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((), "dlq.g does not exist: create it with errors.deadletterqueue.group.enable=true"),
        ((dlq(errors_deadletterqueue_group_enable="false"),), "set errors.deadletterqueue.group.enable=true for it"),
        ((dlq(cleanup_policy="compact"),), "set cleanup.policy=delete"),
    ],
    ids=["missing", "not enabled", "compacted"],
)
def test_records_wait_until_there_is_a_topic_for_their_letters(found: Sequence[TopicRecord], expected: str) -> None:
    async def work() -> None:
        scene, share = Scene(*found), Share(4)
        scene.letters._first_pause_s = 3_600
        scene.letters.added(share)
        await scene.until(lambda: scene.letters.problem(share))
        assert expected in str(scene.letters.problem(share))
        assert (scene.worker.requests, share.dying) == ([], [4])
        scene.image = scene.image.with_topic(dlq())
        scene.letters.may_have_changed()
        await scene.until(lambda: not scene.letters.is_busy(share))
        assert (share.dying, scene.letters.problem(share)) == ([], None)

    run(work)


def test_the_topic_is_created_if_that_is_allowed() -> None:
    async def work() -> None:
        scene, share = Scene(errors_deadletterqueue_auto_create_topics_enable="true"), Share(4)
        await scene.write(share)
        assert (scene.created, share.dying) == (["dlq.g"], [])

    run(work)


def test_a_prefix_that_was_set_later_counts() -> None:
    async def work() -> None:
        scene, share = Scene(dlq(), errors_deadletterqueue_topic_name_prefix="dead-"), Share(4)
        scene.letters.added(share)
        await scene.until(lambda: scene.letters.problem(share))
        assert "must begin with dead-" in str(scene.letters.problem(share))
        await scene.letters.stop()

    run(work)


def test_a_topic_is_not_its_own_dead_letter_topic() -> None:
    async def work() -> None:
        scene, share = Scene(dlq()), Share(4)
        share.topic = "dlq.g"
        scene.letters.added(share)
        await scene.until(lambda: scene.letters.problem(share))
        assert "its own records" in str(scene.letters.problem(share))
        await scene.letters.stop()
        assert share.dying == [4]

    run(work)


def test_without_a_topic_any_more_the_records_are_archived() -> None:
    async def work() -> None:
        scene, share = Scene(), Share(4)
        scene.options = ShareGroupConfig()
        await scene.write(share)
        assert (scene.worker.requests, share.dying) == ([], [])

    run(work)


def test_who_holds_requests_back_waits_for_the_outcome_of_the_one_under_way() -> None:
    async def work() -> None:
        scene, share = Scene(dlq()), Share(4)
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()
            share.dying.append(9)

        scene.worker.before_reply = wait
        scene.letters.added(share)
        await scene.until(lambda: scene.worker.requests)

        async def hold() -> int:
            async with scene.letters.held(share) as is_known:
                assert is_known
                await asyncio.sleep(0.01)
                return len(scene.worker.requests)

        holding = asyncio.create_task(hold())
        await asyncio.sleep(0)
        scene.worker.before_reply = None
        gate.set()
        assert await holding == 1
        await scene.until(lambda: not scene.letters.is_busy(share))
        assert [request["after"] for request in scene.worker.requests] == [None, "copy 1"]

    run(work)


def test_who_holds_requests_back_is_told_that_an_outcome_is_not_known() -> None:
    async def work() -> None:
        scene, share = Scene(), Share(4)
        scene.letters.added(share)
        async with scene.letters.held(share) as is_known:
            assert not is_known
        await scene.letters.stop()

    run(work)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), max_size=100))
def test_a_request_has_the_first_offsets_and_not_too_many(steps: list[tuple[int, int]]) -> None:
    dead, offset = [], 0
    for gap, size in steps:
        dead.append(DeadLetters(offset + gap, offset + gap + size, Reason.LIMIT, 1))
        offset += gap + size + 1
    chosen = first_of(dead)
    offsets = [offset for one in chosen for offset in range(one.first, one.last + 1)]
    every = [offset for one in dead for offset in range(one.first, one.last + 1)]
    assert offsets == every[: len(offsets)]
    assert len(chosen) <= MAX_RANGES
    assert len(offsets) <= MAX_RECORDS
    assert offsets or not every
