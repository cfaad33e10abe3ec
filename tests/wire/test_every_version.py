"""Every API in every version served: what its handler answers can be encoded, and kio reads it to the last byte.

A handler answers in mappings with the fields of all versions, and the codec leaves out what a version lacks. So a
field with a wrong name would vanish in every version without anybody noticing: each name in a response has to be one
that some version served knows, at that very place.
"""

import asyncio
import dataclasses
import itertools
import struct
import typing
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kio.serial import entity_reader

from skep.base.clock import SystemClock
from skep.base.config.broker_config import read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.config.security_config import AUTHORIZERS
from skep.base.errors import ErrorCode
from skep.base.files.os_files import OsFiles
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.base.loop.threads import Threads
from skep.broker.cluster.coordinators import Coordinators
from skep.broker.cluster.producer_ids import ProducerIds
from skep.broker.dispatch import HANDLERS, Dispatcher
from skep.broker.fetch.fetch_sessions import FetchSessions
from skep.broker.request import Request
from skep.broker.services import Services
from skep.broker.share.share_partitions import SharePartitions
from skep.metadata.catalog import Catalog
from skep.metadata.model import BrokerRecord
from skep.metadata.sqlite.sqlite_store import SqliteStore
from skep.replication.partition.time_lookups import TimeLookups
from skep.replication.replica_manager import ReplicaManager
from skep.storage.directory.log_directory import LogDirectory
from skep.wire import apis
from skep.wire.apis import SERVED, Api
from skep.wire.codec import encode_response, request_class, response_class
from skep.wire.headers import response_header
from tests.kio_entities import written
from tests.wire.request_bodies import TOPIC, body_for

EVERY_VERSION = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in SERVED.values()
    for version in range(api.oldest, api.newest + 1)
]
CORRELATION_ID = 4711

NO_PLACE_FOR_A_CODE = {(apis.DESCRIBE_LOG_DIRS, 1), (apis.DESCRIBE_LOG_DIRS, 2)}
"""Versions whose response to a request for everything has a code only in what is found."""


class Served:
    """Handlers on real logs and a real catalog, without sockets."""

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner()
        self.numbers = itertools.count()
        self._threads = Threads(2)
        self._store = SqliteStore(directory / "metadata.sqlite")
        self._logs = LogDirectory(OsFiles(), str(directory), SystemClock())
        self.runner.run(self._start())

    async def _start(self) -> None:
        clock, self._supervisor, catalog = SystemClock(), Supervisor(), Catalog(self._store)
        self._logs.open()
        await self._store.open()
        await catalog.open()
        config = read_broker_config({"group.initial.rebalance.delay.ms": "0", "authorizer.class.name": AUTHORIZERS[0]})
        replicas = ReplicaManager(
            self._logs, catalog, config.topic_defaults, clock, self._threads.background, self._supervisor
        )
        await replicas.load()
        catalog.on_change(replicas.image_changed)
        slicer = Slicer(clock)
        coordinators = Coordinators(
            BrokerId(1), CurrentConfig(config), catalog, replicas, clock, self._threads.reads, self._supervisor, slicer
        )
        catalog.on_change(coordinators.image_changed)
        lookups = TimeLookups(self._threads.searches)
        shares = SharePartitions(
            replicas,
            coordinators.share_persister,
            lambda: catalog.image,
            CurrentConfig(config),
            clock,
            self._supervisor,
            lookups,
            self._threads.batches,
            slicer,
        )
        self.services = Services(
            current_config=CurrentConfig(config),
            static_config={},
            node=await catalog.register_broker(BrokerRecord(BrokerId(1), "skep.example", 9092)),
            catalog=catalog,
            replicas=replicas,
            clock=clock,
            threads=self._threads,
            time_lookups=lookups,
            slicer=slicer,
            fetch_sessions=FetchSessions(clock, 100, 1000),
            producer_ids=ProducerIds(catalog),
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            share_groups=coordinators.share_groups,
            share=coordinators.share,
            latest_offsets=coordinators.latest_offsets,
            group_progress=coordinators.group_progress,
            share_partitions=shares,
        )
        await catalog.create_topic(TOPIC, [[BrokerId(1)]] * 2, {"retention.ms": "-1"})

    def stop(self) -> None:
        async def stop() -> None:
            await self._supervisor.close()
            await self.services.catalog.close()
            await self._store.close()
            self._logs.close()

        self.runner.run(stop())
        self.runner.close()
        self._threads.shut_down()

    def decode(self, api: Api, version: int, body: Mapping[str, Any]) -> Request:
        """The request as it comes out of the frame that a client would send."""
        entity = request_class(api.key, version)
        header = struct.pack(">hhihs", api.key, version, CORRELATION_ID, 1, b"c")
        frame = header + (b"\0" if api.is_flexible(version) else b"") + written(entity, body)
        return Dispatcher(self.services).decode(memoryview(frame), "192.0.2.1")

    def answer(self, request: Request) -> Any:
        async def ask() -> Any:
            response = HANDLERS[request.api.key].handle(self.services, request)
            return await response if isinstance(response, Awaitable) else response

        return self.runner.run(asyncio.wait_for(ask(), 30))

    def ask(self, api: Api, version: int, **body: Any) -> Any:
        """The mapping that the handler answers, before it is encoded."""
        return self.answer(self.decode(api, version, body))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.stop()


