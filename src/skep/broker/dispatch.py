"""The dispatcher: decodes frames, calls handlers, and turns what they raise into error responses.

An unknown API, or a version that is not served, closes the connection, as in Kafka: there is no encoding for an error
response. ApiVersions is the exception, because clients use it to find out which versions there are.
"""

import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import CoroutineType
from typing import Any, Protocol

from skep.base.errors import DecodeError, ErrorCode, KafkaError
from skep.base.loop.slicer import Work, freed
from skep.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_share_group_state,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    initialize_share_group_state,
    join_group,
    leave_group,
    list_config_resources,
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
    read_share_group_state,
    read_share_group_state_summary,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    skep_command,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    write_share_group_state,
    write_txn_markers,
)
from skep.broker.permissions import check_request
from skep.broker.refusals import code_of
from skep.broker.request import AnyRequest, CloseConnection, Parts, Request, Response
from skep.broker.services import Services
from skep.wire import apis
from skep.wire.codec import Body, decode_in_slices, decode_request, encode_in_slices, is_short
from skep.wire.frame_reader import FIRST_GROWTH
from skep.wire.headers import read_request_header
from skep.wire.produce.one_batch_reader import OneBatchReader

logger = logging.getLogger(__name__)

_PRODUCE_KEY = b"\0\0"


class Handler(Protocol):
    """The functions of every module in ``handlers/``."""

    def handle(self, services: Services, request: AnyRequest) -> Response | Awaitable[Response]:
        """Returns the response, at once if there is nothing to wait for."""
        ...

    def refuse(self, request: AnyRequest, code: ErrorCode) -> Body:
        """Returns a response with ``code`` for everything that the request names."""
        ...


HANDLERS: dict[int, Handler] = {
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
    apis.SASL_HANDSHAKE.key: sasl_handshake,
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
    apis.DESCRIBE_ACLS.key: describe_acls,
    apis.CREATE_ACLS.key: create_acls,
    apis.DELETE_ACLS.key: delete_acls,
    apis.DESCRIBE_CONFIGS.key: describe_configs,
    apis.ALTER_CONFIGS.key: alter_configs,
    apis.ALTER_REPLICA_LOG_DIRS.key: alter_replica_log_dirs,
    apis.DESCRIBE_LOG_DIRS.key: describe_log_dirs,
    apis.SASL_AUTHENTICATE.key: sasl_authenticate,
    apis.CREATE_PARTITIONS.key: create_partitions,
    apis.DELETE_GROUPS.key: delete_groups,
    apis.ELECT_LEADERS.key: elect_leaders,
    apis.ALTER_PARTITION_REASSIGNMENTS.key: alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS.key: list_partition_reassignments,
    apis.OFFSET_DELETE.key: offset_delete,
    apis.DESCRIBE_CLIENT_QUOTAS.key: describe_client_quotas,
    apis.ALTER_CLIENT_QUOTAS.key: alter_client_quotas,
    apis.INCREMENTAL_ALTER_CONFIGS.key: incremental_alter_configs,
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS.key: describe_user_scram_credentials,
    apis.ALTER_USER_SCRAM_CREDENTIALS.key: alter_user_scram_credentials,
    apis.DESCRIBE_QUORUM.key: describe_quorum,
    apis.DESCRIBE_CLUSTER.key: describe_cluster,
    apis.DESCRIBE_PRODUCERS.key: describe_producers,
    apis.UNREGISTER_BROKER.key: unregister_broker,
    apis.DESCRIBE_TRANSACTIONS.key: describe_transactions,
    apis.LIST_TRANSACTIONS.key: list_transactions,
    apis.CONSUMER_GROUP_HEARTBEAT.key: consumer_group_heartbeat,
    apis.CONSUMER_GROUP_DESCRIBE.key: consumer_group_describe,
    apis.LIST_CONFIG_RESOURCES.key: list_config_resources,
    apis.DESCRIBE_TOPIC_PARTITIONS.key: describe_topic_partitions,
    apis.SHARE_FETCH.key: share_fetch,
    apis.SHARE_ACKNOWLEDGE.key: share_acknowledge,
    apis.INITIALIZE_SHARE_GROUP_STATE.key: initialize_share_group_state,
    apis.READ_SHARE_GROUP_STATE.key: read_share_group_state,
    apis.WRITE_SHARE_GROUP_STATE.key: write_share_group_state,
    apis.DELETE_SHARE_GROUP_STATE.key: delete_share_group_state,
    apis.READ_SHARE_GROUP_STATE_SUMMARY.key: read_share_group_state_summary,
    apis.SHARE_GROUP_HEARTBEAT.key: share_group_heartbeat,
    apis.SHARE_GROUP_DESCRIBE.key: share_group_describe,
    apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: describe_share_group_offsets,
    apis.ALTER_SHARE_GROUP_OFFSETS.key: alter_share_group_offsets,
    apis.DELETE_SHARE_GROUP_OFFSETS.key: delete_share_group_offsets,
    apis.SKEP_COMMAND.key: skep_command,
}


