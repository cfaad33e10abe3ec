"""Composition: options -> stores -> services -> server. Parts stop in the reverse order of their start.

Start                                              Stop
1. the data directory: lock, read                  7. hand over the leaderships, while everything is still served
2. threads                                         6. the listener: accept no more, close connections
3. the metadata store, the catalog                 5. the controller, the fetchers, the coordinators, housekeeping, then
4. the logs: recover them after an unclean stop       syncs in progress
5. housekeeping, the coordinators                  4. deletions in the background
6. leave ISRs if data may be lost; bind the port,  3. the catalog, the store, and with it the registration
   register the broker; lead and follow            2. threads, after their remaining work
   partitions; serve connections                   1. the data directory: sync logs, write checkpoints and the
7. the controller may be elected                      clean-stop marker, unlock
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from skep.base.addresses import show_address
from skep.base.clock import SystemClock
from skep.base.config.broker_config import BrokerConfig, config_in_force, read_broker_config
from skep.base.config.coordinator_config import SHARE_GROUP_STATE
from skep.base.config.current_config import CurrentConfig
from skep.base.config.listeners import read_listeners
from skep.base.errors import OptionError, StartupError, StorageError, StoreUnavailable
from skep.base.files.os_files import OsFiles
from skep.base.ids import BrokerId, Offset, TopicPartition
from skep.base.log_queue import configure_logging, set_log_level
from skep.base.loop.garbage import CHECK_MS, Garbage
from skep.base.loop.loop_watch import LoopWatch
from skep.base.loop.slicer import Slicer
from skep.base.loop.supervisor import Supervisor
from skep.base.loop.threads import Threads, share_interpreter
from skep.broker.cluster.coordinators import Coordinators
from skep.broker.cluster.membership import Membership
from skep.broker.cluster.producer_ids import ProducerIds
from skep.broker.dispatch import Dispatcher
from skep.broker.fetch.fetch_sessions import FetchSessions
from skep.broker.quota_gate import QuotaGate
from skep.broker.services import Services
from skep.broker.share.dead_letter_topic import NEW_TOPIC
from skep.broker.share.dead_letter_writer import DeadLetterContext, DeadLetterWriter
from skep.broker.share.share_partitions import SharePartitions
from skep.broker.topics import internal_topics
from skep.broker.topics.acknowledged_deletion import AcknowledgedDeletion
from skep.broker.topics.topic_creation import auto_create
from skep.broker.worker.held_topics import HeldTopics
from skep.broker.worker.worker_process import WORKER_DIRECTORY, WorkerProcess
from skep.controller.controller import Controller
from skep.metadata.catalog import Catalog
from skep.metadata.cluster_image import CLUSTER_DEFAULT, ClusterImage
from skep.metadata.model import BrokerRecord, PartitionRecord
from skep.metadata.store_choice import store_for
from skep.replication.follower.fetcher_manager import FetcherManager
from skep.replication.housekeeping import Housekeeping
from skep.replication.isr_updater import IsrUpdater
from skep.replication.leader_inquiry import LeaderInquiry
from skep.replication.log_end_reporter import LogEndReporter
from skep.replication.partition.leadership_lease import RENEWALS_PER_BOUND, LeadershipLease
from skep.replication.partition.partition import Partition
from skep.replication.partition.time_lookups import TimeLookups
from skep.replication.replica_manager import ReplicaManager
from skep.replication.upkeep.kernel_compilation import compile_missing
from skep.security.inter_broker import (
    check_own_rights,
    inter_broker_properties,
    inter_broker_security,
    renew_certificate,
    worker_properties,
)
from skep.security.security import Security
from skep.server.listener_set import ListenerSet
from skep.server.socket_server import SocketServer
from skep.storage.directory.log_directory import LogDirectory

logger = logging.getLogger(__name__)

CONTROLLED_SHUTDOWN_S = 15.0
CERTIFICATE_CHECK_MS, DAY_MS = 5_000, 86_400_000
OTHER_DESCRIPTORS = 64
"""For the store, other brokers, the compaction helper, and files that threads write or sync."""


class Broker:
    """A broker in this process. ``start`` starts all parts, or raises and stops those that were started."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._current_config = CurrentConfig(read_broker_config(texts))
        self._texts = dict(texts)
        self._listeners = read_listeners(self.config)
        inter_broker = self._listeners.inter_broker
        self._peer_properties = inter_broker_properties(self.config, inter_broker)
        self._peer_security = inter_broker_security(self._peer_properties, inter_broker)
        self._stops = contextlib.AsyncExitStack()
        self._node_id = BrokerId(self.config.node_id)
        self.node = BrokerRecord(self._node_id, "", 0)
        self.cluster_id = ""
        self.must_stop = asyncio.Event()
        self._has_joined = False

    @property
    def config(self) -> BrokerConfig:
        """The options in force."""
        return self._current_config.value

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops all started parts, the last one first. An error in one does not keep the others from stopping."""
        await self._stops.aclose()

    async def _start(self) -> None:
        await self._open_stores()
        self._replicate()
        coordinators = self._coordinators = Coordinators(
            self._node_id,
            self._current_config,
            self._catalog,
            self._replicas,
            self._clock,
            self._threads.reads,
            self._supervisor,
            self._slicer,
            self._peer_security,
        )
        self._on_stop(lambda: _synchronously(coordinators.stop))
        services = self._services(coordinators)
        self._security: Security = services.security
        self._on_stop(lambda: asyncio.to_thread(services.security.close))
        self._write_dead_letters(services)
        coordinators.share_persister.create_topic = lambda: internal_topics.ensure(services, SHARE_GROUP_STATE)
        coordinators.fenced_members.end_here = lambda group_id, members: self._slicer.finish(
            services.share_sessions.end_members(group_id, members)
        )
        server = self._socket_server(services)
        self._listener_set = ListenerSet(server, self._listeners, self._security)
        self._listener_set.on_renewed(
            self._listeners.inter_broker.name, lambda: renew_certificate(self._peer_security, self._peer_properties)
        )
        self._catalog.on_change(lambda old, new: self._image_changed(old, new, services, server))
        self._catalog.on_change(self._following.image_changed)
        self._catalog.on_change(coordinators.image_changed)
        self._catalog.on_change(lambda old, new: self._dead_letters.may_have_changed())
        self._apply(services, server)
        # Changes of the image while the logs were recovered were not passed on.
        self._image_changed(self._loaded, self._catalog.image, services, server)
        await self._membership.prepare_restart(
            self._replicas.may_have_lost, has_new_disk=self._directory.may_have_lost_synced_data
        )
        self._directory.losses_settled()
        uses_sasl = any(one.uses_sasl for one in self._listeners.all)
        await self._security.start(self._catalog, self._supervisor, uses_sasl=uses_sasl)
        check_own_rights(self.config, self._listeners.inter_broker, self._peer_properties, self._security)
        await self._join(server, services)
        # Before the logs are opened, which may take long: an election may wait for these reports.
        self._supervisor.repeat(lambda: 0, self._log_end_reporter.report)
        if (opening := self._replicas.take_roles()) is not None:
            await opening
        coordinators.start()
        await server.serve()
        # Stops while the port is still served: it finishes what it is doing.
        self._on_stop(self._worker.stop)
        HeldTopics(
            self._node_id,
            self._worker,
            lambda: self._catalog.image,
            lambda: self.config.topic_defaults,
            self._supervisor,
        )
        self._on_stop(self._dead_letters.stop)
        self._start_background(services)
        # A full garbage collection visits every object at once, which takes a tenth of a second with ten thousand open
        # partitions. Frozen objects are not visited.
        self._replicas.on_many_opened = self._garbage.freeze

    async def _open_stores(self) -> None:
        """Opens the data directory, the metadata store and the logs."""
        config = self.config
        self._clock, self._supervisor = SystemClock(), Supervisor()
        self._slicer = Slicer(self._clock)
        self._garbage = Garbage(self._clock, time.process_time)
        self._shares = _descriptors(config)
        files = OsFiles(self._shares.segments)
        path = os.path.abspath(config.log_dirs)
        directory = self._directory = LogDirectory(files, path, self._clock, config.max_producers_per_partition)
        directory.open()
        high_watermarks: Callable[[], dict[TopicPartition, Offset]] = dict
        self._on_stop(lambda: asyncio.to_thread(self._close_directory, high_watermarks()))
        threads = self._threads = Threads(config.background_threads)
        self._on_stop(lambda: asyncio.to_thread(threads.shut_down))

        store, lingering_s = store_for(config.cluster, directory.path)
        await store.open()
        self._on_stop(store.close)
        self._catalog = Catalog(store, self._node_id, self._listeners.inter_broker.name)
        await self._catalog.open()
        self._on_stop(self._catalog.close)
        self.cluster_id = self._catalog.image.cluster_id
        directory.check_identity(self.cluster_id, self._node_id)
        self._current_config.value = config = self._config_in_force(self._catalog.image)
        threads.resize(config.background_threads)
        self._membership = Membership(store, self._catalog, self._node_id, lingering_s)
        self._loop_watch = LoopWatch(
            config.loop_delay_warn_ms / 1000,
            config.cluster.zookeeper_session_timeout_ms / 1000,
            self._membership.loop_hung,
        )

        self._on_stop(self._supervisor.close)
        self._replicas = ReplicaManager(
            directory,
            self._catalog,
            config.topic_defaults,
            self._clock,
            threads.background,
            self._supervisor,
            self._node_id,
            syncs=threads.syncs,
            slicer=self._slicer,
        )
        self._loaded = self._catalog.image
        await self._replicas.load()
        high_watermarks = self._replicas.high_watermarks
        self._on_stop(self._replicas.stop)
        self._housekeeping = Housekeeping(self._replicas, directory, self._current_config, self._clock)
        self._on_stop(self._housekeeping.stop)
        self._housekeeping.start()

    def _close_directory(self, high_watermarks: dict[TopicPartition, Offset]) -> None:
        # A start that fails, say because the port is in use, leaves nothing behind.
        if self._has_joined or not self._directory.discard_if_new():
            self._directory.close(high_watermarks)

    def _replicate(self) -> None:
        """Starts what replicates partitions as soon as they have roles."""
        membership, catalog, replicas = self._membership, self._catalog, self._replicas
        self._following = FetcherManager(
            lambda: membership.node,
            lambda: catalog.image,
            self._current_config,
            self._clock,
            replicas.quiesce,
            self._peer_security,
        )
        self._on_stop(self._following.stop)
        leader_inquiry = LeaderInquiry(self._node_id, catalog, self._peer_security)
        self._on_stop(leader_inquiry.close)
        isr_updater = IsrUpdater(self._node_id, catalog, self._current_config, self._clock, leader_inquiry.ask)
        self._supervisor.repeat(lambda: 0, isr_updater.run_pending_checks)
        self._supervisor.repeat(
            lambda: self.config.cluster.replica_lag_time_max_ms // 2,
            lambda: isr_updater.check_lag(replicas.open_partitions()),
        )
        self._log_end_reporter = LogEndReporter(lambda: membership.node, catalog)
        replicas.on_role_change = self._role_changed
        replicas.on_follower_caught_up = isr_updater.check_soon
        self._keep_lease(isr_updater)

    def _keep_lease(self, isr_updater: IsrUpdater) -> None:
        membership, replicas = self._membership, self._replicas
        lease = replicas.lease = LeadershipLease(self._clock, self.config.cluster.zookeeper_session_timeout_ms / 1000)

        async def tick() -> None:
            lease.tick()

        async def renew() -> None:
            # No other broker can take over from a single one.
            if membership.others():
                await lease.renew(lambda: self._catalog.is_registered(membership.node))

        repeat, interval_ms = self._supervisor.repeat, max(1, int(lease.interval_s * 1000))
        repeat(lambda: interval_ms, tick)
        repeat(lambda: interval_ms, renew)
        repeat(lambda: interval_ms * RENEWALS_PER_BOUND, lambda: isr_updater.check_leases(replicas.open_partitions()))

    def _role_changed(self, partition: Partition, record: PartitionRecord | None) -> None:
        self._following.role_changed(partition, record)
        self._log_end_reporter.role_changed(partition, record)
        self._coordinators.role_changed(partition, record)
        self._share_partitions.role_changed(partition, record)

    def _services(self, coordinators: Coordinators) -> Services:
        config = self.config
        self._time_lookups = TimeLookups(self._threads.searches)
        self._on_stop(lambda: _synchronously(self._time_lookups.stop))
        self._share_partitions = SharePartitions(
            self._replicas,
            coordinators.share_persister,
            lambda: self._catalog.image,
            self._current_config,
            self._clock,
            self._supervisor,
            self._time_lookups,
            self._threads.batches,
            self._slicer,
        )
        self._on_stop(lambda: _synchronously(self._share_partitions.stop))
        self._worker = WorkerProcess(self._clock, self._worker_settings)
        return Services(
            current_config=self._current_config,
            static_config=self._texts,
            node=self.node,
            catalog=self._catalog,
            replicas=self._replicas,
            clock=self._clock,
            threads=self._threads,
            time_lookups=self._time_lookups,
            slicer=self._slicer,
            fetch_sessions=FetchSessions(
                self._clock, config.max_incremental_fetch_session_cache_slots, config.max_fetch_session_partitions
            ),
            producer_ids=ProducerIds(self._catalog),
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            share_groups=coordinators.share_groups,
            share=coordinators.share,
            latest_offsets=coordinators.latest_offsets,
            group_progress=coordinators.group_progress,
            share_partitions=self._share_partitions,
        )

    def _write_dead_letters(self, services: Services) -> None:
        context = DeadLetterContext(
            self._worker,
            lambda: self._catalog.image,
            self._current_config,
            self._share_partitions.options,
            self._replicas.config_of,
            lambda name: auto_create(services, name, NEW_TOPIC),
            self._supervisor,
        )
        self._dead_letters = self._share_partitions.dead_letters = DeadLetterWriter(context)

    def _worker_settings(self) -> dict[str, Any]:
        return {
            "bootstrap": show_address(self.node.host, self.node.port),
            "security": worker_properties(self.config, self._listeners.inter_broker, self._peer_properties),
            "directory": os.path.join(self._directory.path, WORKER_DIRECTORY),
            "node_id": self._node_id,
            "log_format": self.config.log_format,
            "log_level": self.config.log_level,
        }

    def _socket_server(self, services: Services) -> SocketServer:
        dispatcher, quotas = Dispatcher(services), services.security.quotas
        server = SocketServer(
            dispatcher,
            services.security.access,
            self._clock,
            self._slicer,
            self._threads.reads,
            max_request_bytes=self.config.socket_request_max_bytes,
            queued_max_request_bytes=self.config.queued_max_request_bytes,
            queued_max_response_bytes=self.config.queued_max_response_bytes,
            max_inflight_requests=self.config.max_inflight_requests,
        )
        gate = QuotaGate(dispatcher, quotas, self._clock)

        def quotas_changed() -> None:
            server.handle = gate.handle if quotas.limits_clients else dispatcher.handle
            # Later: requests are not to be handled in the midst of a change of the image.
            asyncio.get_running_loop().call_soon(server.unmute_all)

        quotas.on_change = quotas_changed
        server.connection_wait_s = quotas.connection_wait_s
        return server

    def _start_background(self, services: Services) -> None:
        """Starts the controller, the renewal of the registration, and the background checks."""
        controller = Controller(self._catalog, self._node_id, self._current_config, self._clock, self._slicer)
        self._catalog.on_change(controller.image_changed)
        self._on_stop(controller.stop)
        controller.start()
        self._supervisor.spawn("membership", self._stay(controller, services))
        self._on_stop(lambda: _synchronously(self._loop_watch.stop))
        self._loop_watch.start()
        self._on_stop(lambda: _synchronously(self._garbage.stop))
        self._garbage.start()
        self._supervisor.repeat(lambda: CHECK_MS, self._garbage.check)
        self._supervisor.repeat(lambda: 100, services.producer_ids.keep_reserve)
        deletion = AcknowledgedDeletion(
            self._replicas,
            self._catalog,
            self._share_partitions,
            services.group_progress,
            self._current_config,
            self._clock,
            self._slicer,
        )
        self._supervisor.repeat(deletion.interval_ms, deletion.check)
        self._supervisor.repeat(lambda: CERTIFICATE_CHECK_MS, self._listener_set.check_certificates)
        self._supervisor.repeat(lambda: DAY_MS, self._listener_set.warn_of_expiry)
        self._housekeeping.on_disk_checked = self._disk_checked
        self._on_stop(self._hand_over)

    def compile_kernels(self) -> None:
        """Compiles in the background what the first compaction and the first read of columns would wait for."""
        self._supervisor.spawn("kernel compilation", compile_missing(self._directory.path))

    async def _join(self, server: SocketServer, services: Services) -> None:
        self._on_stop(server.stop)
        endpoints = await self._listener_set.bind()
        await self._listener_set.warn_of_expiry()
        rack = self.config.broker_rack or None
        used = next(one for one in endpoints if one.listener == self._listeners.inter_broker.name)
        record = BrokerRecord(
            self._node_id, used.host, used.port, rack, machine=socket.gethostname(), endpoints=endpoints
        )
        self.node = services.node = await self._membership.join(record)
        self._has_joined = True

    def reload_certificates(self) -> None:
        """Reads certificates again whose files have changed, without waiting for the next check."""
        if self._has_joined:
            self._supervisor.spawn("certificates", self._listener_set.check_certificates())

    async def _stay(self, controller: Controller, services: Services) -> None:
        def joined(node: BrokerRecord) -> None:
            self.node = services.node = node
            self._log_end_reporter.recheck()

        while True:
            try:
                await self._membership.stay(controller.session_ended, joined)
            except StartupError as error:
                # Another process has our id now. Two brokers with one id would undo each other's work.
                logger.critical("%s; stopping", error)
                self.must_stop.set()
                return
            except Exception:
                logger.exception("renewing the registration failed; trying again")
                await asyncio.sleep(1)

    def _disk_checked(self, is_writable: bool) -> None:
        self._supervisor.spawn("eligibility", self._membership.set_eligible(is_writable))

    async def _hand_over(self) -> None:
        if self.config.cluster.controlled_shutdown_enable and self._membership.others():
            await self._membership.hand_over(CONTROLLED_SHUTDOWN_S)

    def _on_stop(self, stop: Callable[[], Awaitable[None]]) -> None:
        self._stops.push_async_callback(stop)

    # Options that change at run time.

    def _config_in_force(self, image: ClusterImage) -> BrokerConfig:
        """Returns the options given at start with the overrides of the cluster, then those of this broker."""
        return config_in_force(self._texts, image.broker_config(CLUSTER_DEFAULT), image.broker_config(self._node_id))

    def _image_changed(self, old: ClusterImage, new: ClusterImage, services: Services, server: SocketServer) -> None:
        if new.broker_configs is not old.broker_configs:
            level = self.config.log_level
            self._current_config.value = self._config_in_force(new)
            self._apply(services, server)
            if self.config.log_level != level:
                set_log_level(self.config.log_level)
            services.replicas.defaults_changed(self.config.topic_defaults)
        self._security.image_changed(old, new)
        self._listener_set.image_changed(old, new)
        services.replicas.image_changed(old, new)
        if new.brokers is not old.brokers:
            self._log_end_reporter.recheck()

    def _apply(self, services: Services, server: SocketServer) -> None:
        self._threads.resize(self.config.background_threads)
        self._loop_watch.warn_s = server.slow_request_s = self.config.loop_delay_warn_ms / 1000
        server.max_connections = self.config.max_connections
        server.max_descriptors = self._shares.connections
        server.max_idle_ms = self.config.connections_max_idle_ms
        self._listener_set.reconfigure(self.config)
        services.fetch_sessions.max_sessions = self.config.max_incremental_fetch_session_cache_slots
        services.fetch_sessions.max_partitions = self.config.max_fetch_session_partitions


async def _synchronously(stop: Callable[[], None]) -> None:
    stop()


class Descriptors(NamedTuple):
    """How many of the process's file descriptors segments and connections may use."""

    segments: int
    connections: int