def encoded(request: Request, response: Any) -> bytes:
    if isinstance(response, Mapping):
        return encode_response(request.api.key, request.version, request.correlation_id, response)
    return b"".join(part if isinstance(part, bytes | memoryview) else part.read(0, len(part)) for part in response)


def read_back(request: Request, answer: bytes) -> Any:
    """What kio reads; fails unless that is all of it."""
    header = response_header(request.api.key, request.version, CORRELATION_ID)
    assert answer.startswith(header)
    reader = entity_reader(response_class(request.api.key, request.version))
    response, size = reader(memoryview(answer).toreadonly(), len(header))
    assert len(header) + size == len(answer)
    return response


def codes_in(response: Any) -> set[ErrorCode]:
    """Every error code anywhere in a response."""
    if isinstance(response, tuple):
        return set().union(*map(codes_in, response))
    if not dataclasses.is_dataclass(response):
        return set()
    names = ("error_code", "partition_error_code")
    found = {getattr(response, name) for name in names if hasattr(response, name)}
    return found.union(*(codes_in(getattr(response, field.name)) for field in dataclasses.fields(response)))


def known_fields(entities: list[Any]) -> dict[str, list[Any]]:
    """The fields that any of these classes has, each with the classes that are nested in it."""
    known: dict[str, list[Any]] = {}
    for entity in entities:
        for name, hint in typing.get_type_hints(entity).items():
            nested = [part for part in flattened(hint) if dataclasses.is_dataclass(part)]
            known.setdefault(name, []).extend(nested)
    return known


def flattened(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from flattened(part)


def unknown_names(response: Any, entities: list[Any], path: str = "") -> list[str]:
    """Names in a response that no version has at their place."""
    known = known_fields(entities)
    unknown = []
    for name, value in response.items():
        if name not in known:
            unknown.append(f"{path}{name}")
            continue
        for part in [value] if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else []:
            if isinstance(part, Mapping):
                unknown += unknown_names(part, known[name], f"{path}{name}.")
    return unknown


def unknown_in(api: Api, response: Any) -> list[str]:
    if not isinstance(response, Mapping):
        return []
    versions = range(api.oldest, api.newest + 1)
    return unknown_names(response, [response_class(api.key, version) for version in versions])


def test_the_table_names_what_no_version_knows():
    response = {"error_code": ErrorCode.none, "topics": [{"name": "a", "nmae": "b", "partitions": [{"isr": ()}]}]}
    assert unknown_in(apis.METADATA, response) == ["topics.nmae", "topics.partitions.isr"]


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_full_response_is_read_back_to_the_last_byte(served, api, version):
    request = served.decode(api, version, body_for(served, api, version))
    answer = served.answer(request)
    assert unknown_in(api, answer) == []
    response = read_back(request, encoded(request, answer))
    # Each request asks for something that is there. A login needs a connection, which these requests do not have.
    if api not in (apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE):
        assert ErrorCode.none in codes_in(response)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_refusal_carries_its_code_and_is_read_back_to_the_last_byte(served, api, version):
    request = served.decode(api, version, body_for(served, api, version))
    code = ErrorCode.kafka_storage_error
    response = HANDLERS[api.key].refuse(request, code)
    assert unknown_in(api, response) == []
    codes = codes_in(read_back(request, encoded(request, response)))
    if (api, version) not in NO_PLACE_FOR_A_CODE:
        assert code in codes
        assert ErrorCode.none not in codes
