"""``skep queues dead`` and ``skep queues redrive``: what died is listed, and given to its group again, each once."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition

from skep.base.dead_letters import RedriveMark
from skep.cli.connection import Cluster
from skep.cli.queues import dead_letter_commands
from skep.cli.queues.dead_letter_reader import DeadLetterReader, LetterFilter
from skep.cli.queues.redrive import Redrive, Sources
from skep.cli.skep_client import skep_client
from skep.testing import EmbeddedBroker
from tests.scenario.dead_letter_scene import ACCEPT, OPTIONS, REJECT, Queue, as_json, skep
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.xdist_group(__name__)

NOTHING = {"in_place": 0, "from_copy": 0, "unfinished": 0, "lost": 0, "resumed": 0}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def queue(broker: EmbeddedBroker, topic: str) -> Queue:
    queue = Queue(broker.bootstrap_servers, topic)
    queue.create_dlq()
    return queue


def reject_all(queue: Queue, count: int, of: int | None = None) -> None:
    """Lets ``count`` more records die, after which there are ``of`` letters."""
    seen: list[int] = []

    def handle(message: Message):
        seen.append(message.offset() or 0)
        return REJECT

    queue.work(handle, lambda: len(seen) >= count)
    queue.wait_for_letters(of or count)


def accept_all(queue: Queue, count: int) -> list[tuple[int, int]]:
    """Accepts so many records, and returns their offsets and delivery counts."""
    seen: list[tuple[int, int]] = []

    def handle(message: Message):
        seen.append((message.offset() or 0, message.delivery_count()))
        return ACCEPT

    queue.work(handle, lambda: len(seen) >= count)
    return sorted(seen)


def redrive(queue: Queue, *options: str) -> dict[str, int]:
    return as_json(queue.servers, "queues", "redrive", queue.group, *options)


def test_a_dead_record_is_opened_again_in_place_once(queue: Queue) -> None:
    queue.write(b"a", b"b", b"c")
    reject_all(queue, 3)
    assert redrive(queue, "--dry-run") == {"in_place": 3, "from_copy": 0, "lost": 0}
    assert redrive(queue, "--topic", queue.name, "--offset", "1-2") == NOTHING | {"in_place": 2}
    assert accept_all(queue, 2) == [(1, 1), (2, 1)]
    assert redrive(queue) == NOTHING | {"in_place": 1}
    assert redrive(queue) == NOTHING
    assert accept_all(queue, 1) == [(0, 1)]
    assert [message.value() for message in queue.messages(queue.name)] == [b"a", b"b", b"c"]


def test_a_record_that_dies_again_has_another_letter_and_can_be_redriven_again(queue: Queue) -> None:
    queue.write(b"a")
    for number in range(1, 4):
        reject_all(queue, 1, of=number)
        assert redrive(queue) == NOTHING | {"in_place": 1}
    assert accept_all(queue, 1) == [(0, 1)]
    assert queue.offsets() == [(0, 0)] * 3


def test_a_record_that_is_gone_is_produced_again_from_its_copy(queue: Queue) -> None:
    queue.write(b"a", b"b", key=b"k", headers=[("trace", b"7")])
    reject_all(queue, 2)
    deleted = queue.admin.delete_records([ClientPartition(queue.name, 0, 1)])
    next(iter(deleted.values())).result(PATIENCE_S)
    assert redrive(queue) == NOTHING | {"in_place": 1, "from_copy": 1}
    assert redrive(queue) == NOTHING
    _, again = queue.messages(queue.name)
    assert (again.key(), again.value(), again.headers()) == (b"k", b"a", [("trace", b"7")])
    assert [offset for offset, _ in accept_all(queue, 2)] == [1, again.offset()]


def test_a_letter_without_record_and_copy_cannot_be_redriven(queue: Queue) -> None:
    queue.configure(**{"errors.deadletterqueue.copy.record.enable": "false"})
    queue.write(b"a")
    reject_all(queue, 1)
    deleted = queue.admin.delete_records([ClientPartition(queue.name, 0, 1)])
    next(iter(deleted.values())).result(PATIENCE_S)
    assert redrive(queue) == NOTHING | {"lost": 1}
    assert "no record and no copy" in skep(queue.servers, "queues", "redrive", queue.group)


def test_the_list_says_what_died_and_what_was_redriven(queue: Queue) -> None:
    queue.write(b"a", b"b")
    reject_all(queue, 2)
    redrive(queue, "--topic", queue.name, "--offset", "0")
    header, *lines = skep(queue.servers, "queues", "dead", queue.group).splitlines()
    assert header.split() == ["when", "topic", "partition", "offset", "deliveries", "copy", "redriven", "reason"]
    assert [line.split()[2:8] for line in lines] == [
        [queue.name, "0", "0", "1", "yes", "yes"],
        [queue.name, "0", "1", "1", "yes", "no"],
    ]
    assert skep(queue.servers, "queues", "dead", queue.group, "--reason", "REJECTED").count("\n") == 3
    assert skep(queue.servers, "queues", "dead", queue.group, "--reason", "timeout") == ""
    assert skep(queue.servers, "queues", "dead", queue.group, "--since", "now") == ""


class Dies(Exception):
    """The command is killed here."""


def die_in_redrive(queue: Queue) -> None:
    cluster = Cluster(queue.servers)
    with skep_client(cluster) as client:
        sources = Sources(cluster, lambda name: dead_letter_commands._topic_id(client, name))
        work = Redrive(cluster, client, sources, queue.group, queue.dlq)
        with suppress(Dies):
            work.run(lambda: DeadLetterReader(cluster, queue.dlq, LetterFilter(queue.group), sources.applies))


@pytest.mark.parametrize(("writes", "reopens"), [(0, True), (1, False), (1, True), (2, True)])
def test_a_redrive_that_died_is_finished_by_the_next_one(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, writes: int, reopens: bool
) -> None:
    """It dies instead of its n-th mark, or right before or after the request that opens the records."""
    queue.write(b"a", b"b")
    reject_all(queue, 2)
    write, reopen = Redrive._write, Redrive._reopen
    left = writes

    def dying_write(self: Redrive, partition: int, mark: RedriveMark) -> None:
        nonlocal left
        if left == 0:
            raise Dies
        left -= 1
        write(self, partition, mark)

    def dying_reopen(self: Redrive, mark: RedriveMark) -> int:
        if not reopens:
            raise Dies
        return reopen(self, mark)

    monkeypatch.setattr(Redrive, "_write", dying_write)
    monkeypatch.setattr(Redrive, "_reopen", dying_reopen)
    die_in_redrive(queue)
    monkeypatch.undo()
    was_opened = reopens and writes >= 1
    if was_opened:
        # They are done with before the next redrive, which must not open them again.
        assert accept_all(queue, 2) == [(0, 1), (1, 1)]
    done = redrive(queue)
    assert done["in_place"] + done["resumed"] == (0 if was_opened and writes == 2 else 2)
    if was_opened:
        assert lag(queue) == 0
    else:
        assert accept_all(queue, 2) == [(0, 1), (1, 1)]
    assert redrive(queue) == NOTHING


def delete_topic(queue: Queue) -> None:
    queue.admin.delete_topics([queue.name])[queue.name].result(PATIENCE_S)
    wait_until(lambda: queue.name not in queue.admin.list_topics(timeout=PATIENCE_S).topics, "the topic is deleted")


def test_a_redrive_that_died_begins_again_in_the_next_topic_of_the_same_name(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mark says nothing about the records of the next topic, which has the same offsets."""
    queue.write(b"a", b"b")
    reject_all(queue, 2)

    def dies(self: Redrive, mark: RedriveMark) -> int:
        raise Dies

    monkeypatch.setattr(Redrive, "_reopen", dies)
    die_in_redrive(queue)
    monkeypatch.undo()
    delete_topic(queue)
    assert redrive(queue) == NOTHING | {"lost": 2}, "without a topic there is nothing to wait for"
    queue.create(queue.name)
    queue.write(b"other")
    assert accept_all(queue, 1) == [(0, 1)]
    is_redriven = [one.split()[7] for one in skep(queue.servers, "queues", "dead", queue.group).splitlines()[1:]]
    assert is_redriven == ["no", "no"]
    assert redrive(queue, "--dry-run") == {"in_place": 0, "from_copy": 2, "lost": 0}
    assert redrive(queue) == NOTHING | {"from_copy": 2}
    assert redrive(queue) == NOTHING
    assert [message.value() for message in queue.messages(queue.name)] == [b"other", b"a", b"b"]


