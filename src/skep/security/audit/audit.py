"""The audit: refused and allowed operations, and changes with their old and new value.

A record is a flat JSON object. ``event`` is ``access`` for a decision, ``change`` for a change that was made,
``dropped`` for a number of records that could not be written. All have ``time``; those of clients have ``principal``,
``host``, ``client_id``, ``listener`` and ``api``.

Refusals are always recorded, allowed operations if they are in ``skep.audit.operations``. A client that is refused
again and again must not fill the disk, so each connection has a rate (``Allowance``), all of them together have one,
and what exceeds it is counted. Values of sensitive options, passwords and keys never get here: callers of ``changed``
pass what DescribeConfigs would show.
"""

import time
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Protocol

from skep.base.clock import Clock, SystemClock
from skep.security.operations import Operation, ResourceType
from skep.security.principal import Principal

REFUSALS_PER_SECOND = 1_000
"""Refusals recorded for all connections together."""

ADMIN_OPERATIONS = frozenset({Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS})


class Sink(Protocol):
    """Takes records and never blocks. What it cannot keep it drops and counts."""

    def put(self, record: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class HasName(Protocol):
    @property
    def name(self) -> str: ...


class _Rights(Protocol):
    @property
    def principal(self) -> Principal: ...
    @property
    def listener(self) -> str: ...


class Actor(Protocol):
    """The request behind a record: ``broker.request.Request``."""

    @property
    def api(self) -> HasName: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def client_host(self) -> str: ...
    @property
    def access(self) -> _Rights: ...


class Allowance:
    """So many records a second, and twice as many at once. Between calls ``_left`` is what is left of it."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = 2.0 * per_second
        self._at = time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(2.0 * self._per_second, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Audit:
    """Makes records for the sinks. Without a sink nothing is recorded."""

    def __init__(
        self,
        *sinks: Sink,
        operations: Collection[Operation] = ADMIN_OPERATIONS,
        refusals_per_second: int = 10,
        clock: Clock | None = None,
    ) -> None:
        self.operations = sum(1 << operation for operation in set(operations)) if sinks else 0
        """The operations that are recorded when they are allowed, as a set of bits."""
        self.refusals_per_second = refusals_per_second
        self._sinks = sinks
        self._clock = SystemClock() if clock is None else clock
        self._all_refusals = Allowance(REFUSALS_PER_SECOND)
        self._dropped = 0

    @property
    def is_on(self) -> bool:
        return bool(self._sinks)

    def decided(
        self,
        actor: Actor,
        operation: Operation,
        resource: ResourceType,
        name: str,
        decision: str,
        rule: str,
        allowance: Allowance | None = None,
    ) -> None:
        """Records a decision; a refusal only if the connection's allowance has room for it."""
        if not self._sinks:
            return
        if allowance is not None and not (allowance.take() and self._all_refusals.take()):
            self._dropped += 1
            return
        self._put(
            "access",
            actor,
            operation=operation.name,
            resource_type=resource.name,
            resource=name,
            decision=decision,
            rule=rule,
        )

    def changed(self, actor: Actor, what: str, name: str, old: Any, new: Any) -> None:
        """Records a change that was made. ``what`` is ``acls``, ``config``, ``user``, ``quota`` ...; None means none.

        ``old`` and ``new`` must be JSON-able, and have no secrets.
        """
        if self._sinks and old != new:
            self._put("change", actor, what=what, name=name, old=old, new=new)

    def _put(self, event: str, actor: Actor, **fields: Any) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            self._send({"time": self._time(), "event": "dropped", "count": dropped, "why": "too many refusals"})
        self._send(
            {
                "time": self._time(),
                "event": event,
                "principal": str(actor.access.principal),
                "host": actor.client_host,
                "client_id": actor.client_id,
                "listener": actor.access.listener,
                "api": actor.api.name,
                **fields,
            }
        )

    def _send(self, record: dict[str, Any]) -> None:
        for sink in self._sinks:
            sink.put(record)

    def _time(self) -> str:
        moment = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def close(self) -> None:
        """Writes what is waiting, for at most two seconds."""
        if self._dropped:
            self._send({"time": self._time(), "event": "dropped", "count": self._dropped, "why": "too many refusals"})
            self._dropped = 0
        for sink in self._sinks:
            sink.close()


NO_AUDIT = Audit()
