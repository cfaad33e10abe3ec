"""From a frame to an answer: decode, find the handler, and turn whatever it raises into what the client can use.

Refusals of whole requests: an unknown API, or a version that is not served, closes the connection as Kafka does, for
there is no encoding to answer in. The exception is ApiVersions, by which clients find out what there is.
"""

import logging
from collections.abc import Awaitable, Mapping
from types import CoroutineType
from typing import Any, Protocol

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.base.loop.slicer import Work, freed
from skep.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    write_txn_markers,
)
from skep.broker.refusals import code_of
from skep.broker.request import Answer, CloseConnection, Outcome, Parts, Request
from skep.broker.services import Services
from skep.wire import apis
from skep.wire.codec import Body, decode_in_slices, decode_request, encode_in_slices, is_short
from skep.wire.frame_reader import FIRST_GROWTH
from skep.wire.headers import read_request_header
from skep.wire.produce.one_batch_reader import OneBatchReader

logger = logging.getLogger(__name__)

_PRODUCE_KEY = b"\0\0"


class Handler(Protocol):
    """What every module under ``handlers/`` gives."""

    def handle(self, services: Services, request: Request) -> Answer | Awaitable[Answer]: ...

    def refuse(self, request: Request, code: ErrorCode) -> Body:
        """The answer that gives ``code`` for everything that was asked."""
        ...


HANDLERS: dict[int, Any] = {
    apis.PRODUCE.key: produce,
    apis.FETCH.key: fetch,
    apis.LIST_OFFSETS.key: list_offsets,
    apis.METADATA.key: metadata,
    apis.OFFSET_COMMIT.key: offset_commit,
    apis.OFFSET_FETCH.key: offset_fetch,
    apis.FIND_COORDINATOR.key: find_coordinator,
    apis.JOIN_GROUP.key: join_group,
    apis.HEARTBEAT.key: heartbeat,
    apis.LEAVE_GROUP.key: leave_group,
    apis.SYNC_GROUP.key: sync_group,
    apis.DESCRIBE_GROUPS.key: describe_groups,
    apis.LIST_GROUPS.key: list_groups,
    apis.API_VERSIONS.key: api_versions,
    apis.CREATE_TOPICS.key: create_topics,
    apis.DELETE_TOPICS.key: delete_topics,
    apis.DELETE_RECORDS.key: delete_records,
    apis.INIT_PRODUCER_ID.key: init_producer_id,
    apis.OFFSET_FOR_LEADER_EPOCH.key: offset_for_leader_epoch,
    apis.ADD_PARTITIONS_TO_TXN.key: add_partitions_to_txn,
    apis.ADD_OFFSETS_TO_TXN.key: add_offsets_to_txn,
    apis.END_TXN.key: end_txn,
    apis.WRITE_TXN_MARKERS.key: write_txn_markers,
    apis.TXN_OFFSET_COMMIT.key: txn_offset_commit,
    apis.DESCRIBE_CONFIGS.key: describe_configs,
    apis.ALTER_CONFIGS.key: alter_configs,
    apis.DESCRIBE_LOG_DIRS.key: describe_log_dirs,
    apis.CREATE_PARTITIONS.key: create_partitions,
    apis.DELETE_GROUPS.key: delete_groups,
    apis.ELECT_LEADERS.key: elect_leaders,
    apis.ALTER_PARTITION_REASSIGNMENTS.key: alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS.key: list_partition_reassignments,
    apis.OFFSET_DELETE.key: offset_delete,
    apis.INCREMENTAL_ALTER_CONFIGS.key: incremental_alter_configs,
    apis.DESCRIBE_CLUSTER.key: describe_cluster,
    apis.DESCRIBE_PRODUCERS.key: describe_producers,
    apis.UNREGISTER_BROKER.key: unregister_broker,
    apis.DESCRIBE_TRANSACTIONS.key: describe_transactions,
    apis.LIST_TRANSACTIONS.key: list_transactions,
    apis.CONSUMER_GROUP_HEARTBEAT.key: consumer_group_heartbeat,
    apis.CONSUMER_GROUP_DESCRIBE.key: consumer_group_describe,
    apis.DESCRIBE_TOPIC_PARTITIONS.key: describe_topic_partitions,
}


