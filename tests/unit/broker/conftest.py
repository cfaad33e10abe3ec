"""A broker without sockets or logs: handlers on a real catalog, asked and answered in bytes."""

import asyncio
import functools
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kio.serial import entity_reader

from skep.base.config.broker_config import config_in_force, read_broker_config
from skep.base.config.current_config import CurrentConfig
from skep.base.errors import KafkaError
from skep.base.ids import BrokerId
from skep.base.loop.slicer import Slicer
from skep.base.loop.threads import Threads
from skep.broker.cluster.producer_ids import ProducerIds
from skep.broker.dispatch import HANDLERS
from skep.broker.fetch.fetch_sessions import FetchSessions
from skep.broker.request import Request
from skep.broker.services import Services
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import CLUSTER_DEFAULT, ClusterImage
from skep.metadata.model import BrokerRecord
from skep.metadata.sqlite.sqlite_store import SqliteStore
from skep.replication.partition.time_lookups import TimeLookups
from skep.wire import apis
from skep.wire.apis import Api
from skep.wire.codec import decode_request, encode_response, request_class, response_class
from skep.wire.entities.entity_fields import fields_of
from skep.wire.headers import response_header
from skep.wire.lazy_array import LazyArray
from tests.kio_entities import written
from tests.manual_clock import ManualClock


@functools.cache
def response_fields(api: Api) -> frozenset[tuple[str, ...]]:
    """The fields of the response in any served version, as paths such as ("topics", "partitions", "leader_id")."""

    def paths(entity: Any, parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for field in fields_of(entity):
            yield (path := (*parent, field.name))
            if field.nested is not None:
                yield from paths(field.nested, path)

    versions = range(api.oldest, api.newest + 1)
    return frozenset(path for version in versions for path in paths(response_class(api.key, version), ()))


def check_fields(api: Api, body: Mapping[str, Any], parent: tuple[str, ...] = ()) -> None:
    """The encoder leaves out fields that the version does not have, so it would not notice a misspelt one."""
    for name, value in body.items():
        path = (*parent, name)
        assert path in response_fields(api), f"no version of {api.name} has the field {'.'.join(path)}"
        for one in value if isinstance(value, list | tuple | LazyArray) else (value,):
            if isinstance(one, Mapping):
                check_fields(api, one, path)


class AdminBroker:
    """Broker 1 of a cluster, given its options as texts. ``ask`` goes through the bytes of the version asked in."""

    def __init__(self, directory: Path, texts: dict[str, str]) -> None:
        self._runner = asyncio.Runner()
        self._store = SqliteStore(directory / "metadata.sqlite")
        self._threads = Threads(1)
        clock, catalog = ManualClock(), Catalog(self._store)
        self.services = Services(
            current_config=CurrentConfig(read_broker_config(texts)),
            static_config=texts,
            node=BrokerRecord(BrokerId(1), "skep.example", 9092, "shed"),
            catalog=catalog,
            replicas=None,  # type: ignore[arg-type]  # no handler here touches a log
            clock=clock,
            threads=self._threads,
            time_lookups=TimeLookups(self._threads.searches),
            slicer=Slicer(clock),
            fetch_sessions=FetchSessions(clock, 0, 0),
            producer_ids=ProducerIds(catalog),
            groups=None,  # type: ignore[arg-type]  # nor a coordinator
            transactions=None,  # type: ignore[arg-type]
            share_groups=None,  # type: ignore[arg-type]
            share=None,  # type: ignore[arg-type]
            latest_offsets=None,  # type: ignore[arg-type]
            group_progress=None,  # type: ignore[arg-type]
            share_partitions=None,  # type: ignore[arg-type]
        )

    @property
    def image(self) -> ClusterImage:
        return self.services.catalog.image

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    def start(self) -> None:
        async def start() -> None:
            await self._store.open()
            await self.services.catalog.open()
            self.services.node = await self.services.catalog.register_broker(self.services.node)
            self.services.catalog.on_change(self._image_changed)

        self.run(start())

    def stop(self) -> None:
        async def stop() -> None:
            await self.services.catalog.close()
            await self._store.close()

        self.run(stop())
        self._runner.close()
        self._threads.shut_down()

    def _image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        overrides = new.broker_config(CLUSTER_DEFAULT), new.broker_config(self.services.node.id)
        self.services.current_config.value = config_in_force(self.services.static_config, *overrides)

    def ask(self, api: Api, version: int | None = None, **body: Any) -> Any:
        """The response as a client of this version (the newest unless told) reads it."""
        return self.run(self.ask_async(api, version, **body))

    async def ask_async(self, api: Api, version: int | None = None, **body: Any) -> Any:
        version = api.newest if version is None else version
        request = self.request(api, version, **body)
        handler = HANDLERS[api.key]
        try:
            answer = handler.handle(self.services, request)
            if isinstance(answer, Awaitable):
                answer = await answer
        except KafkaError as error:
            answer = handler.refuse(request, error.code)
        check_fields(api, answer)
        encoded = encode_response(api.key, version, request.correlation_id, answer)
        header = response_header(api.key, version, request.correlation_id)
        response, size = entity_reader(response_class(api.key, version))(memoryview(encoded).toreadonly(), len(header))
        assert len(header) + size == len(encoded)
        return response

    @staticmethod
    def request(api: Api, version: int, **body: Any) -> Request:
        frame = written(request_class(api.key, version), body)
        decoded = decode_request(api.key, version, memoryview(frame), 0)
        return Request(api, version, 7, "test", "192.0.2.1", decoded)

    def create(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> Any:
        """A topic made in the usual way; what its creation answered."""
        texts = [{"name": option, "value": text} for option, text in (configs or {}).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": texts}
        (result,) = self.ask(apis.CREATE_TOPICS, topics=[topic]).topics
        assert result.error_code == 0, result.error_message
        return result


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Any]:
    """Starts a broker with the options given, e.g. ``start_broker({"num.partitions": "3"})``."""
    started: list[AdminBroker] = []

    def start(texts: dict[str, str] | None = None) -> AdminBroker:
        broker = AdminBroker(tmp_path, texts or {})
        broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def broker(start_broker: Any) -> AdminBroker:
    started: AdminBroker = start_broker()
    return started
