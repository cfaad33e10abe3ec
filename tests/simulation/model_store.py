"""A metadata store in memory, and the calls on it as things that a schedule can delay, lose, or leave unanswered.

The broker's coroutines run by hand: ``Running`` drives one until it asks the store for something. The schedule then
says when that is answered and how, and meanwhile lets others run.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from skep.base.errors import Fenced, KafkaError, StartupError, StoreUnavailable, VersionConflict
from skep.metadata.layout import BROKER_EPOCHS, topic_key
from skep.metadata.metadata_store import Versioned
from skep.metadata.model import TopicRecord, decode_field

TOPIC = "t"


class Call:
    """A request to the store, from when it is made until it is answered."""

    __slots__ = ("arguments", "brokers_known", "operation", "session")

    def __init__(self, operation: str, *arguments: Any) -> None:
        self.operation = operation
        self.arguments = arguments
        self.session = -1
        self.brokers_known: dict[int, int] = {}
        """Registration epochs as who calls knew them; what an election was decided by."""

    def __await__(self):
        return (yield self)

    @property
    def is_write(self) -> bool:
        return self.operation != "get"

    def topic_written(self) -> TopicRecord | None:
        """The topic as this would make it."""
        if not self.is_write:
            return None
        entries = self.arguments[0] if self.operation == "put_many" else [self.arguments]
        for key, value, *_ in entries:
            if key == topic_key(TOPIC):
                return TopicRecord.decode(TOPIC, value, 0)
        return None


class StoreClient:
    """What a broker's catalog takes for its ``MetadataStore``."""

    async def get(self, key):
        return await Call("get", key)

    async def put(self, key, value, *, expected_version=None):
        return await Call("put", key, value, expected_version)

    async def put_many(self, entries, *, guard=None):
        return await Call("put_many", list(entries), guard)

    async def put_ephemeral(self, key, value):
        return await Call("put_ephemeral", key, value)

    async def delete(self, key, *, expected_version=None, keeps_version=False):
        return await Call("delete", key, None, expected_version)


class ModelStore:
    """The truth. ``topic`` is always what lies under the topic's key."""

    def __init__(self, topic: TopicRecord) -> None:
        self.values: dict[str, Versioned] = {}
        self.owners: dict[str, int] = {}
        """The session of each ephemeral key."""
        self._last_version = 0
        self.topic = topic
        self._set(topic_key(TOPIC), topic.encode())

    @property
    def next_broker_epoch(self) -> int:
        return int(decode_field(BROKER_EPOCHS, self.values[BROKER_EPOCHS].value, "next"))

    def _set(self, key: str, value: bytes) -> int:
        self._last_version += 1
        self.values[key] = Versioned(value, self._last_version)
        if key == topic_key(TOPIC):
            self.topic = TopicRecord.decode(TOPIC, value, self._last_version)
        return self._last_version

    def _check(self, key: str, expected_version: int | None) -> None:
        found = self.values.get(key)
        if expected_version is not None and expected_version != (found.version if found else 0):
            raise VersionConflict(f"{key} has changed")

    def execute(self, call: Call) -> Any:
        """VersionConflict or Fenced, as a store raises them."""
        return getattr(self, "_" + call.operation)(call, *call.arguments)

    def _get(self, call: Call, key: str) -> Versioned | None:
        return self.values.get(key)

    def _put(self, call: Call, key: str, value: bytes, expected_version: int | None) -> int:
        self._check(key, expected_version)
        return self._set(key, value)

    def _put_many(self, call: Call, entries: list[Any], guard: tuple[str, int] | None) -> list[int | VersionConflict]:
        if guard is not None and self.values[guard[0]].version != guard[1]:
            raise Fenced("there is a newer controller")
        results: list[int | VersionConflict] = []
        for entry in entries:
            try:
                self._check(entry.key, entry.expected_version)
                results.append(self._set(entry.key, entry.value))
            except VersionConflict as error:
                results.append(error)
        return results

    def _put_ephemeral(self, call: Call, key: str, value: bytes) -> int:
        if key in self.values:
            raise VersionConflict(f"{key} exists")
        self.owners[key] = call.session
        return self._set(key, value)

    def _delete(self, call: Call, key: str, _: None, expected_version: int | None) -> bool:
        self._check(key, expected_version)
        self.owners.pop(key, None)
        return self.values.pop(key, None) is not None

    def end_session(self, session: int) -> None:
        for key in [key for key, owner in self.owners.items() if owner == session]:
            del self.values[key], self.owners[key]


class Running:
    """A coroutine of a broker, stopped at a call to the store; ``call`` is None when it is done."""

    def __init__(
        self, what: str, coroutine: Coroutine[Any, Any, Any], made: Callable[[Call], None], failed: Callable[[], None]
    ) -> None:
        self.what = what
        self.call: Call | None = None
        self._coroutine = coroutine
        self._made = made
        self._failed = failed
        self._advance(lambda: coroutine.send(None))

    def answer(self, value: Any) -> None:
        self._advance(lambda: self._coroutine.send(value))

    def fail(self, error: Exception) -> None:
        self._advance(lambda: self._coroutine.throw(error))

    def _advance(self, run: Callable[[], Any]) -> None:
        self.call = None
        try:
            while (asked := run()) is None:
                run = lambda: self._coroutine.send(None)  # noqa: E731  (a sleep of no length)
        except StopIteration:
            return
        except (KafkaError, StartupError, StoreUnavailable, VersionConflict):
            self._failed()
            return
        self.call = asked
        self._made(asked)

    def close(self) -> None:
        self._coroutine.close()