class Dispatcher:
    """Stateless but for the services that handlers work on, and what producers have said before."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._one_batch = OneBatchReader()

    def decode(self, frame: memoryview, client_host: str) -> Request:
        if frame[:2] == _PRODUCE_KEY and (known := self._one_batch.read(frame)) is not None:
            version, correlation_id, client_id, one_batch = known
            return Request(apis.PRODUCE, version, correlation_id, client_id, client_host, one_batch)
        header, position = read_request_header(frame, self._services.config.max_client_id_bytes)
        api = apis.SERVED.get(header.api_key)
        if api is None:
            raise DecodeError(f"there is no API {header.api_key} here")
        unread = None
        if api.oldest <= header.api_version <= api.newest:
            limit = self._services.config.max_request_elements
            if is_short(api.key, header.api_version, frame, position):
                body = decode_request(api.key, header.api_version, frame, position, limit)
            else:
                # Larger frames have a buffer that nobody uses again.
                kept = memoryview(bytes(frame)) if len(frame) <= FIRST_GROWTH else frame
                body, unread = None, decode_in_slices(api.key, header.api_version, kept, position, limit)
            if api is apis.PRODUCE and body is not None:
                self._one_batch.remember(header.api_version, header.client_id, body)
        elif api is apis.API_VERSIONS:
            body = None
        else:
            raise DecodeError(f"{api.name} v{header.api_version} is not served, only v{api.oldest} to v{api.newest}")
        request = Request(api, header.api_version, header.correlation_id, header.client_id, client_host, body, unread)
        request.is_exclusive = unread is not None
        return request

    def handle(self, request: Request) -> Outcome:
        """The encoded response, at once where the handler needs no waiting."""
        if request.unread is not None and request.body is None:
            return self._read_and_handle(request, request.unread)
        try:
            answer = HANDLERS[request.api.key].handle(self._services, request)
            # By type first: asking the abstract classes takes a microsecond, and these are nearly all.
            if type(answer) is tuple:
                return answer
            if type(answer) is CoroutineType or (type(answer) is not dict and isinstance(answer, Awaitable)):
                return self._finish(request, answer)
            outcome = self._encode(request, answer)
            return outcome if type(outcome) is tuple else self._finish(request, outcome)
        except CloseConnection:
            raise
        except Exception as error:
            return self._refuse(request, error)

    async def _read_and_handle(self, request: Request, unread: Work[Any]) -> Parts:
        try:
            request.body = await self._services.slicer.finish(unread)
        except DecodeError as error:
            raise CloseConnection(str(error)) from None
        try:
            outcome = self.handle(request)
            return await outcome if isinstance(outcome, Awaitable) else outcome
        finally:
            large, request.body = [request.body], None
            self._services.slicer.run(freed(large))

    async def _finish(self, request: Request, outcome: Any) -> Parts:
        """Awaits what a handler or the encoder has left to do."""
        try:
            answer = await outcome
            outcome = self._encode(request, answer) if isinstance(answer, Mapping) else answer
            del answer  # so that a large one is freed in slices
            parts: Parts = await outcome if isinstance(outcome, Awaitable) else outcome
            return parts
        except CloseConnection:
            raise
        except Exception as error:
            refused = self._refuse(request, error)
            return await refused if isinstance(refused, Awaitable) else refused

    def _encode(self, request: Request, answer: Any) -> Outcome:
        if type(answer) is dict or isinstance(answer, Mapping):
            # A version of ApiVersions that we do not know is answered in the one that everybody knows.
            version = request.version if request.body is not None else 0
            max_bytes = self._services.config.max_response_bytes
            work = encode_in_slices(request.api.key, version, request.correlation_id, answer, max_bytes)
            return self._services.slicer.run(work)
        parts: Parts = answer
        return parts

    def _refuse(self, request: Request, error: Exception) -> Outcome:
        code = code_of(error)
        if code is ErrorCode.unknown_server_error and not isinstance(error, KafkaError):
            logger.error("%s v%d of %s failed", request.api.name, request.version, request.client_host, exc_info=error)
        return self._encode(request, HANDLERS[request.api.key].refuse(request, code))
