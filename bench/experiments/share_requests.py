"""A ShareFetch and a ShareAcknowledge in the broker, without sockets: ``python -m bench.experiments.share_requests``.

The broker runs in this process, and requests go to its dispatcher as frames. Printed are microseconds of CPU time and
calls of functions, of Python and of C, for one request:

*poll* is a ShareFetch of 500 records that accepts the 500 before; *acknowledge* a ShareAcknowledge of one record;
*produce* a Produce request of one record, for comparison. Sending the records, system calls of the sockets and the
wakeups of clients are not part of it.
"""

import asyncio
import cProfile
import datetime
import pstats
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

from bench import frames
from bench.share_acknowledging import ACCEPT
from bench.share_topics import AT_ONCE, METADATA_VERSION, VALUE
from skep.app import Broker
from skep.broker.dispatch import Dispatcher
from skep.broker.services import Services
from skep.records.builder import NewRecord, build_batch
from skep.server.socket_server import SocketServer
from skep.wire import apis
from skep.wire.primitives import INT32

POLLS = 600
LOT = 1_500
TOPIC, GROUP, MEMBER = "shared", "experiment", str(uuid.uuid4())
VERSION = 2


class OpenBroker(Broker):
    """A broker whose dispatcher can be called."""

    def _socket_server(self, services: Services) -> SocketServer:
        self.dispatcher = Dispatcher(services)
        return super()._socket_server(services)

    async def ask(self, frame: bytes) -> Any:
        request = self.dispatcher.decode(memoryview(frame)[INT32.size :], "127.0.0.1")
        response = self.dispatcher.handle(request)
        return await response if isinstance(response, Awaitable) else response


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="skep-") as directory:
        broker = OpenBroker({"log.dirs": directory, "listeners": "PLAINTEXT://127.0.0.1:0"})
        await broker.start()
        try:
            topic_id = await filled(broker, (POLLS + 1) * AT_ONCE + 3 * LOT)
            produce = frames.produce(TOPIC, 0, frames.one_record_batch(len(VALUE)))
            await measure(broker, "produce", [produce] * LOT)
            await initialized(broker, topic_id)
            await broker.ask(share_fetch(topic_id, 0, None))
            await measure(broker, "poll", list(polls(topic_id)))
            epoch, first = POLLS + 1, POLLS * AT_ONCE
            await broker.ask(share_fetch(topic_id, epoch, (first - AT_ONCE, first - 1), LOT))
            await measure(broker, "acknowledge", list(acknowledgements(topic_id, epoch + 1, first)))
        finally:
            await broker.stop()


async def measure(broker: OpenBroker, what: str, requests: list[bytes]) -> None:
    some, rest = requests[: len(requests) // 4], requests[len(requests) // 4 :]
    profile = cProfile.Profile(time.thread_time)
    profile.enable()
    for one in some:
        await broker.ask(one)
        await asyncio.sleep(0)
    profile.disable()
    taken = []
    for one in rest:
        begin = time.thread_time_ns()
        await broker.ask(one)
        taken.append((time.thread_time_ns() - begin) / 1000)
        await asyncio.sleep(0)
    stats: Any = pstats.Stats(profile)
    calls, tenth = stats.total_calls / len(some), statistics.quantiles(taken, n=10)[0]
    print(f"{what:12} a tenth take {tenth:6.1f} us or less, median {statistics.median(taken):6.1f}, {calls:5.0f} calls")
    if what in sys.argv[1:]:
        print_functions(stats.stats, len(some))


def print_functions(found: dict[Any, Any], requests: int) -> None:
    """The functions that take the most time, for one request: calls, own time, and with what they call."""
    for (file, line, name), (_, calls, own_s, all_s, _) in sorted(found.items(), key=lambda one: -one[1][2])[:80]:
        where = f"{file.rpartition('/')[2]}:{line} {name}"
        print(f"{calls / requests:8.2f} {own_s / requests * 1e6:8.2f} us {all_s / requests * 1e6:8.2f} us  {where}")


def polls(topic_id: UUID) -> Iterator[bytes]:
    """Each accepts what the one before has got."""
    yield share_fetch(topic_id, 1, None)
    for epoch in range(2, POLLS + 1):
        yield share_fetch(topic_id, epoch, ((epoch - 2) * AT_ONCE, (epoch - 1) * AT_ONCE - 1))


def acknowledgements(topic_id: UUID, epoch: int, first: int) -> Iterator[bytes]:
    for number in range(LOT):
        body = {**named(epoch + number), "topics": topics(topic_id, (first + number, first + number))}
        yield frames.request(apis.SHARE_ACKNOWLEDGE, VERSION, {**body, "is_renew_ack": False})


def share_fetch(topic_id: UUID, epoch: int, accepted: tuple[int, int] | None, most: int = AT_ONCE) -> bytes:
    body = {
        **named(epoch),
        "max_wait": datetime.timedelta(seconds=0 if epoch == 0 else 5),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": most,
        "batch_size": most,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": topics(topic_id, accepted) if epoch == 0 or accepted else [],
        "forgotten_topics_data": [],
    }
    return frames.request(apis.SHARE_FETCH, VERSION, body)


def named(epoch: int) -> dict[str, Any]:
    return {"group_id": GROUP, "member_id": MEMBER, "share_session_epoch": epoch}


def topics(topic_id: UUID, accepted: tuple[int, int] | None) -> list[dict[str, Any]]:
    batches = []
    if accepted is not None:
        batches = [{"first_offset": accepted[0], "last_offset": accepted[1], "acknowledge_types": [ACCEPT]}]
    return [{"topic_id": topic_id, "partitions": [{"partition_index": 0, "acknowledgement_batches": batches}]}]


async def filled(broker: OpenBroker, records: int) -> UUID:
    wanted = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    body = {"topics": [wanted], "timeout": datetime.timedelta(seconds=30), "validate_only": False}
    await broker.ask(frames.request(apis.CREATE_TOPICS, 5, body))
    now_ms = time.time_ns() // 1_000_000
    batch = frames.produce(TOPIC, 0, build_batch([NewRecord(None, VALUE, now_ms)] * AT_ONCE))
    for _ in range(records // AT_ONCE):
        await broker.ask(batch)
    parts = await broker.ask(frames.request(apis.METADATA, METADATA_VERSION, {"topics": [{"name": TOPIC}]}))
    [described] = frames.body(apis.METADATA, METADATA_VERSION, bytes(INT32.size) + b"".join(parts)).topics
    return UUID(int=described.topic_id.int)


async def initialized(broker: OpenBroker, topic_id: UUID) -> None:
    key = {"key_type": 2, "coordinator_keys": [f"{GROUP}:AAAAAAAAAAAAAAAAAAAAAA:0"]}
    await broker.ask(frames.request(apis.FIND_COORDINATOR, 6, key))
    state = {"partition": 0, "state_epoch": 0, "start_offset": 0}
    body = {"group_id": GROUP, "topics": [{"topic_id": topic_id, "partitions": [state]}]}
    api = apis.INITIALIZE_SHARE_GROUP_STATE

    async def code() -> int:
        parts = await broker.ask(frames.request(api, 0, body))
        [topic] = frames.body(api, 0, bytes(INT32.size) + b"".join(parts)).results
        return int(topic.partitions[0].error_code)

    await until(code, 0)


async def until(ask: Callable[[], Awaitable[int]], wanted: int) -> None:
    give_up = time.monotonic() + 30
    while await ask() != wanted:
        if time.monotonic() > give_up:
            raise RuntimeError("the share state was not initialized")
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main())