class Dispatcher:
    """Owns the reader of repeated Produce requests; all other state is in the services."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._one_batch = OneBatchReader()

    def decode(self, frame: memoryview, client_host: str) -> AnyRequest:
        """Raises DecodeError when the frame is not a request of an API and version that is served."""
        if frame[:2] == _PRODUCE_KEY and (known := self._one_batch.read(frame)) is not None:
            version, correlation_id, client_id, one_batch = known
            return Request(apis.PRODUCE, version, correlation_id, client_id, client_host, one_batch, len(frame))
        header, position = read_request_header(frame, self._services.config.max_client_id_bytes)
        version = header.api_version
        api = apis.SERVED.get(header.api_key)
        if api is None:
            raise DecodeError(f"API key {header.api_key} is not served")
        body, undecoded = None, None
        if api.serves(version):
            limit = self._services.config.max_request_elements
            if is_short(api.key, version, frame, position):
                body = decode_request(api.key, version, frame, position, limit)
                if api is apis.PRODUCE:
                    self._one_batch.remember(version, header.client_id, body)
            else:
                # Frames larger than FIRST_GROWTH have a buffer that is not used again.
                kept = memoryview(bytes(frame)) if len(frame) <= FIRST_GROWTH else frame
                undecoded = decode_in_slices(api.key, version, kept, position, limit)
        elif api is not apis.API_VERSIONS:
            raise DecodeError(f"{api.name} v{version} is not served; served are v{api.oldest} to v{api.newest}")
        request = Request(
            api, version, header.correlation_id, header.client_id, client_host, body, len(frame), undecoded
        )
        request.is_exclusive = undecoded is not None
        return request

    def handle(self, request: AnyRequest) -> Parts | Awaitable[Parts]:
        """Returns the encoded response, at once if the handler does not wait. Raises CloseConnection."""
        if request.undecoded is not None:
            return self._decode_and_handle(request, request.undecoded)
        try:
            if request.access.is_limited:
                check_request(request)
            response = HANDLERS[request.api.key].handle(self._services, request)
            # By type first: isinstance with the abstract classes takes a microsecond, and most responses are tuples.
            if type(response) is tuple:
                return response
            if type(response) is CoroutineType or (type(response) is not dict and isinstance(response, Awaitable)):
                return self._finish(request, response)
            parts = self._encode(request, response)
            return parts if type(parts) is tuple else self._finish(request, parts)
        except CloseConnection:
            raise
        except Exception as error:
            return self._refuse(request, error)

    async def _decode_and_handle(self, request: AnyRequest, undecoded: Work[Any]) -> Parts:
        try:
            body = await self._services.slicer.finish(undecoded)
        except DecodeError as error:
            raise CloseConnection(str(error)) from None
        decoded = replace(request, body=body, undecoded=None)
        try:
            parts = self.handle(decoded)
            return await parts if isinstance(parts, Awaitable) else parts
        finally:
            large = [body]
            del body, decoded
            self._services.slicer.run(freed(large))

    async def _finish(self, request: AnyRequest, pending: Any) -> Parts:
        """Awaits the handler or the encoder and returns the encoded response."""
        try:
            response = await pending
            pending = self._encode(request, response) if isinstance(response, Mapping) else response
            del response  # so that the encoder can free a large one in slices
            parts: Parts = await pending if isinstance(pending, Awaitable) else pending
            return parts
        except CloseConnection:
            raise
        except Exception as error:
            refused = self._refuse(request, error)
            return await refused if isinstance(refused, Awaitable) else refused

    def _encode(self, request: AnyRequest, response: Any) -> Parts | Awaitable[Parts]:
        if type(response) is dict or isinstance(response, Mapping):
            # Without a body the request is an ApiVersions of an unknown version; every client reads version 0.
            version = request.version if request.body is not None else 0
            max_bytes = self._services.config.max_response_bytes
            if request.throttle is not None:
                response = {**response, "throttle_time": timedelta(milliseconds=request.throttle.ms)}
            work = encode_in_slices(request.api.key, version, request.correlation_id, response, max_bytes)
            return self._services.slicer.run(work)
        parts: Parts = response
        return parts

    def _refuse(self, request: AnyRequest, error: Exception) -> Parts | Awaitable[Parts]:
        code = code_of(error)
        if code is ErrorCode.unknown_server_error and not isinstance(error, KafkaError):
            logger.error("%s v%d of %s failed", request.api.name, request.version, request.client_host, exc_info=error)
        return self._encode(request, HANDLERS[request.api.key].refuse(request, code))
