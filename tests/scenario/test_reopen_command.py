"""The private command ``reopen``: finished records come again, once for each generation; what is wrong is refused."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from skep.base.errors import ErrorCode, KafkaError
from skep.client.cluster_client import ClusterClient
from skep.client.commands import command_to_leader
from skep.client.errors import TimedOut
from skep.testing import EmbeddedBroker
from tests.scenario.dead_letter_scene import ACCEPT, OPTIONS, REJECT, Queue, described
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[ClusterClient]:
    with ClusterClient(broker.bootstrap_servers, client_id="test", timeout_s=PATIENCE_S) as client:
        yield client


@pytest.fixture
def queue(broker: EmbeddedBroker, topic: str) -> Queue:
    """Three records, all accepted; no dead-letter topic."""
    queue = Queue(broker.bootstrap_servers, topic)
    queue.write(b"a", b"b", b"c")
    assert work(queue, 3) == [0, 1, 2]
    return queue


def work(queue: Queue, count: int) -> list[int]:
    seen: list[int] = []
    queue.work(lambda message: seen.append(message.offset() or 0) or ACCEPT, lambda: len(seen) >= count)
    return sorted(seen)


def ask(client: ClusterClient, queue: Queue, name: str, **arguments: Any) -> Any:
    return command_to_leader(client, queue.name, 0, name, {"group": queue.group, **arguments})


def refusal(client: ClusterClient, queue: Queue, **arguments: Any) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        ask(client, queue, "reopen", **arguments)
    return refused.value


def test_a_request_that_is_sent_twice_has_its_effect_once(client: ClusterClient, queue: Queue) -> None:
    generation = ask(client, queue, "deliveries")["generation"]
    opened = ask(client, queue, "reopen", ranges=[[1, 1]], generation=generation)
    assert opened["reopened"] == 1
    assert opened["generation"] != generation
    assert work(queue, 1) == [1]
    assert refusal(client, queue, ranges=[[1, 1]], generation=generation).code is ErrorCode.fenced_state_epoch
    assert ask(client, queue, "deliveries")["generation"] == opened["generation"]


def test_nothing_is_opened_in_another_topic_of_the_same_name(broker: EmbeddedBroker, queue: Queue) -> None:
    with ClusterClient(broker.bootstrap_servers, client_id="test", timeout_s=0.1) as client:
        for name, arguments in {"deliveries": {}, "reopen": {"ranges": [[0, 2]]}}.items():
            with pytest.raises(TimedOut, match="it was created again"):
                ask(client, queue, name, topic_id=str(uuid4()), **arguments)
            (found,) = client.metadata([queue.name]).topics
            ask(client, queue, name, topic_id=str(found.topic_id), **arguments)
    assert work(queue, 3) == [0, 1, 2]


def test_what_was_never_delivered_is_not_opened(client: ClusterClient, queue: Queue) -> None:
    assert ask(client, queue, "reopen", ranges=[[3, 1 << 62]])["reopened"] == 0
    assert ask(client, queue, "reopen", ranges=[[2, (1 << 63) - 1]])["reopened"] == 1
    assert work(queue, 1) == [2]


@pytest.mark.parametrize(
    "ranges", [[], [[2, 1]], [[-1, 0]], [[0]], "0-1", [[0, 1 << 63]], [[0, 0]] * 1_001, [[0, True]]]
)
def test_ranges_that_are_none_are_refused(client: ClusterClient, queue: Queue, ranges: Any) -> None:
    assert refusal(client, queue, ranges=ranges).code is ErrorCode.invalid_request


def test_a_group_that_has_not_begun_has_nothing_to_open(client: ClusterClient, queue: Queue) -> None:
    queue.group = "nobody"
    with pytest.raises(KafkaError):
        ask(client, queue, "reopen", ranges=[[0, 1]])


def test_nothing_is_opened_while_it_is_not_known_which_letters_are_written(client: ClusterClient, queue: Queue) -> None:
    queue.write(b"bad")
    queue.work(lambda message: REJECT, lambda: "does not exist" in described(queue))
    refused = refusal(client, queue, ranges=[[0, 0]])
    assert refused.code is ErrorCode.invalid_request
    assert "does not exist: create it" in refused.detail
    queue.create_dlq()
    queue.wait_for_letters(1)
    assert ask(client, queue, "reopen", ranges=[[0, 0]])["reopened"] == 1