def test_letters_of_two_topics_of_the_same_name_are_redriven_where_their_records_are(queue: Queue) -> None:
    queue.write(b"a", b"b")
    reject_all(queue, 2)
    assert redrive(queue, "--topic", queue.name, "--offset", "0") == NOTHING | {"in_place": 1}
    delete_topic(queue)
    queue.create(queue.name)
    queue.write(b"c", b"d")
    reject_all(queue, 2, of=4)
    assert redrive(queue) == NOTHING | {"in_place": 2, "from_copy": 1}
    assert redrive(queue) == NOTHING
    assert [message.value() for message in queue.messages(queue.name)] == [b"c", b"d", b"b"]


def lag(queue: Queue) -> int:
    return int(as_json(queue.servers, "queues", "describe", queue.group)["lag"])


def test_bad_input_is_refused_in_one_line(queue: Queue) -> None:
    for arguments, expected in {
        ("--offset", "1"): "--offset needs --topic",
        ("--topic", "x", "--offset", "z"): "expected an offset like 17",
        ("--since", "yesterday"): "is not a time",
        ("--rate", "0"): "--rate",
        ("--from", "dlq.no-such"): "there is no topic 'dlq.no-such'",
    }.items():
        with pytest.raises(AssertionError, match=expected):
            skep(queue.servers, "queues", "redrive", queue.group, *arguments)
    for command in ("dead", "redrive"):
        with pytest.raises(AssertionError, match="there is no share group 'nobody'"):
            skep(queue.servers, "queues", command, "nobody")
    queue.write(b"a")
    accept_all(queue, 1)
    with pytest.raises(AssertionError, match=f"did you mean {queue.group}"):
        skep(queue.servers, "queues", "dead", f"{queue.group}x")
    with pytest.raises(AssertionError, match=r"there is no topic 'dlq\.no-such'"):
        skep(queue.servers, "queues", "dead", queue.group, "--from", "dlq.no-such")
    queue.configure(**{"errors.deadletterqueue.topic.name": ""})
    with pytest.raises(AssertionError, match="has no dead-letter topic"):
        skep(queue.servers, "queues", "dead", queue.group)


def test_a_rate_is_kept(queue: Queue) -> None:
    queue.write(*[b"x"] * 6)
    reject_all(queue, 6)
    assert redrive(queue, "--rate", "20") == NOTHING | {"in_place": 6}
    wait_until(lambda: lag(queue) == 6, "all are open again")


def test_strange_records_in_the_dead_letter_topic_do_no_harm(queue: Queue) -> None:
    queue.write(b"a")
    reject_all(queue, 1)
    other = Queue.__new__(Queue)
    other.__dict__.update(queue.__dict__)
    other.name = queue.dlq
    other.write(b"hello", headers=[("skep.dlq.redrive", b"{"), ("__dlq.errors.offset", b"x")])
    other.write(b"", headers=[("__dlq.errors.group", queue.group.encode())])
    assert redrive(queue) == NOTHING | {"in_place": 1}
