"""Requests and replies: each asker gets its own answers, and nothing but them."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

import skep
from skep.client.errors import ClientError
from skep.testing import EmbeddedBroker
from tests.scenario.queue_topics import OPTIONS, PATIENCE_S, configure, create, text
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group(__name__)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(options=OPTIONS) as broker:
        yield broker


@pytest.fixture
def servers(broker: EmbeddedBroker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def requests(servers: str, topic: str) -> str:
    create(servers, topic)
    return topic


@pytest.fixture
def asker(servers: str) -> Iterator[skep.Asker]:
    with skep.Asker(servers) as asker:
        yield asker


def shout(message: skep.Message) -> bytes:
    return text(message).upper().encode()


ASK = """
import sys
from concurrent.futures import ThreadPoolExecutor
import skep

servers, topic, name = sys.argv[1:]

def ask(number):
    question = f"{name} {number}"
    assert skep.ask(topic, question, bootstrap_servers=servers, timeout=60) == question.upper().encode()

with ThreadPoolExecutor(8) as threads:
    print(len(list(threads.map(ask, range(500)))))
"""


def test_each_of_many_askers_gets_its_own_answers_through_one_topic(servers: str, requests: str) -> None:
    with skep.answer(requests, shout, bootstrap_servers=servers, concurrency=4, prefetch=100) as answering:
        commands = [[sys.executable, "-c", ASK, servers, requests, name] for name in ("ann", "bob")]
        askers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        try:
            assert [process.communicate(timeout=2 * PATIENCE_S)[0] for process in askers] == ["500\n", "500\n"]
            assert [process.returncode for process in askers] == [0, 0]
        finally:
            for process in askers:
                process.kill()
    assert answering.statistics.accepted == 1_000


def test_the_reply_topic_is_created_with_a_short_retention(servers: str, requests: str, asker: skep.Asker) -> None:
    with skep.answer(requests, shout, bootstrap_servers=servers):
        assert asker.ask(requests, "hello", timeout=PATIENCE_S) == b"HELLO"
    resource = ConfigResource(ResourceType.TOPIC, f"{requests}.replies")
    admin = AdminClient({"bootstrap.servers": servers})
    found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert found["retention.ms"].value == "3600000"


def test_the_answer_goes_to_the_partition_of_its_asker(servers: str, requests: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(f"{requests}.replies", 3, 1)])[f"{requests}.replies"].result(PATIENCE_S)
    with skep.answer(requests, shout, bootstrap_servers=servers), ThreadPoolExecutor() as threads:
        askers = [skep.Asker(servers) for _ in range(5)]

        def ask(number: int) -> bytes | None:
            return askers[number % 5].ask(requests, f"q{number}", timeout=PATIENCE_S)

        assert list(threads.map(ask, range(50))) == [b"Q%d" % number for number in range(50)]
        for one in askers:
            one.close()


def test_an_exception_of_the_handler_is_raised_at_the_asker(servers: str, requests: str, asker: skep.Asker) -> None:
    def refuse(message: skep.Message) -> bytes:
        if message.value == b"reject":
            raise skep.Reject("not for me")
        raise ValueError(f"there is no {text(message)}")

    with skep.answer(requests, refuse, bootstrap_servers=servers) as answering:
        with pytest.raises(skep.AskFailed, match="ValueError: there is no egg") as failed:
            asker.ask(requests, "egg", timeout=PATIENCE_S)
        assert (failed.value.kind, failed.value.reason) == ("ValueError", "there is no egg")
        with pytest.raises(skep.AskFailed, match="not for me"):
            asker.ask(requests, "reject", timeout=PATIENCE_S)
        wait_until(lambda: answering.statistics.rejected == 1, lambda: str(answering.statistics))
        wait_until(lambda: answering.statistics.accepted == 1, lambda: str(answering.statistics))
    assert answering.statistics.retried == 0


def test_a_result_that_is_no_answer_is_an_error(servers: str, requests: str, asker: skep.Asker) -> None:
    results: list[object] = [5, None, "text", b"x" * 2_000_000]
    with skep.answer(requests, lambda message: results[int(text(message))], bootstrap_servers=servers):
        with pytest.raises(skep.AskFailed, match="the handler returned int, not bytes, str or None"):
            asker.ask(requests, "0", timeout=PATIENCE_S)
        assert asker.ask(requests, "1", timeout=PATIENCE_S) is None
        assert asker.ask(requests, "2", timeout=PATIENCE_S) == b"text"
        with pytest.raises(skep.AskFailed, match="the answer is too large"):
            asker.ask(requests, "3", timeout=PATIENCE_S)


def test_retry_later_answers_at_the_next_delivery(servers: str, requests: str, asker: skep.Asker) -> None:
    def second_time(message: skep.Message) -> bytes:
        if message.delivery_count == 1:
            raise skep.RetryLater(0, "once more")
        return b"delivery %d" % message.delivery_count

    with skep.answer(requests, second_time, bootstrap_servers=servers):
        assert asker.ask(requests, "x", timeout=PATIENCE_S) == b"delivery 2"


def test_late_and_double_answers_are_dropped(servers: str, requests: str, asker: skep.Asker) -> None:
    go = threading.Event()

    def slow(message: skep.Message) -> bytes:
        if message.value == b"slow":
            assert go.wait(PATIENCE_S)
        return shout(message)

    with skep.answer(requests, slow, bootstrap_servers=servers, concurrency=2):
        assert asker.ask(requests, "hello", timeout=PATIENCE_S) == b"HELLO"
        with pytest.raises(skep.AskTimeout, match=f"no answer to the request to '{requests}' within 0.2 s"):
            asker.ask(requests, "slow", timeout=0.2)
        assert asker.pending == 0
        go.set()
        reply = asker.request(requests, "first").result(PATIENCE_S)
        assert (reply.value, reply.topic) == (b"FIRST", f"{requests}.replies")
        wait_until(lambda: asker.dropped == 1, "the late one is dropped")
        # The same answer once more, as after a crash of the answering process.
        producer = Producer({"bootstrap.servers": servers})
        producer.produce(reply.topic, reply.value, partition=reply.partition, headers=list(reply.headers))
        assert producer.flush(PATIENCE_S) == 0
        assert asker.ask(requests, "second", timeout=PATIENCE_S) == b"SECOND"
        wait_until(lambda: asker.dropped == 2, "the second one is dropped")


def test_a_request_that_nobody_waits_for_is_not_carried_out_if_the_group_says_so(
    servers: str, requests: str, asker: skep.Asker
) -> None:
    group = f"{requests}.answers"
    configure(servers, group, "skep.share.record.ttl.header.enable", "true")
    asker.request(requests, "hello").cancel()  # the reply topic is there from now on
    with pytest.raises(skep.AskTimeout):
        asker.ask(requests, "in vain", timeout=0.1)
    gave_up_at = time.monotonic()
    wait_until(lambda: time.monotonic() > gave_up_at + 0.2, "its time is over for everybody")
    asked: list[str] = []

    def handle(message: skep.Message) -> bytes:
        asked.append(text(message))
        return shout(message)

    with skep.answer(requests, handle, bootstrap_servers=servers):
        assert asker.ask(requests, "hello", timeout=PATIENCE_S) == b"HELLO"
    assert set(asked) == {"hello"}


def test_a_future_fails_when_its_time_is_up(servers: str, requests: str, asker: skep.Asker) -> None:
    future = asker.request(requests, "x", timeout=0.1)
    with pytest.raises(skep.AskTimeout):
        future.result(PATIENCE_S)
    assert asker.pending == 0


def test_a_cancelled_future_does_not_disturb_the_others(servers: str, requests: str, asker: skep.Asker) -> None:
    cancelled = asker.request(requests, "a", timeout=PATIENCE_S)
    assert cancelled.cancel()
    with skep.answer(requests, shout, bootstrap_servers=servers):
        assert asker.ask(requests, "b", timeout=PATIENCE_S) == b"B"


def test_the_number_of_open_requests_has_a_bound(servers: str, requests: str) -> None:
    with skep.Asker(servers, max_pending=2) as asker:
        futures = [asker.request(requests, "x") for _ in range(2)]
        with pytest.raises(ClientError, match="max_pending is 2"):
            asker.request(requests, "x")
    with pytest.raises(ClientError, match="closed before the answer came"):
        futures[0].result(PATIENCE_S)
    with pytest.raises(ClientError, match="the asker is closed"):
        asker.request(requests, "x")


def test_an_async_handler_answers(servers: str, requests: str, asker: skep.Asker) -> None:
    async def handle(message: skep.Message) -> bytes:
        await asyncio.sleep(0)
        if message.value == b"bad":
            raise ValueError("bad")
        return shout(message)

    async def ask_all() -> list[bytes | None]:
        futures = [asker.request(requests, f"q{number}", timeout=PATIENCE_S) for number in range(100)]
        asked = [asyncio.wrap_future(future) for future in futures]
        return [reply.value for reply in await asyncio.gather(*asked)]

    with skep.answer(requests, handle, bootstrap_servers=servers, concurrency=20):
        assert asyncio.run(ask_all()) == [b"Q%d" % number for number in range(100)]
        with pytest.raises(skep.AskFailed, match="ValueError: bad"):
            asker.ask(requests, "bad", timeout=PATIENCE_S)


def test_spring_s_replying_kafka_template_is_answered(servers: str, requests: str) -> None:
    """The bytes of ReplyingKafkaTemplate and what it looks for in the reply: its correlation id, the partition."""
    replies = f"{requests}-spring"
    create(servers, replies, partitions=2)
    correlation_id = bytes.fromhex("0123456789abcdef0123456789abcdef")
    headers = [
        ("kafka_replyTopic", replies.encode()),
        ("kafka_replyPartition", b"\x00\x00\x00\x01"),
        ("kafka_correlationId", correlation_id),
    ]
    reader = Consumer({"bootstrap.servers": servers, "group.id": "x", "enable.auto.commit": False})
    reader.assign([TopicPartition(replies, 1, 0)])
    producer = Producer({"bootstrap.servers": servers})
    with skep.answer(requests, shout, bootstrap_servers=servers) as answering:
        producer.produce(requests, b"nobody asks", headers=[])
        producer.produce(requests, b"hello", b"key", headers=headers)
        producer.produce(requests, b"nonsense", headers=[("kafka_replyTopic", b"__consumer_offsets")])
        producer.produce(requests, b"nowhere", headers=[("kafka_replyTopic", b"no topic")])
        assert producer.flush(PATIENCE_S) == 0
        reply = wait_until(lambda: reader.poll(0.1), "the answer comes")
        assert reply.error() is None
        assert (reply.value(), reply.key()) == (b"HELLO", b"key")
        assert reply.headers() == [("kafka_correlationId", correlation_id)]
        wait_until(lambda: answering.statistics.accepted == 4, lambda: str(answering.statistics))
    reader.close()


def test_a_listener_of_spring_is_asked(servers: str, requests: str, asker: skep.Asker) -> None:
    """A listener with @SendTo answers with the topic, partition and correlation id of the request, and adds headers."""
    reader = Consumer({"bootstrap.servers": servers, "group.id": "x", "enable.auto.commit": False})
    reader.assign([TopicPartition(requests, 0, 0)])
    future = asker.request(requests, "hello", headers=[("mine", b"1")])
    request = wait_until(lambda: reader.poll(0.1), "the request comes")
    found = dict(request.headers())
    assert found["mine"] == b"1"
    assert found["kafka_replyTopic"] == f"{requests}.replies".encode()
    assert 0 < int(found["ttl-ms"]) <= 30_000
    assert len(found["kafka_correlationId"]) == 16
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(
        found["kafka_replyTopic"].decode(),
        b'"HELLO"',
        partition=int.from_bytes(found["kafka_replyPartition"], "big"),
        headers=[("spring_json_header_types", b"{}"), ("kafka_correlationId", found["kafka_correlationId"])],
    )
    assert producer.flush(PATIENCE_S) == 0
    assert future.result(PATIENCE_S).value == b'"HELLO"'
    reader.close()


def test_asking_goes_on_when_the_broker_is_back() -> None:
    with EmbeddedBroker(options=OPTIONS) as broker:
        servers = broker.bootstrap_servers
        create(servers, "prices")
        with skep.Asker(servers) as asker, skep.answer("prices", shout, bootstrap_servers=servers):
            assert asker.ask("prices", "a", timeout=PATIENCE_S) == b"A"
            broker.kill()
            with pytest.raises(skep.AskTimeout):
                asker.ask("prices", "b", timeout=0.2)
            future = asker.request("prices", "c", timeout=PATIENCE_S)
            broker.restart()
            assert future.result(PATIENCE_S).value == b"C"
            assert asker.ask("prices", "d", timeout=PATIENCE_S) == b"D"


def test_requests_fail_at_once_when_the_asker_cannot_go_on(
    servers: str, requests: str, asker: skep.Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = asker.request(requests, "x", timeout=PATIENCE_S)
    monkeypatch.setattr(asker, "_expire", lambda: 1 / 0)
    with pytest.raises(ClientError, match="the asker has ended: division by zero"):
        future.result(PATIENCE_S)
    with pytest.raises(ClientError, match="the asker is closed"):
        asker.ask(requests, "x", timeout=PATIENCE_S)