def share_out(limit: int, max_open_files: int) -> Descriptors:
    """Divides ``limit`` descriptors between segments and connections.

    Segments get half, or ``max_open_files`` if that is set. Connections get the rest, except for some that a broker
    needs otherwise, but at least a quarter: segments can do with fewer.
    """
    segments = max_open_files or max(64, min(limit // 2, 100_000))
    return Descriptors(segments, max(limit // 4, limit - segments - OTHER_DESCRIPTORS))


def _descriptors(config: BrokerConfig) -> Descriptors:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return share_out(soft if soft != resource.RLIM_INFINITY else 1 << 30, config.max_open_files)


async def serve(
    texts: Mapping[str, str], *, stop_at_eof: bool, next_steps: Callable[[str], str] = lambda bootstrap: ""
) -> None:
    """Runs a broker until SIGTERM or SIGINT, with ``stop_at_eof`` also until its standard input ends.

    That one is a child: its parent, which may be a test of a second, decides whether kernels are compiled ahead.
    """
    broker = Broker(texts)
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[str] = loop.create_future()

    def stop(reason: str) -> None:
        if not stopping.done():
            stopping.set_result(reason)

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop, f"received {signal_number.name}")
    loop.add_signal_handler(signal.SIGHUP, broker.reload_certificates)
    if stop_at_eof:
        loop.add_reader(sys.stdin.fileno(), stop, "its parent process has closed the pipe")
    await broker.start()
    # The level may have been changed at run time, before this start.
    set_log_level(broker.config.log_level)
    try:
        _print_ready(broker, next_steps)
        if not stop_at_eof:
            broker.compile_kernels()
        lost_id = asyncio.ensure_future(broker.must_stop.wait())
        lost_id.add_done_callback(lambda _: stop("another broker has its id"))
        logger.info("broker %d is stopping: %s", broker.node.id, await stopping)
        lost_id.cancel()
    finally:
        await broker.stop()
    logger.info("broker %d has stopped", broker.node.id)


def run(
    texts: Mapping[str, str], *, stop_at_eof: bool = False, next_steps: Callable[[str], str] = lambda bootstrap: ""
) -> int:
    """Runs a broker process. Returns exit code 0 after a clean stop, 2 if it cannot start.

    ``next_steps`` returns what is printed below the ready line, for the address that clients connect to.
    """
    import uvloop

    share_interpreter()
    try:
        config = read_broker_config(texts)
    except OptionError as error:
        print(f"skep: {error}", file=sys.stderr)
        return 2
    log = configure_logging(config.node_id, config.log_format, config.log_level)
    try:
        uvloop.run(serve(texts, stop_at_eof=stop_at_eof, next_steps=next_steps))
    except (OptionError, StartupError, StorageError, StoreUnavailable) as error:
        print(f"skep: {error}", file=sys.stderr)
        return 2
    finally:
        log.close()
    return 0


def _print_ready(broker: Broker, next_steps: Callable[[str], str]) -> None:
    node, data_dir = broker.node, os.path.abspath(broker.config.log_dirs)
    # The first listener is the one for clients.
    _, host, port = node.endpoints[0]
    address = f"{host}:{port}"
    ready = f"skep: broker {node.id} ready on {address}, data in {data_dir}, pid {os.getpid()}\n"
    # One write: whoever reads only the first line and closes the pipe must not stop the broker.
    print(ready + next_steps(address), end="", flush=True)
