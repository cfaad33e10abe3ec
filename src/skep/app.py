"""Composition: options -> stores -> services -> server. What starts in which order, and stops in the reverse.

Start                                              Stop
1. the data directory: lock, what lies in it       6. the listener: nobody new, connections closed; the broker's
2. threads                                            registration goes with the session of the store
3. the metadata store, the catalog                 5. housekeeping, then syncs that are under way
4. the logs: recovered if the last stop was not    4. deletions in the background
   clean                                           3. the catalog, the store
5. housekeeping                                    2. threads, when they have done what they were given
6. the port is bound, the broker registered, then  1. the data directory: logs synced, checkpoints and the clean-stop
   connections are served                             marker written, unlocked
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from skep.base.broker_config import BrokerConfig, read_broker_config
from skep.base.clock import SystemClock
from skep.base.errors import OptionError, StartupError, StorageError, StoreUnavailable
from skep.base.ids import BrokerId
from skep.base.os_files import OsFiles
from skep.base.tasks import Supervisor
from skep.broker.coordinators import Coordinators
from skep.broker.dispatch import Dispatcher
from skep.broker.fetch_sessions import FetchSessions
from skep.broker.producer_ids import ProducerIds
from skep.broker.services import Services
from skep.metadata.catalog import Catalog
from skep.metadata.image import CLUSTER_DEFAULT, ClusterImage
from skep.metadata.model import BrokerRecord
from skep.metadata.sqlite import SqliteStore
from skep.replication.housekeeping import Housekeeping
from skep.replication.replicas import Replicas
from skep.server.listener import Listener
from skep.storage.directory import LogDirectory

logger = logging.getLogger(__name__)

METADATA_FILE = "metadata.sqlite"


class Broker:
    """A broker in this process. ``start`` either brings all of it up or raises and leaves nothing behind."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.config: BrokerConfig = read_broker_config(texts)
        self._texts = dict(texts)
        self._stops = contextlib.AsyncExitStack()
        self.node = BrokerRecord(BrokerId(self.config.node_id), "", 0)
        self.cluster_id = ""

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops what was started, last first. Whatever one of them raises, the others stop all the same."""
        await self._stops.aclose()

    async def _start(self) -> None:
        config, clock, supervisor = self.config, SystemClock(), Supervisor()
        files = OsFiles(_max_open_files(config))
        directory = LogDirectory(files, os.path.abspath(config.log_dirs), clock, config.max_producers_per_partition)
        directory.open()
        self._on_stop(lambda: asyncio.to_thread(directory.close))
        executor = ThreadPoolExecutor(config.background_threads, thread_name_prefix="skep")
        self._on_stop(lambda: asyncio.to_thread(executor.shutdown))

        store = SqliteStore(Path(directory.path) / METADATA_FILE)
        await store.open()
        self._on_stop(store.close)
        catalog = Catalog(store)
        await catalog.open()
        self._on_stop(catalog.close)
        self.cluster_id = catalog.image.cluster_id
        self.config = config = self._config_in_force(catalog.image)

        self._on_stop(supervisor.close)
        replicas = Replicas(directory, catalog, config.topic_defaults, clock, executor, supervisor)
        await replicas.load()
        self._on_stop(replicas.stop)
        housekeeping = Housekeeping(replicas, directory, config, clock)
        self._on_stop(housekeeping.stop)
        housekeeping.start()

        node_id = BrokerId(config.node_id)
        coordinators = Coordinators(node_id, lambda: self.config, catalog, replicas, clock, executor, supervisor)
        self._on_stop(lambda: _now(coordinators.stop))
        coordinators.start()

        services = Services(
            config=config,
            static_config=self._texts,
            node=self.node,
            catalog=catalog,
            replicas=replicas,
            clock=clock,
            executor=executor,
            fetch_sessions=FetchSessions(
                clock, config.max_incremental_fetch_session_cache_slots, config.max_fetch_session_partitions
            ),
            producer_ids=ProducerIds(catalog),
            groups=coordinators.groups,
            transactions=coordinators.transactions,
        )
        listener = Listener(
            Dispatcher(services),
            clock,
            executor,
            max_request_bytes=config.socket_request_max_bytes,
            queued_max_request_bytes=config.queued_max_request_bytes,
            max_inflight_requests=config.max_inflight_requests,
        )
        catalog.on_change(lambda old, new: self._image_changed(old, new, services, listener, housekeeping))
        catalog.on_change(coordinators.image_changed)
        self._apply(services, listener, housekeeping)
        await self._open_for_clients(listener, services)

    async def _open_for_clients(self, listener: Listener, services: Services) -> None:
        host, port = parse_address("listeners", self.config.listeners)
        port = await listener.bind(host, port)
        self._on_stop(listener.stop)
        advertised = self.config.advertised_listeners
        if advertised:
            told_host, told_port = parse_address("advertised.listeners", advertised)
            host, port = told_host, told_port or port
        elif host in ("", "0.0.0.0", "::"):
            host = _host_name()
        rack = self.config.broker_rack or None
        record = BrokerRecord(BrokerId(self.config.node_id), host, port, rack)
        self.node = services.node = await services.catalog.register_broker(record)
        await listener.serve()

    def _on_stop(self, stop: Callable[[], Awaitable[None]]) -> None:
        self._stops.push_async_callback(stop)

    # Options that change at run time.

    def _config_in_force(self, image: ClusterImage) -> BrokerConfig:
        """What was given at start, under the overrides of the whole cluster, under those of this broker."""
        overrides = {**image.broker_config(CLUSTER_DEFAULT), **image.broker_config(BrokerId(self.config.node_id))}
        return read_broker_config({**self._texts, **overrides})

    def _image_changed(
        self, old: ClusterImage, new: ClusterImage, services: Services, listener: Listener, housekeeping: Housekeeping
    ) -> None:
        if new.broker_configs is not old.broker_configs:
            self.config = services.config = self._config_in_force(new)
            self._apply(services, listener, housekeeping)
            services.replicas.defaults_changed(self.config.topic_defaults)
        services.replicas.image_changed(old, new)

    def _apply(self, services: Services, listener: Listener, housekeeping: Housekeeping) -> None:
        listener.max_connections = self.config.max_connections
        listener.max_idle_ms = self.config.connections_max_idle_ms
        services.fetch_sessions.max_sessions = self.config.max_incremental_fetch_session_cache_slots
        services.fetch_sessions.max_partitions = self.config.max_fetch_session_partitions
        housekeeping.config = self.config


async def _now(stop: Callable[[], None]) -> None:
    stop()


def parse_address(option: str, text: str) -> tuple[str, int]:
    """``host:port``, also with Kafka's ``PLAINTEXT://`` in front and with an IPv6 address in brackets."""
    address = text.removeprefix("PLAINTEXT://")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or "://" in host or "," in host:
        raise OptionError(f"{option}={text}: expected one host:port, e.g. 127.0.0.1:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _host_name() -> str:
    import socket

    return socket.gethostname()


def _max_open_files(config: BrokerConfig) -> int:
    """Half of what the process may open is for segments; connections share the other half."""
    if config.max_open_files:
        return config.max_open_files
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return max(64, min(soft // 2, 100_000))


async def serve(texts: Mapping[str, str], *, stop_at_eof: bool) -> None:
    """Runs a broker until SIGTERM or SIGINT; with ``stop_at_eof`` also until its standard input ends."""
    broker = Broker(texts)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.set)
    if stop_at_eof:
        loop.add_reader(sys.stdin.fileno(), stopping.set)
    await broker.start()
    try:
        _say_ready(broker)
        await stopping.wait()
    finally:
        await broker.stop()


def run(texts: Mapping[str, str], *, stop_at_eof: bool = False) -> int:
    """The whole life of a broker process: exit code 0 after a clean stop, 2 when it cannot start."""
    import uvloop

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, level=logging.INFO)
    try:
        uvloop.run(serve(texts, stop_at_eof=stop_at_eof))
    except (OptionError, StartupError, StorageError, StoreUnavailable) as error:
        print(f"skep: {error}", file=sys.stderr)
        return 2
    return 0


def _say_ready(broker: Broker) -> None:
    node, data_dir = broker.node, broker.config.log_dirs
    print(f"skep: broker {node.id} ready on {node.host}:{node.port}, data in {data_dir}", flush=True)
