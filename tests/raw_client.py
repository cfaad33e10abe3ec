"""A client for tests that sends exactly what it is told: any API in any version, pipelined, one frame at a time.

Requests are written and answers read by kio alone, headers included, so nothing of the broker's own encoders is used to
check them. Answers are taken in the order of the requests, and their correlation ids are compared with it.
"""

import socket
import struct
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from kio.schema.response_header.v1.header import ResponseHeader as TaggedResponseHeader
from kio.serial import entity_reader

from skep.base.errors import ErrorCode
from skep.wire import apis
from skep.wire.apis import Api
from skep.wire.codec import request_class, response_class
from tests.kio_entities import written
from tests.raw_requests import Want, create_topics_body, fetch_body, produce_body, seconds

SOCKET_TIMEOUT_S = 90.0
"""Longer than any request of a test waits at the broker, also on a busy machine."""
PRODUCE_VERSION = 9
FETCH_VERSION = 12


class RawClient:
    """One connection. Owns the correlation ids of the requests that are not answered yet, in order."""

    def __init__(
        self, bootstrap_servers: str, client_id: str | None = "raw", timeout_s: float = SOCKET_TIMEOUT_S
    ) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._next_correlation_id = 1000
        self._unanswered: deque[tuple[Api, int, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # Frames.

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive_frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._receive(4))
        return self._receive(length)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError(f"closed after {len(data)} of {size} bytes")
            data += piece
        return bytes(data)

    def is_closed(self) -> bool:
        """Waits until the broker closes the connection; False when it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    # Requests.

    def encode(self, api: Api, version: int, body: Mapping[str, Any]) -> bytes:
        """The frame of a request, which is then expected to be answered before all later ones."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        self._unanswered.append((api, version, correlation_id))
        entity = request_class(api.key, version)
        header_class = entity.__header_schema__
        header = {
            "request_api_key": api.key,
            "request_api_version": version,
            "correlation_id": correlation_id,
            "client_id": self._client_id,
        }
        return written(header_class, header) + written(entity, body)

    def send(self, api: Api, version: int, /, **body: Any) -> None:
        self.send_frame(self.encode(api, version, body))

    def expect_no_answer(self) -> None:
        """To the request sent last: acks=0."""
        self._unanswered.pop()

    def receive(self) -> Any:
        """The answer to the oldest unanswered request."""
        api, version, correlation_id = self._unanswered.popleft()
        frame = self.receive_frame()
        entity = response_class(api.key, version)
        header, position = entity_reader(entity.__header_schema__)(frame, 0)
        assert header.correlation_id == correlation_id, "answers come in the order of their requests"
        if entity.__header_schema__ is TaggedResponseHeader:
            assert frame[4] == 0, "the header has no tagged fields"
        body, size = entity_reader(entity)(frame, position)
        assert position + size == len(frame), f"{len(frame) - position - size} bytes follow the answer"
        return body

    def ask(self, api: Api, version: int, /, **body: Any) -> Any:
        self.send(api, version, **body)
        return self.receive()

    # The requests that most tests need.

    def create_topic(self, name: str, partitions: int = 1, **configs: Any) -> UUID:
        """``retention_ms=1`` stands for ``retention.ms``. The topic's id."""
        [topic] = self.ask(apis.CREATE_TOPICS, 7, **create_topics_body(name, partitions, configs)).topics
        assert topic.error_code is ErrorCode.none, topic.error_message
        assert topic.topic_id is not None
        return UUID(int=topic.topic_id.int)

    def delete_topic(self, name: str) -> None:
        [topic] = self.ask(apis.DELETE_TOPICS, 5, topic_names=[name], timeout=seconds(30)).responses
        assert topic.error_code is ErrorCode.none, topic.error_message

    def send_produce(
        self, topic: str, batch: bytes | None, *, partition: int = 0, acks: int = -1, version: int = PRODUCE_VERSION
    ) -> None:
        self.send(apis.PRODUCE, version, **produce_body({(topic, partition): batch}, acks=acks))
        if acks == 0:
            self.expect_no_answer()

    def receive_produced(self) -> Any:
        """What became of the one partition of the oldest unanswered produce."""
        [topic] = self.receive().responses
        [partition] = topic.partition_responses
        return partition

    def produce(
        self, topic: str, batch: bytes | None, *, partition: int = 0, acks: int = -1, version: int = PRODUCE_VERSION
    ) -> Any:
        self.send_produce(topic, batch, partition=partition, acks=acks, version=version)
        return self.receive_produced()

    def append(self, topic: str, batch: bytes, *, partition: int = 0) -> int:
        """Produces a batch that must be accepted; its base offset."""
        produced = self.produce(topic, batch, partition=partition)
        assert produced.error_code is ErrorCode.none, produced.error_message
        return int(produced.base_offset)

    def send_fetch(self, *wanted: Want, version: int = FETCH_VERSION, **options: Any) -> None:
        self.send(apis.FETCH, version, **fetch_body(wanted, version, **options))

    def fetch(self, *wanted: Want, version: int = FETCH_VERSION, **options: Any) -> Any:
        """The whole answer; ``options`` are those of ``fetch_body``."""
        self.send_fetch(*wanted, version=version, **options)
        return self.receive()

    def fetch_one(self, want: Want, version: int = FETCH_VERSION, **options: Any) -> Any:
        """The answer for the one partition asked for."""
        answer = self.fetch(want, version=version, **options)
        [topic] = answer.responses
        [partition] = topic.partitions
        return partition

    def list_offset(
        self, topic: str, timestamp: int, *, partition: int = 0, version: int = 7, isolation_level: int = 0
    ) -> Any:
        answer = self.ask(
            apis.LIST_OFFSETS,
            version,
            isolation_level=isolation_level,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}],
        )
        [[found]] = [topic.partitions for topic in answer.topics]
        return found

    def new_producer_id(self) -> int:
        answer = self.ask(apis.INIT_PRODUCER_ID, 4, transactional_id=None, producer_id=-1, producer_epoch=-1)
        assert answer.error_code is ErrorCode.none
        return int(answer.producer_id)
