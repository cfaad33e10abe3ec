"""Quotas on a real broker: what throttled clients are told, that they keep to it, and that others do not notice.

Times are only bounded from below: a client cannot be served before its throttle time is over.
"""

import json
import select
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner, Result

from skep.base.errors import ErrorCode
from skep.cli.failures import CommandError, UsageError
from skep.cli.kafka import kafka_configs
from skep.cli.main import app
from skep.testing import EmbeddedBroker
from skep.wire import apis
from tests.raw_client import RawClient
from tests.raw_requests import Want, batch_of, fetch_body, partitions_in
from tests.scenario.share_member import ACCEPT, ShareMember, acquired, initialize_share_state
from tests.waiting import wait_until

KB = 1000
TOLERANCE = 0.95
"""Of a time: timers of an event loop are exact to a millisecond."""
NEVER = 1.0
"""A rate that mutes for longer than any test waits."""


def set_quota(client: RawClient, entity: dict[str, str | None], **quotas: float | None) -> None:
    """The entity by type and name; a quota of None is removed."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()],
    }
    [result] = client.ask(apis.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False).entries
    assert result.error_code is ErrorCode.none, result.error_message


@pytest.fixture
def client_id(client: RawClient) -> Iterator[str]:
    """A client id whose quotas end with the test."""
    name = f"throttled-{uuid.uuid4().hex[:8]}"
    yield name
    quotas = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate", "request_percentage"))
    set_quota(client, {"client-id": name}, **quotas)


@pytest.fixture
def throttled(skep_broker: EmbeddedBroker, client_id: str) -> Iterator[RawClient]:
    with RawClient(skep_broker.bootstrap_servers, client_id=client_id) as throttled:
        yield throttled


def throttle_ms(response: Any) -> int:
    return round(response.throttle_time.total_seconds() * 1000)


def has_response(client: RawClient, wait_s: float = 0.0) -> bool:
    return bool(select.select([client.socket], [], [], wait_s)[0])


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_producer_is_told_and_kept_to_its_rate(
    client: RawClient, throttled: RawClient, client_id: str, topic: str, version: int
) -> None:
    client.create_topic(topic)
    set_quota(client, {"client-id": client_id}, producer_byte_rate=200 * KB)
    batch, told_s, begun = batch_of(b"x" * 40 * KB), 0.0, time.monotonic()
    for _ in range(5):
        throttled.send_produce(topic, batch, version=version)
    for _ in range(5):
        response = throttled.receive()
        assert time.monotonic() - begun >= told_s * TOLERANCE
        told_s += throttle_ms(response) / 1000
    # 100 kB at once, then 40 kB each fifth of a second.
    assert 0 < told_s < 0.6
    assert time.monotonic() - begun >= (4 * 40 - 100) / 200 * TOLERANCE
    assert client.list_offset(topic, -1).offset == 5


def test_a_producer_without_acks_is_muted_too(
    client: RawClient, throttled: RawClient, client_id: str, topic: str
) -> None:
    client.create_topic(topic)
    set_quota(client, {"client-id": client_id}, producer_byte_rate=NEVER)
    for _ in range(3):
        throttled.send_produce(topic, batch_of(b"egg"), acks=0)
    wait_until(lambda: client.list_offset(topic, -1).offset == 1, "the first request to be handled")
    throttled.send(apis.API_VERSIONS, 0)
    assert not has_response(throttled, 0.1)
    assert client.list_offset(topic, -1).offset == 1
    set_quota(client, {"client-id": client_id}, producer_byte_rate=None)
    assert throttled.receive().error_code is ErrorCode.none
    assert client.list_offset(topic, -1).offset == 3


def test_a_change_applies_at_once_also_to_those_who_are_muted(
    client: RawClient, throttled: RawClient, client_id: str, topic: str
) -> None:
    client.create_topic(topic)
    set_quota(client, {"client-id": client_id}, producer_byte_rate=NEVER)
    throttled.send_produce(topic, batch_of(b"egg"))
    assert throttle_ms(throttled.receive()) > 60_000
    throttled.send_produce(topic, batch_of(b"egg"))
    assert not has_response(throttled, 0.1)
    # Nobody else notices.
    assert throttle_ms(client.ask(apis.METADATA, 9, topics=[])) == 0
    client.append(topic, batch_of(b"hen"))
    set_quota(client, {"client-id": client_id}, producer_byte_rate=1_000_000 * KB)
    assert throttle_ms(throttled.receive()) == 0


@pytest.mark.parametrize("version", [4, 7, 12])
def test_a_consumer_gets_what_its_rate_allows_and_all_of_it_in_the_end(
    client: RawClient, throttled: RawClient, client_id: str, topic: str, version: int
) -> None:
    client.create_topic(topic)
    for number in range(20):
        client.append(topic, batch_of(b"%04d" % number * 5 * KB))  # 20 kB each
    set_quota(client, {"client-id": client_id}, consumer_byte_rate=400 * KB)
    offset, told_s, begun, sizes = 0, 0.0, time.monotonic(), []
    while offset < 20:
        response = throttled.fetch(Want(topic, offset), version=version, min_bytes=10_000_000, max_wait_s=0.1)
        assert time.monotonic() - begun >= told_s * TOLERANCE
        told_s += throttle_ms(response) / 1000
        found = partitions_in(response).get((topic, 0))
        if found is not None and found.records:
            sizes.append(len(found.records))
            offset += len(found.records) // (20 * KB)
    # 200 kB may be used at once, and no response is larger than half of that.
    assert max(sizes) <= 110 * KB
    assert told_s > 0
    assert time.monotonic() - begun >= (sum(sizes[:-1]) - 200 * KB) / (400 * KB) * TOLERANCE


def test_a_consumer_over_its_quota_gets_an_empty_response_and_keeps_its_session(
    client: RawClient, throttled: RawClient, client_id: str, topic: str, skep_broker: EmbeddedBroker
) -> None:
    client.create_topic(topic)
    client.append(topic, batch_of(b"x" * 10 * KB))
    session = throttled.fetch(Want(topic, 0), session_epoch=0)
    assert session.session_id > 0
    set_quota(client, {"client-id": client_id}, consumer_byte_rate=NEVER)
    with RawClient(skep_broker.bootstrap_servers, client_id=client_id) as other:
        used = other.fetch(Want(topic, 0))
        # A batch larger than the quota of the window is delivered, and paid for.
        assert len(partitions_in(used)[topic, 0].records) > 10 * KB
        assert throttle_ms(used) > 60_000
    for epoch in (1, 2):
        options = {"session_id": session.session_id, "session_epoch": epoch, "max_wait_s": 60, "min_bytes": 10**6}
        response = throttled.fetch(version=12, **options)
        assert (response.error_code, response.responses, response.session_id) == (
            ErrorCode.none,
            (),
            session.session_id,
        )
        assert throttle_ms(response) > 60_000
        # Ends the muting, not the debt.
        set_quota(client, {"client-id": client_id}, consumer_byte_rate=NEVER + epoch)
    begun = throttled.fetch(Want(topic, 0), session_epoch=0)
    assert (begun.session_id, begun.responses) == (0, ())
    set_quota(client, {"client-id": client_id}, consumer_byte_rate=None)
    again = throttled.fetch(Want(topic, 0), session_id=session.session_id, session_epoch=3)
    assert again.error_code is ErrorCode.none
    assert throttle_ms(again) == 0


def test_a_member_of_a_share_group_over_its_quota_acknowledges_and_gets_nothing(
    client: RawClient, throttled: RawClient, client_id: str, topic: str
) -> None:
    topic_id = client.create_topic(topic)
    group = f"group-{client_id}"
    initialize_share_state(client, group, topic_id)
    for _ in range(2):
        client.append(topic, batch_of(b"x" * 10 * KB))
    set_quota(client, {"client-id": client_id}, consumer_byte_rate=NEVER)
    member = ShareMember(throttled, group, topic_id)
    first = member.fetch()
    assert acquired(first) == [(0, 0, 1)]
    assert throttle_ms(first) > 60_000
    set_quota(client, {"client-id": client_id}, consumer_byte_rate=NEVER + 1)  # ends the muting, not the debt
    second = member.fetch({0: [(0, 0, [ACCEPT])]})
    [[partition]] = [one.partitions for one in second.responses]
    assert partition.acknowledge_error_code == ErrorCode.none
    assert acquired(second) == []
    assert throttle_ms(second) > 60_000
    set_quota(client, {"client-id": client_id}, consumer_byte_rate=None)
    assert member.acquire() == [(1, 1, 1)]


def test_the_share_of_time_is_in_every_response(client: RawClient, throttled: RawClient, client_id: str) -> None:
    set_quota(client, {"client-id": client_id}, request_percentage=0.0001)
    assert throttle_ms(throttled.ask(apis.METADATA, 9, topics=None)) == 0
    for api, version, body in (
        (apis.METADATA, 9, {"topics": None}),
        (apis.LIST_GROUPS, 4, {}),
        (apis.FIND_COORDINATOR, 3, {"key": "g", "key_type": 0}),
    ):
        assert throttle_ms(throttled.ask(api, version, **body)) == 1000
        set_quota(client, {"client-id": client_id}, request_percentage=0.0001 + api.key / 1e9)  # ends the muting


def test_a_user_has_quotas_too(client: RawClient, topic: str, skep_broker: EmbeddedBroker) -> None:
    client.create_topic(topic)
    with RawClient(skep_broker.bootstrap_servers, client_id="any") as anonymous:
        set_quota(client, {"user": "ANONYMOUS", "client-id": "any"}, producer_byte_rate=NEVER)
        anonymous.send_produce(topic, batch_of(b"egg"))
        assert throttle_ms(anonymous.receive()) > 60_000
    set_quota(client, {"user": "ANONYMOUS", "client-id": "any"}, producer_byte_rate=None)


def connections_of(broker: EmbeddedBroker) -> int:
    return len(psutil.Process(broker.pid).net_connections("tcp"))


def test_a_muted_client_that_is_killed_is_forgotten_and_one_that_sends_on_is_not_listened_to(
    client: RawClient, client_id: str, topic: str, skep_broker: EmbeddedBroker
) -> None:
    client.create_topic(topic)
    set_quota(client, {"client-id": client_id}, producer_byte_rate=NEVER)
    count = connections_of(skep_broker)
    muted = [RawClient(skep_broker.bootstrap_servers, client_id=client_id) for _ in range(20)]
    rss = psutil.Process(skep_broker.pid).memory_info().rss
    for one in muted:
        one.send_produce(topic, batch_of(b"egg"))
        assert throttle_ms(one.receive()) > 60_000
    for one in muted[:10]:
        one.close()
    wait_until(lambda: connections_of(skep_broker) <= count + 10, "the closed connections to be forgotten")
    frame = muted[-1].encode(apis.PRODUCE, 9, {"transactional_id": None, "acks": 1, "timeout": now(), "topic_data": []})
    padding = bytes(1 << 20)
    large = (len(frame) + len(padding)).to_bytes(4, "big") + frame + padding
    for one in muted[10:]:
        one.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                one.socket.sendall(large)
    client.append(topic, batch_of(b"hen"))
    assert psutil.Process(skep_broker.pid).memory_info().rss - rss < 8 << 20
    for one in muted[10:]:
        one.close()
    set_quota(client, {"client-id": client_id}, producer_byte_rate=None)
    wait_until(lambda: connections_of(skep_broker) <= count, "all connections to be forgotten")


def now() -> Any:
    return fetch_body((), 12)["max_wait"]


def test_new_connections_of_an_address_wait_for_their_turn(skep_fresh_broker: EmbeddedBroker) -> None:
    address = skep_fresh_broker.bootstrap_servers
    with RawClient(address) as client:
        set_quota(client, {"ip": "127.0.0.1"}, connection_creation_rate=2)
        begun = time.monotonic()
        with RawClient(address) as first, RawClient(address) as second, RawClient(address) as third:
            for one in (third, second, first):
                one.send(apis.API_VERSIONS, 0)
            first.receive()
            second.receive()
            third.receive()
            assert time.monotonic() - begun >= 0.5 * TOLERANCE
            assert client.ask(apis.API_VERSIONS, 0).error_code is ErrorCode.none


def test_a_producer_of_librdkafka_keeps_to_its_rate_and_loses_nothing(
    client: RawClient, client_id: str, topic: str, skep_broker: EmbeddedBroker
) -> None:
    client.create_topic(topic)
    rate, size, count = 500 * KB, 10 * KB, 100
    set_quota(client, {"client-id": client_id}, producer_byte_rate=rate)
    events, delivered = [], []
    producer = Producer(
        {
            "bootstrap.servers": skep_broker.bootstrap_servers,
            "client.id": client_id,
            "batch.size": 50 * KB,
            "linger.ms": 0,
            "throttle_cb": events.append,
        }
    )
    begun = time.monotonic()
    for number in range(count):
        producer.produce(
            topic, b"%d" % number * (size // len(b"%d" % number)), on_delivery=lambda *it: delivered.append(it)
        )
    while len(delivered) < count:
        producer.poll(0.1)
    elapsed_s = time.monotonic() - begun
    producer.poll(0)
    assert [error for error, _ in delivered if error is not None] == []
    assert client.list_offset(topic, -1).offset == count
    # All but what may be used at once, and the last request.
    assert elapsed_s >= (count * size * 0.95 - rate / 2 - 60 * KB) / rate * TOLERANCE
    assert max(event.throttle_time for event in events) > 0


def test_a_consumer_of_librdkafka_keeps_to_its_rate_and_misses_nothing(
    client: RawClient, client_id: str, topic: str, skep_broker: EmbeddedBroker
) -> None:
    client.create_topic(topic)
    rate, size, count = 500 * KB, 50 * KB, 20
    for number in range(count):
        client.append(topic, batch_of(b"%02d" % number * (size // 2)))
    set_quota(client, {"client-id": client_id}, consumer_byte_rate=rate)
    events: list[Any] = []
    consumer = Consumer(
        {
            "bootstrap.servers": skep_broker.bootstrap_servers,
            "client.id": client_id,
            "group.id": client_id,
            "throttle_cb": events.append,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    begun, values = time.monotonic(), []
    while len(values) < count:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value()[:2])
    elapsed_s = time.monotonic() - begun
    consumer.close()
    assert values == [b"%02d" % number for number in range(count)]
    # All but what may be used at once, and the last response.
    assert elapsed_s >= (count * size - rate / 2 - rate / 2) / rate * TOLERANCE
    assert max((event.throttle_time for event in events), default=0) > 0


# The commands.


@pytest.fixture
def bootstrap(skep_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SKEP_BOOTSTRAP", skep_broker.bootstrap_servers)
    return skep_broker.bootstrap_servers


def skep(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def done(*arguments: str) -> str:
    result = skep(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_quotas_are_set_listed_and_removed_on_the_command_line(bootstrap: str) -> None:
    whom = ("--user", "alice", "--default-client-id")
    told = done("quotas", "set", *whom, "producer_byte_rate=1MB/s", "request_percentage=25%")
    assert told == (
        "Set producer_byte_rate of user alice, default client-id to 1.00 MB/s.\n"
        "Set request_percentage of user alice, default client-id to 25 %.\n"
    )
    rows = [line.split() for line in done("quotas", "list", "--user", "alice").splitlines()]
    assert rows[1] == ["alice", "<default>", "producer_byte_rate", "1.00", "MB/s"]
    listed = json.loads(done("quotas", "list", "--user", "alice", "--json"))
    values = {"producer_byte_rate": 1_000_000.0, "request_percentage": 25.0}
    assert listed == [{"entity": {"user": "alice", "client-id": None}, "quotas": values}]
    assert "request_percentage" in done("quotas", "remove", *whom, "request_percentage")
    done("quotas", "remove", *whom)
    assert json.loads(done("quotas", "list", "--user", "alice", "--json")) == []
    assert "no quotas for user alice" in skep("quotas", "list", "--user", "alice").stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("set", "--user", "a", "producer_byte_rate=-5"), "producer_byte_rate must be greater than 0, not -5"),
        (("set", "--user", "a", "producer_byte_rate=0.5"), "cannot be a fractional value"),
        (("set", "--ip", "no such host", "connection_creation_rate=1"), "is not a valid IP or resolvable host"),
        (("set", "--user", "", "producer_byte_rate=1"), "Empty user not supported"),
        (("set", "--user", "a", "producer_bytes=1"), "producer_bytes is not a quota"),
        (("set", "producer_byte_rate=1"), "say for whom"),
        (("set", "--user", "a", "--ip", "10.0.0.1", "producer_byte_rate=1"), "use --ip alone"),
        (("set", "--user", "a", "--default-user", "producer_byte_rate=1"), "cannot be used together"),
        (("remove", "--user", "nobody"), "there are no quotas for user nobody"),
        (("remove", "--user", "nobody", "producer_byte_rate"), "producer_byte_rate is not set for user nobody"),
    ],
)
def test_bad_commands_get_one_clear_line(bootstrap: str, arguments: tuple[str, ...], told: str) -> None:
    result = skep("quotas", *arguments)
    assert isinstance(result.exception, CommandError | UsageError), result.output
    assert told in str(result.exception)
    assert "\n" not in str(result.exception)


def kafka_configs_of(capfdbinary: Any, bootstrap: str, *flags: str) -> list[str]:
    kafka_configs.execute(["--bootstrap-server", bootstrap, *flags])
    kafka_configs.output.flush()
    return capfdbinary.readouterr().out.decode().splitlines()


def test_kafka_configs_sets_describes_and_deletes_quotas(
    bootstrap: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    entities = ["--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients", "--entity-default"]
    configs = "producer_byte_rate=1024,consumer_byte_rate=2048"
    told = kafka_configs_of(capfdbinary, bootstrap, "--alter", *entities, "--add-config", configs)
    assert told == ["Completed updating config for user bob."]
    row = (
        "Quota configs for user-principal 'bob', the default client-id are "
        "consumer_byte_rate=2048.0, producer_byte_rate=1024.0"
    )
    assert kafka_configs_of(capfdbinary, bootstrap, "--describe", *entities) == [row]
    both = ["--entity-type", "users", "--entity-type", "clients"]
    assert row in kafka_configs_of(capfdbinary, bootstrap, "--describe", *both)
    assert row not in kafka_configs_of(capfdbinary, bootstrap, "--describe", "--user", "bob")
    deleted = ["--delete-config", "producer_byte_rate,consumer_byte_rate"]
    kafka_configs_of(capfdbinary, bootstrap, "--alter", *entities, *deleted)
    assert kafka_configs_of(capfdbinary, bootstrap, "--describe", *entities) == []
    told = kafka_configs_of(
        capfdbinary, bootstrap, "--alter", "--ip-defaults", "--add-config", "connection_creation_rate=1000000"
    )
    assert told == ["Completed updating default config for ips in the cluster."]
    kafka_configs_of(capfdbinary, bootstrap, "--alter", "--ip-defaults", "--delete-config", "connection_creation_rate")
